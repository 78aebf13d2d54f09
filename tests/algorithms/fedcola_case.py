"""A FedCola study that takes a second or two: tiny transformers, a few scenes at each site."""

from __future__ import annotations

from functools import cache

import torch

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import Rounds, changed

torch.set_num_threads(1)

TINY = """
[study]
name = "fedcola-tiny"
rounds = 2
seed = 5
[algorithm]
name = "fedcola"
local_epochs = 1
batch_size = 6
learning_rate = 1e-3
gallery = 4
[model]
name = "transfer-transformer"
width = 8
depth = 2
heads = 2
[data]
name = "scenes"
image_sites = 4
text_sites = 3
pair_sites = 3
records = 14
pairs = 12
test_records = 5
test_pairs = 6
[protection]
name = "plain"
colluders = 1
"""


def study(text: str = TINY, **changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__aggregation``."""
    return changed(text, changes)


def tiny(text: str = TINY, **changes: object) -> FedCola:
    """Its algorithm."""
    return build(study(text, **changes))


@cache
def first_round() -> Rounds:
    """The tiny study after its first round; made once, to be read, or to go on with in a copy."""
    rounds = Rounds(tiny())
    rounds.round(1)
    return rounds
