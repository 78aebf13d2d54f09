"""A round without protocol: summands are added directly, so a test sees the algorithm and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Summands, Totals

torch.set_num_threads(1)

BREAST_CANCER = """
[study]
name = "small"
rounds = 3
seed = 11
[algorithm]
name = "fedavg"
learning_rate = 0.05
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 3
[protection]
name = "plain"
"""


class Words:
    """Seeded rounding words."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def words(self, count: int) -> np.ndarray:
        return self._rng.integers(0, 2**32, size=count, dtype=np.uint32)


def add(exchange: Exchange, summands: dict[str, Summands]) -> Totals:
    """Exact float64 sums."""
    values = {}
    for field in exchange.layout.fields:
        parts = [torch.as_tensor(s[field.name], dtype=torch.float64) for s in summands.values()]
        values[field.name] = torch.stack(parts).sum(dim=0)
    return Totals(values, tuple(summands))


def add_in_ring(exchange: Exchange, summands: dict[str, Summands]) -> Totals:
    """The same through fixed point: encode each, add modulo 2^bits, decode."""
    runs = exchange.layout.shape.runs
    sums = [np.zeros(run.count, dtype=run.dtype) for run in runs]
    for number, (_, one) in enumerate(sorted(summands.items())):
        encoder = exchange.layout.encoder(one, Words(number))
        for run, total in zip(runs, sums, strict=True):
            out = np.empty(run.count, dtype=run.dtype)
            encoder.fill(run, out)
            total += out
    return exchange.layout.decode(tuple(sums), tuple(summands))


def simulate(
    study: Study,
    *,
    adder=add,
    order: Iterable[str] | None = None,
    dropped: Sequence[str] = (),
    algorithm: Algorithm | None = None,
) -> ServerProgram:
    """All rounds and the closing evaluation."""
    algorithm = algorithm or build(study)
    sites = list(order or algorithm.setting.sites)
    programs = {site: algorithm.site(site) for site in sites if site not in dropped}
    server = algorithm.server()
    for round_number in range(1, study.rounds + 2):
        for exchange in algorithm.exchanges(round_number):
            state = server.broadcast(round_number, exchange)
            asked = algorithm.members(round_number, exchange, list(programs))
            got = {site: programs[site].contribute(round_number, exchange, state) for site in asked}
            server.absorb(round_number, exchange, adder(exchange, got))
    return server
