"""A study that takes well under a second: three clusters seen in two ways, by a few small hospitals."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import torch

from secfed.algorithms.data.multiview.base import PooledViews, ViewRecords
from secfed.algorithms.fmcsc.algorithm import Fmcsc
from secfed.algorithms.framework.server_state import part_of
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Summands
from tests.algorithms.loop import add

torch.set_num_threads(1)

SIZES = (12, 8)

TINY = """
[study]
name = "fmcsc-tiny"
rounds = 4
seed = 5
[algorithm]
name = "fmcsc"
pretrain_rounds = 2
pretrain_epochs = 3
pretrain_share = 1.0
local_epochs = 3
distillation_epochs = 4
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


def blobs(views: tuple[int, ...], per_site: int = 24, same: bool = False, seed: int = 3) -> PooledViews:
    """Three Gaussian clusters with 12 and 8 features; ``views`` holds each site's one view, or -1 for all."""
    rng = np.random.default_rng(seed)
    count = per_site * len(views)
    labels = rng.integers(0, 3, count)
    records = tuple(
        (rng.normal(0, 1, (3, size))[labels] + rng.normal(0, 0.3, (count, size))).astype(np.float32)
        for size in SIZES
    )
    return PooledViews(
        lambda: ViewRecords(records, labels.astype(np.int64)),
        view_of={f"hospital-{at + 1}": None if view < 0 else view for at, view in enumerate(views)},
        view_sizes=SIZES,
        classes=3,
        divide=lambda _labels, _rng: [
            np.arange(per_site) + (0 if same else at * per_site) for at in range(len(views))
        ],
        seed=seed,
    )


def study(**changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__weights``."""
    made = Study.parse(TINY)
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def tiny(**changes: object) -> Fmcsc:
    """Its algorithm."""
    return build(study(**changes))


def contributions(algorithm: Fmcsc, round_number: int, index: int, server, programs) -> dict[str, Summands]:
    """What the members of one exchange add."""
    exchange = algorithm.exchanges(round_number)[index]
    asked = algorithm.members(round_number, exchange, algorithm.plan.sites)
    state = server.broadcast(round_number, exchange)
    return {site: programs[site].contribute(round_number, exchange, state) for site in asked}


def same(left, right, atol: float = 0.0) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(left[name], right[name], rtol=0, atol=atol) for name in left
    )


class Rounds:
    """A study that is taken exchange by exchange."""

    def __init__(self, made: Study | None = None, **changes) -> None:
        self.algorithm = build(made or study(**changes))
        self.server = self.algorithm.server()
        self.programs = {site: self.algorithm.site(site) for site in self.algorithm.plan.sites}

    def add_up(self, number: int, index: int, change=lambda got: got):
        """One exchange; ``change`` may alter what the sites contribute."""
        exchange = self.algorithm.exchanges(number)[index]
        got = contributions(self.algorithm, number, index, self.server, self.programs)
        self.server.absorb(number, exchange, add(exchange, change(got)))
        return got

    def group(self, name: str) -> dict[str, torch.Tensor]:
        return part_of(self.server.model(), name + "/")


@cache
def begun(number: int, changes: tuple[tuple[str, object], ...]) -> Rounds:
    """All rounds before this one; made once."""
    if number == 1:
        return Rounds(**dict(changes))
    rounds = copied(begun(number - 1, changes))
    for index in range(len(rounds.algorithm.exchanges(number - 1))):
        rounds.add_up(number - 1, index)
    return rounds


def copied(rounds: Rounds) -> Rounds:
    """To go on with, sharing the algorithm and nothing that changes."""
    return copy.deepcopy(rounds, {id(rounds.algorithm): rounds.algorithm})


def until(number: int, **changes) -> Rounds:
    """A study before this round."""
    return copied(begun(number, tuple(changes.items())))
