"""A study that takes well under a second: three clusters seen in two ways, by a few small hospitals."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from secfed.algorithms.data.multiview.base import ViewRecords, ViewSites
from secfed.algorithms.fmcsc.algorithm import Fmcsc
from secfed.algorithms.framework.base import ServerProgram
from secfed.algorithms.framework.server_state import part_of
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms import loop
from tests.algorithms.loop import changed

torch.set_num_threads(1)

SIZES = (12, 8)
LARGE = [-1, -1, -1, 0, 0, 0, 1, 1, 1]  # views of which each is held by enough; the tiny study has a lone one

TINY = """
[study]
name = "fmcsc-tiny"
rounds = 4
seed = 5
[algorithm]
name = "fmcsc"
pretrain_rounds = 2
pretrain_epochs = 2
pretrain_share = 1.0
local_epochs = 2
distillation_epochs = 3
learning_rate = 1e-3
restarts = 3
kmeans_iterations = 3
group_iterations = 2
[model]
name = "multiview"
hidden = [16, 12]
features = 4
head_hidden = 8
[data]
name = "tests.algorithms.fmcsc_case:blobs"
views = [-1, -1, -1, 0, 0, 0, 1]
[protection]
name = "plain"
colluders = 1
"""


def blobs(views: tuple[int, ...], per_site: int = 24, same: bool = False, seed: int = 3) -> ViewSites:
    """Three Gaussian clusters with 12 and 8 features; ``views`` holds each site's one view, or -1 for all."""
    rng = np.random.default_rng(seed)
    count = per_site * len(views)
    labels = rng.integers(0, 3, count)
    records = tuple(
        (rng.normal(0, 1, (3, size))[labels] + rng.normal(0, 0.3, (count, size))).astype(np.float32)
        for size in SIZES
    )
    rows = [np.arange(per_site) + (0 if same else at * per_site) for at in range(len(views))]
    held = {f"hospital-{at + 1}": None if view < 0 else view for at, view in enumerate(views)}
    pool = ViewRecords(records, labels.astype(np.int64))
    of_site = dict(zip(held, rows, strict=True))
    return ViewSites(lambda site, _: pool.take(of_site[site]), view_of=held, view_sizes=SIZES, classes=3)


def study(**changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__weights``."""
    return changed(TINY, changes)


def tiny(**changes: object) -> Fmcsc:
    """Its algorithm."""
    return build(study(**changes))


class Rounds(loop.Rounds):
    """The tiny study, or another one, exchange by exchange."""

    def __init__(self, made: Study | None = None, **changes: object) -> None:
        super().__init__(made or study(**changes))

    def group(self, name: str) -> dict[str, torch.Tensor]:
        return part_of(self.server.model(), name + "/")


@cache
def begun(number: int, changes: tuple[tuple[str, object], ...]) -> Rounds:
    """All rounds before this one; made once."""
    if number == 1:
        return Rounds(**dict(changes))
    rounds = begun(number - 1, changes).copy()
    rounds.round(number - 1)
    return rounds


@cache
def whole() -> ServerProgram:
    """The server after the tiny study; made once, to be read only."""
    return loop.simulate(study())


def until(number: int, **changes) -> Rounds:
    """A study before this round."""
    return begun(number, tuple(changes.items())).copy()
