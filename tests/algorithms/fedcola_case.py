"""A FedCola study that takes a second or two: tiny transformers, a few scenes at each site."""

from __future__ import annotations

from functools import cache

import torch

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.framework.server_state import part_of
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
CREAM = TINY.replace('name = "fedcola"', 'name = "creamfl"\npublic_pairs = 6')
COUNTED = [("image", 4), ("text", 3), ("pairs", 3)]  # sites of the tiny study


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


def models(rounds: Rounds) -> dict[str, dict[str, torch.Tensor]]:
    return {kind: part_of(rounds.server.model(), f"{kind}/") for kind in KINDS}


def everybody_adds(value: float):
    """Every element of every update becomes this."""

    def change(got):
        return {
            site: {n: torch.full_like(v, value) if n.startswith("update/") else v for n, v in one.items()}
            for site, one in got.items()
        }

    return change
