"""Tiny studies for the checks of an algorithm: its records, its programs, and rounds without protocol."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch import nn

from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram
from secfed.algorithms.framework.datasets import SiteData, SiteId
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import copies
from secfed.algorithms.framework.setting import Setting
from secfed.config.schema import checked
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.dp.settings import PrivacySection
from secfed.study.build import build, build_data, build_model
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State, Summands, Totals

_FEATURES: Final = 6
ROUNDS: Final = 2
_STUDY: Final = f"""
study = {{ name = "check", rounds = {ROUNDS}, seed = 3 }}
algorithm = {{ name = "fedavg" }}
model = {{ name = "logistic-regression" }}
data = {{ name = "breast-cancer", sites = 4 }}
protection = {{ name = "plain", min_cohort = 2 }}
"""
PRIVACY: Final = {"epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"}
MORE: Final[Mapping[str, dict[str, object]]] = {"record": {}, "group": {"group_size": 4}, "site": {}}


class AlgorithmFault(AssertionError):
    """What an algorithm does wrong, and what to do about it."""


def network() -> nn.Module:
    """The model of a check that brings none."""
    with seeded(0, "model of the check"):
        return nn.Sequential(nn.Linear(_FEATURES, 5), nn.Tanh(), nn.Linear(5, 2))


def made_up(seed: int, count: int = 24, twice: bool = False) -> SiteData:
    """One hospital's labelled records; ``twice``: all that are trained on are there two times."""
    generator = torch_generator(seed, "records of the check")
    x = torch.randn(count + 8, _FEATURES, generator=generator)
    y = (x[:, 0] + 0.3 * torch.randn(count + 8, generator=generator) > 0).long()
    train_x, train_y = x[:count], y[:count]
    if twice:
        train_x, train_y = train_x.repeat(2, 1), train_y.repeat(2)
    return SiteData(train_x, train_y, x[count:], y[count:])


def _different() -> dict[SiteId, SiteData]:
    return {f"hospital-{number}": made_up(number, 16 + 4 * number) for number in range(4)}


@dataclass(frozen=True)
class Case:
    """One algorithm on some records; every machine makes an algorithm object of its own."""

    type: type[Algorithm]
    options: Mapping[str, object]
    model: Callable[[], nn.Module]
    records: Mapping[SiteId, Any] = field(default_factory=_different)  # SiteData, but for an own study
    privacy: PrivacySection | None = None
    own: Study | None = None

    @property
    def study(self) -> Study:
        """The study, under the privacy of the case."""
        study = Study.parse(_STUDY) if self.own is None else self.own
        if self.privacy is None:
            return study
        if self.privacy.noise == "sum":
            few = {"min_cohort": len(self.records)} if self.own is None else {}
            protection = study.protection.model_copy(update={"name": "masked", **few})
            study = study.model_copy(update={"protection": protection})
        return study.model_copy(update={"privacy": self.privacy})

    @property
    def data(self) -> Any:
        """A data set in memory, or that of an own study with other records at some sites."""
        if self.own is not None:
            whole = build_data(self.study)
            changed = copy.copy(whole)
            given = {site: data for site, data in self.records.items() if data is not None}
            read = lambda site: given[site] if site in given else cast("Any", whole).site(site)  # noqa: E731
            object.__setattr__(changed, "site", read)
            return changed
        shape, site = (_FEATURES,), self.records.__getitem__
        return SimpleNamespace(sites=tuple(self.records), site=site, input_shape=shape, classes=2)

    def algorithm(self) -> Algorithm:
        """A fresh algorithm object on the records of the case."""
        if self.own is not None and self.privacy is None:
            return build(self.own)
        make, kind, study = cast("Callable[..., Algorithm]", self.type), self.type.options_type, self.study
        if self.own is not None:
            setting = Setting(study, self.data, lambda: build_model(study, setting))
            own = {} if kind is not None else getattr(study.algorithm, "arguments", {})
            return make(setting, **own) if kind is None else make(setting, study.algorithm)
        if kind is None:
            return make(Setting(study, self.data, self.model), **self.options)
        default: dict[str, object] = {"batch_size": 1000, "learning_rate": 0.1}  # whole passes: equal draws
        if self.privacy is not None:
            default = {"batch_size": 8, "weighting": "equal"}
            if self.privacy.noise == "sum":
                default["records"] = 100
        known = {key: value for key, value in default.items() if key in kind.model_fields}
        options = checked(kind, {"name": "checked", **known, **self.options}, "algorithm")
        study = study.model_copy(update={"algorithm": options})
        return make(Setting(study, self.data, self.model), options)

    def fault(self, check: str, what: str, remedy: str) -> AlgorithmFault:
        """The error of a check."""
        return AlgorithmFault(f"{self.type.__name__}, {check}: {what}; {remedy}")


