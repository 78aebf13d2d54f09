"""What a simulation reports: rounds as they end, and the whole run with what only a simulation can know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from secfed.algorithms.federated_averaging.weighted_plan import WeightedPlan
from secfed.algorithms.framework.base import Algorithm, Metrics, without_noise
from secfed.runs.aggregator_saw import what_the_aggregator_saw, who_was_left_out
from secfed.runs.machine import machine
from secfed.runs.run_report import (
    CLIPPED,
    Observer,
    PrivacyReport,
    RoundReport,
    RunReport,
    SiteSpent,
    Zeroed,
    chosen_round,
    complete,
)
from secfed.server.coordinator import RoundOutcome
from secfed.simulation import oracle
from secfed.simulation.parties import Consortium
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State


@dataclass
class Progress:
    """Collects round reports, and completes them with the metrics that later sums bring."""

    rounds: int
    observer: Observer
    reports: dict[int, RoundReport] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)  # of every sum, in order
    closing_aborted: str | None = None  # why the newest round was given up, the closing evaluation in the end

    def add(self, report: RoundReport, outcome: RoundOutcome, metrics: Mapping[int, Metrics]) -> None:
        """One more round is over."""
        self.survivors += [len(summed.result.survivors) for summed in outcome.sums]
        self.closing_aborted = outcome.aborted.message if outcome.aborted else None
        if report.round <= self.rounds:  # the closing evaluation has no row of its own
            self.reports[report.round] = report
            self.observer.round_finished(report)
        complete(self.reports, metrics, self.observer)


def report_of(parties: Consortium, built: Algorithm, progress: Progress) -> RunReport:
    """The report of a finished run."""
    study, program = parties.terms.study, parties.server_program()
    metrics = program.metrics()
    saw = what_the_aggregator_saw(
        study.protection.kind,
        sums=len(progress.survivors),
        survivors=progress.survivors,
        layouts=(plan.layout for plan in _plans(study, parties.terms.algorithm)),
        words=built.field_words(),
    )
    return RunReport(
        study=study.study.name,
        algorithm=study.algorithm.name,
        protection=study.protection.kind,
        sites=parties.terms.sites,
        rounds=tuple(progress.reports[number] for number in sorted(progress.reports)),
        final=metrics.get(
            program.kept(study.rounds), {}
        ),  # only a closing evaluation that came to a sum measures it
        saw=f"{saw} {who_was_left_out(built.left_out())}".rstrip(),
        initial=metrics.get(0),
        oracle=_oracle(parties, built, program.model()),
        privacy=_privacy(parties, built),
        closing_aborted=progress.closing_aborted,
        start=study.model.start_sha256,
        **chosen_round(program, study.rounds),
        zeroed=tuple(_zeroed(parties)),
        chance=built.task.chance() if isinstance(built, WeightedPlan) else {},
        machine=machine(torch.get_num_threads()),
    )


def _plans(study: Study, algorithm: Algorithm) -> list[Exchange]:
    return [plan for number in range(1, study.rounds + 2) for plan in algorithm.exchanges(number)]


def _zeroed(parties: Consortium) -> Iterator[Zeroed]:
    for site, failures in parties.failures.items():
        if failures:
            yield Zeroed(site, len({(one.round, one.exchange) for one in failures}), str(failures[0]))


def _privacy(parties: Consortium, built: Algorithm) -> PrivacyReport | None:
    study, settings = parties.terms.study, parties.terms.study.privacy
    if settings is None:
        return None
    private = {name: site.privacy for name, site in parties.sites.items() if site.privacy is not None}
    sites, spent = [], None
    for name, one in private.items():
        standing = one.ledger.standings()[0]
        spent = standing.spent or spent
        sites.append(SiteSpent(name, standing.epsilon, standing.budget.epsilon, one.refused))
    engines = {used for one in private.values() for used in getattr(one.local, "engines", ())}
    unprotected = (name for plan in _plans(study, built) for name in without_noise(built, plan, settings))
    return PrivacyReport(
        unit=settings.unit,
        adjacency=str(settings.privacy_unit.adjacency if spent is None else spent.adjacency),
        delta=settings.delta,
        accountant="none" if spent is None else f"{spent.accountant} ({spent.version})",
        dataset=study.data.name,
        sites=tuple(sites),
        unprotected=tuple(dict.fromkeys(unprotected)),
        weak_delta=tuple(name for name, one in private.items() if one.local and one.local.weak_delta),
        engines=tuple(sorted(engines)),
        words=built.field_words(),
    )


def _oracle(parties: Consortium, algorithm: Algorithm, model: State) -> Metrics | None:
    """The final model at the site where it does worst, and how much of an update fixed point clipped."""
    metrics = oracle.worst_site_metrics(algorithm.per_site(model))
    worst = {f"worst_site_{name}": value for name, value in metrics.items()}
    return worst | ({CLIPPED: parties.clipped.share} if parties.clipped.share else {}) or None
