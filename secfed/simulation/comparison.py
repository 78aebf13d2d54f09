"""The federated model beside other ways of training, outside the protocol: simulation only.

    alone         every hospital trains by itself, on its own records
    centralised   one model trains on all hospitals' records in one place

Both begin with the same model, with the same options and as many rounds, and are measured on the held-out
records of each hospital. Federated averaging and its kind are compared with plain local training: what only
averaging needs (FedProx's pull, SCAFFOLD's corrections) is missing. Any other algorithm plays its own rounds:
alone with sums to which one hospital contributes, centralised with all records of a kind (all that hold the
same view, all that hold images) at one hospital and nothing at the others. Where an algorithm cannot measure
a model at one hospital, or hospitals keep parts of it, the federated rounds are played once more, with exact
sums. ``[privacy]`` is left out of both: who has all records at hand needs no noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.framework.base import Algorithm, Metrics, SiteProgram
from secfed.algorithms.framework.datasets import FederatedData, SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.server_state import copies
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError
from secfed.runs.run_report import Comparison, ComparisonRow
from secfed.simulation.oracle import columns
from secfed.simulation.pooled_records import with_pooled_records
from secfed.site.containment import contained
from secfed.study.build import build
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model
from secfed.wire.layout import Exchange, State, Totals

Other: TypeAlias = Literal["alone", "centralised"]
_BySite: TypeAlias = Mapping[SiteId, Metrics]


class Comparer:
    """One comparison of one study; made, and so refused, before anything is trained.

    Raises:
        ConfigError: a study that cannot be compared.
    """

    def __init__(self, study: Study, built: Algorithm, data: FederatedData, other: Other) -> None:
        self.other: Other = other
        self._study, self._built = study, built
        self._bare = _without_protection(study)
        self._data = data
        self._personal = bool(getattr(built, "personal", False))
        self._measures = type(built).per_site is not Algorithm.per_site and not self._personal
        if isinstance(built, FedAvg) and not self._personal:
            return
        if study.privacy is not None and not self._measures:
            raise ConfigError(
                f"--compare {other}: {study.algorithm.name} measures no model at one hospital, and its "
                "rounds under [privacy] cannot be played once more",
                remedy="leave the comparison out, or remove [privacy]",
            )
        try:
            build(self._bare, data=data)
        except ConfigError as error:
            raise ConfigError(
                f"--compare {other}: trains without [privacy], and then: {error.message}",
                remedy="leave the comparison out",
            ) from None

    def result(self, model: State) -> Comparison:
        """Train the other way, and put both side by side."""
        start = load_initial_model(self._study, self._built)
        if self._measures:
            federated = self._built.per_site(model)
        else:
            every = {site: site for site in self._data.sites}
            federated = self._measured(_Play(self._bare, self._data, set(every), start), every)
        if isinstance(self._built, FedAvg) and not self._personal:
            others = self._by_local_training(self._built, start)
        else:
            others = self._played_with_others(start, tuple(federated))
        rows = [ComparisonRow(site, found, others[site]) for site, found in federated.items() if found]
        mean = ComparisonRow("mean", _mean_over_sites(federated), _mean_over_sites(others))
        return Comparison(self.other, (*rows, mean))

    def _by_local_training(self, built: FedAvg, start: State | None) -> _BySite:
        alone = FedAvg(built.given, built.options)
        if self.other == "alone":
            trained = {site: _lonely_model(alone, site, start) for site in built.setting.sites}
            return {site: built.per_site(model)[site] for site, model in trained.items()}
        pooled, place_of = with_pooled_records(built.setting.data)
        together = FedAvg(replace(built.given, data=pooled), built.options)
        return built.per_site(_lonely_model(together, place_of[built.setting.sites[0]], start))

    def _played_with_others(self, start: State | None, sites: Collection[SiteId]) -> _BySite:
        found: dict[SiteId, Metrics] = {}
        if self.other == "alone":
            for site in sites:
                found |= self._measured(_Play(self._bare, self._data, {site}, start), {site: site})
            return found
        pooled, place_of = with_pooled_records(self._data)
        play = _Play(self._bare, pooled, set(place_of.values()), start)
        return self._measured(play, {site: place_of[site] for site in sites})

    def _measured(self, play: _Play, place_of: Mapping[SiteId, SiteId]) -> _BySite:
        if self._measures:
            found = self._built.per_site(play.server.model())
            return {site: found[site] for site in place_of}
        mine = build(self._bare, data=self._data)
        programs = {site: mine.site(site) for site in self._data.sites}
        found = play.metrics_at(place_of if self._personal else {}, programs)
        return {site: found[site] for site in place_of}


def _without_protection(study: Study) -> Study:
    """The study without what only protects hospitals from each other, and from asking too much of them."""
    lifted: dict[str, int | None] = {"min_group": 1, "max_records": 2**40}
    if study.privacy is not None:
        lifted["records"] = None  # what clipped gradients are divided by
    options = {key: value for key, value in lifted.items() if hasattr(study.algorithm, key)}
    parts = {
        "privacy": None,
        "protection": study.protection.model_copy(update={"sites_per_round": None}),
        "algorithm": study.algorithm.model_copy(update=options),
    }
    return study.model_copy(update=parts)


class _Play:
    """The training rounds of a study, with exact sums over what some of its sites contribute."""

    def __init__(
        self, study: Study, data: FederatedData, sites: Collection[SiteId], start: State | None
    ) -> None:
        self._rounds, self._sites = study.rounds, data.sites
        self._algorithm = build(study, data=data)
        self._programs = {site: self._algorithm.site(site) for site in data.sites if site in sites}
        self.server = self._algorithm.server()
        if start is not None:
            self.server.begin(start)
        for number in range(1, study.rounds + 1):
            for exchange in self._algorithm.exchanges(number):
                self._add(number, exchange, self._programs)

    def metrics_at(
        self, place_of: Mapping[SiteId, SiteId], programs: Mapping[SiteId, SiteProgram]
    ) -> _BySite:
        """Of the closing evaluation at each site: all add to its sums, only that site to the last one.

        ``place_of`` names the site from whose training each takes what sites keep; empty, if nothing.
        """
        for site, place in place_of.items():
            programs[site].load(copies(self._programs[place].save()))
        closing, *earlier = reversed(self._algorithm.exchanges(self._rounds + 1))
        for exchange in reversed(earlier):
            self._add(self._rounds + 1, exchange, programs)
        saved, found = copies(self.server.save()), {}
        for site, program in programs.items():
            self.server.load(saved)
            self._add(self._rounds + 1, closing, {site: program})
            found[site] = self.server.metrics().get(self._rounds, {})
        return found

    def _add(self, number: int, exchange: Exchange, programs: Mapping[SiteId, SiteProgram]) -> None:
        asked = self._algorithm.members(number, exchange, self._sites)
        broadcast = self.server.broadcast(number, exchange)
        given = {
            site: _work(program, number, exchange, broadcast)
            for site, program in programs.items()
            if site in asked
        }
        self.server.absorb(number, exchange, _sum(exchange, given))


def _work(
    program: SiteProgram, number: int, exchange: Exchange, broadcast: State
) -> Mapping[str, torch.Tensor]:
    return contained(
        number,
        exchange,
        lambda: program.contribute(number, exchange, broadcast),
        lambda: program.settled(number, exchange),
        lambda _: None,  # who diverges in the comparison adds zeros, as in the study
        only_values=True,
    )


def _sum(exchange: Exchange, given: Mapping[SiteId, Mapping[str, torch.Tensor]]) -> Totals:
    """Exact; zeros where nobody adds anything."""
    sums = {one.name: torch.zeros(one.shape, dtype=torch.float64) for one in exchange.layout.fields}
    for one in given.values():
        sums = {name: total + one[name] for name, total in sums.items()}
    return Totals(sums, tuple(given))


def _mean_over_sites(metrics: _BySite) -> Metrics:
    return {name: math.fsum(found) / len(found) for name, found in columns(metrics).items()}


def _lonely_model(alone: FedAvg, site: SiteId, start: State | None) -> State:
    data = alone.site_data(site)
    device = choose_device(alone.options.device)
    network = alone.setting.model().to(device)
    if start is not None:
        write_parameters(network, start)
    for round_number in range(1, alone.setting.study.rounds + 1):
        received, seed = read_parameters(network), alone.setting.local_seed
        context = LocalContext(site, round_number, received, {}, {}, device, seed)
        alone.local_update(network, data, replace(context, rate=alone.rate(round_number)))
    return read_parameters(network)