def restored(algorithm: Algorithm, site: SiteId, state: State) -> SiteProgram:
    """A site program that continues from what one has saved."""
    program = algorithm.site(site)
    if state:
        program.load(state)
    return program


def add(exchange: Exchange, given: Mapping[SiteId, Summands]) -> Totals:
    """The exact sums."""
    values = {}
    for one in exchange.layout.fields:
        parts = [torch.as_tensor(summands[one.name], dtype=torch.float64) for summands in given.values()]
        values[one.name] = torch.stack(parts).sum(dim=0)
    return Totals(values, tuple(given))


def add_fixed_point(exchange: Exchange, given: Mapping[SiteId, Summands]) -> Totals:
    """The sums as every protection makes them."""
    layout = exchange.layout
    sums = [torch.zeros(run.count).numpy().astype(run.dtype) for run in layout.shape.runs]
    for site, summands in given.items():
        encoder = layout.encoder(summands, rounding_stream_for_simulation(1, site, exchange.name))
        for run, total in zip(layout.shape.runs, sums, strict=True):
            lanes = total.copy()
            encoder.fill(run, lanes)
            total += lanes
    return layout.decode(tuple(sums), tuple(given))


def play(
    case: Case,
    *,
    rounds: int | None = None,
    add: Callable[[Exchange, Mapping[SiteId, Summands]], Totals] = add,
    lost: Collection[tuple[SiteId, int]] = (),
    restart_server: bool = False,
    restart_sites: bool = False,
    shared: Algorithm | None = None,
    watch: Callable[[SiteId, Exchange, Summands], None] = lambda *_: None,
    sent: Callable[[int, Exchange, State], None] = lambda *_: None,
) -> ServerProgram:
    """Rounds without protocol, by default all; a contribution that is lost was made, and is in no sum."""
    central = shared or case.algorithm()
    own = {site: shared or case.algorithm() for site in case.records}
    programs, server = {site: own[site].site(site) for site in own}, central.server()
    for number in range(1, (rounds or case.study.rounds + 1) + 1):
        for exchange in central.exchanges(number):
            given = {}
            sent(number, exchange, server.broadcast(number, exchange))
            for site in central.members(number, exchange, tuple(own)):
                broadcast, before = server.broadcast(number, exchange), copies(programs[site].save())
                given[site] = programs[site].contribute(number, exchange, broadcast)
                watch(site, exchange, given[site])
                if restart_sites:
                    again = restored(own[site], site, before).contribute(number, exchange, broadcast)
                    compare_work(case, given[site], again)
                    programs[site] = restored(own[site], site, copies(programs[site].save()))
            counted = {site: one for site, one in given.items() if (site, number) not in lost}
            server.absorb(number, exchange, add(exchange, counted))
            if restart_server:
                saved, server = copies(server.save()), central.server()
                server.load(saved)
    return server


def compare_work(case: Case, first: Summands, again: Summands) -> None:
    """AlgorithmFault if work that was done again gives anything else."""
    for name, value in first.items():
        if not torch.equal(torch.as_tensor(value), torch.as_tensor(again[name])):
            raise case.fault(
                "restart",
                f"work from what the hospital saved gives another {name!r}",
                "draw from setting.local_seed or the context's generator, and keep what rounds need in "
                "site_memory or save",
            )


def apart(one: ServerProgram, other: ServerProgram) -> float:
    """The largest difference of a parameter."""
    first, second = one.model(), other.model()
    return max(float((value.double() - second[name].double()).abs().max()) for name, value in first.items())
