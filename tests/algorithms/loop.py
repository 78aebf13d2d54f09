"""A round without protocol: summands are added directly, so a test sees the algorithm and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State, Summands, Totals

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


def changed(text: str, changes: Mapping[str, object]) -> Study:
    """A study; keys of changes are written ``algorithm__rho``, and None removes one."""
    made = Study.parse(text)
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def same(left: State, right: State, atol: float = 0.0) -> bool:
    """Whether two states have the same bits, or nearly the same numbers."""
    return left.keys() == right.keys() and all(
        torch.allclose(left[name], right[name], rtol=0, atol=atol) for name in left
    )


class Rounds:
    """A study that is taken exchange by exchange, by number or name; summands are added directly."""

    def __init__(self, made: Study | Algorithm) -> None:
        self.algorithm: Any = build(made) if isinstance(made, Study) else made
        self.server = self.algorithm.server()
        self.programs: dict[str, Any] = {
            site: self.algorithm.site(site) for site in self.algorithm.setting.sites
        }

    def exchange(self, number: int, which: int | str) -> Exchange:
        found = self.algorithm.exchanges(number)
        return found[which] if isinstance(which, int) else next(one for one in found if one.name == which)

    def contributions(self, number: int, which: int | str, absent: Sequence[str] = ()) -> dict[str, Summands]:
        """What every site that is asked, and not absent, adds to one exchange."""
        exchange = self.exchange(number, which)
        state = self.server.broadcast(number, exchange)
        asked = self.algorithm.members(number, exchange, [one for one in self.programs if one not in absent])
        return {site: self.programs[site].contribute(number, exchange, state) for site in asked}

    def take(
        self,
        number: int,
        which: int | str,
        change: Callable[[dict[str, Summands]], dict[str, Summands]] = lambda got: got,
        *,
        absent: Sequence[str] = (),
        lost: Sequence[str] = (),
    ) -> dict[str, Any]:
        """One exchange. Lost sites contribute and drop out of the sum; what is summed may be changed."""
        exchange, got = self.exchange(number, which), self.contributions(number, which, absent)
        summed = change({site: one for site, one in got.items() if site not in lost})
        self.server.absorb(number, exchange, add(exchange, summed))
        return got

    def round(self, number: int, *given: Any, **options: Any) -> dict[str, dict[str, Any]]:
        """All exchanges of a round, by name."""
        names = [exchange.name for exchange in self.algorithm.exchanges(number)]
        return {name: self.take(number, name, *given, **options) for name in names}

    def run(self) -> Self:
        """All rounds and the closing evaluation."""
        for number in range(1, self.algorithm.setting.study.rounds + 2):
            self.round(number)
        return self

    def copy(self) -> Self:
        """To go on with, sharing the algorithm and nothing that changes."""
        return copy.deepcopy(self, {id(self.algorithm): self.algorithm})


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
