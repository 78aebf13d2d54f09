"""A whole study in one process: every hospital, the aggregator and the link between them.

The sites here are the same objects that run in a hospital, fed through the same frames; only the link
is a function call, and four things differ from a real deployment: identities are made on the spot,
journals live in memory, the rounding noise comes from the study's seed, so that a study gives the
same model bytes every time, and where local work failed is counted and shown. Whoever knows the seed can undo
the rounding: never outside simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from secfed.algorithms.framework.base import Algorithm, Metrics, ServerProgram, unprotected_fields
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import RoundingStream, rounding_stream_for_simulation
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.ledger import Ledger
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.errors import ConfigError, RoundAborted
from secfed.protection.registry import make_protection
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.records.transcript import MODEL, SETTINGS, TRANSCRIPT, Transcript
from secfed.runs.aggregator_saw import what_the_aggregator_saw
from secfed.runs.model_record import ModelRecord, metrics_digest, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, ledger_file, site_folder, write_run
from secfed.runs.run_report import (
    CLIPPED,
    Comparison,
    ComparisonRow,
    Observer,
    PrivacyReport,
    RoundReport,
    RunReport,
    SilentObserver,
    SiteSpent,
    Zeroed,
    complete,
)
from secfed.server.coordinator import RoundOutcome
from secfed.server.make_run import make_run
from secfed.server.round import Rules
from secfed.simulation import oracle
from secfed.simulation.dropouts import Dropout
from secfed.simulation.transport import SimulatedTransport
from secfed.site.clipping import Clipping
from secfed.site.containment import Failure
from secfed.site.journal import Journal
from secfed.site.make_site import make_site, newest_replica
from secfed.site.noised_algorithm import NoisedAlgorithm
from secfed.site.privacy import SitePrivacy, with_privacy
from secfed.storage.atomic import write_atomic
from secfed.study.build import build, build_data
from secfed.study.limits import limits_of, study_id
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model, pinned_model
from secfed.wire.frames import encode_state
from secfed.wire.layout import State


@dataclass
class _Progress:
    """Collects round reports, and completes them with the metrics that later sums bring."""

    rounds: int
    observer: Observer
    reports: dict[int, RoundReport] = field(default_factory=dict)
    outcomes: list[RoundOutcome] = field(default_factory=list)

    def add(self, report: RoundReport, outcome: RoundOutcome, metrics: Mapping[int, Metrics]) -> None:
        self.outcomes.append(outcome)
        if report.round <= self.rounds:  # the closing evaluation has no row of its own
            self.reports[report.round] = report
            self.observer.round_finished(report)
        complete(self.reports, metrics, self.observer)


def simulate(
    study: Study,
    *,
    out: Path | None = None,
    drops: Sequence[Dropout] = (),
    observer: Observer | None = None,
    compare: Literal["alone"] | None = None,
    budgets: Mapping[str, float] | None = None,
) -> RunReport:
    """Run a study in this process.

    Args:
        study: what to run.
        out: folder for run.json, model.safetensors, transcripts and the roster; None writes nothing.
        drops: planned dropouts.
        observer: told of progress; None for nobody.
        compare: ``alone`` also trains each hospital by itself, outside the protocol.
        budgets: site to the epsilon that its policy allows, where that is not the study's own.

    Raises:
        ConfigError: a drop or budget names an unknown site, privacy that the study cannot have, or a
            ``model.start`` that it cannot begin with.
        RoundAborted: not one sum came about.
    """
    observer = SilentObserver() if observer is None else observer
    built = build(study)
    names = tuple(sorted(build_data(study).sites))
    algorithm = with_privacy(study, built, len(names))
    start = load_initial_model(study, algorithm)
    for drop in drops:
        if drop.site not in names:
            remedy = f"the sites are {', '.join(names)}"
            raise ConfigError(f"--drop {drop}: the study has no site {drop.site!r}", remedy=remedy)
        if drop.round is not None and drop.round > study.rounds + 1:
            remedy = f"name a round up to {study.rounds + 1}, the closing evaluation"
            raise ConfigError(f"--drop {drop}: the study has no round {drop.round}", remedy=remedy)
    budgets = budgets or {}
    for site in budgets:
        if site not in names:
            remedy = f"the sites are {', '.join(names)}"
            raise ConfigError(f"--budget {site}: the study has no site {site!r}", remedy=remedy)
    if budgets and study.privacy is None:
        raise ConfigError("--budget: the study spends no budget", remedy="add [privacy] to the study")
    aggregator = Identity.generate("aggregator")
    identities = {name: Identity.generate(name) for name in names}
    roster = Roster.of(aggregator, list(identities.values()))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_roster(out / ROSTER_FILE, roster)  # first: without it nobody can check a run that was stopped
    with ExitStack() as stack:

        def transcript(identity: Identity, folder: str | None) -> Transcript:
            sink = (
                None
                if out is None
                else (out if folder is None else site_folder(out, folder)) / TRANSCRIPT_FILE
            )
            made = Transcript(identity, study=study_id(study), roster_digest=roster.digest, sink=sink)
            # Noise from the study's seed protects nobody: whoever reads the record should know.
            made.append(SETTINGS, {**study.settings(len(names)), "simulated": True})
            return stack.enter_context(made)

        log = transcript(aggregator, None)
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="secfed-run-")))
        privacy = {
            name: _privacy(study, algorithm, identity, site_folder(folder, name), budgets.get(name))
            for name, identity in identities.items()
        }
        protection = make_protection(study.protection, algorithm, study.rounds, names)
        clipping = Clipping(study.protection.bound)
        failures: dict[str, list[Failure]] = {name: [] for name in names}
        arguments: dict[str, dict[str, Any]] = {
            name: {
                "identity": identity,
                "roster": roster,
                "study": study_id(study),
                "algorithm": algorithm,
                "program": clipping.watch(algorithm.site(name)),
                "protection": protection,
                "start": None if start is None else lambda: start,
                "journal": Journal(),
                "log": transcript(identity, name),
                "rounding": partial(_rounding, study.seed, name),
                "limits": limits_of(study, len(names)),
                "privacy": privacy[name],
                "begins_with": pinned_model(study),
                "broadcast_bound": study.protection.broadcast_bound,
                "alarm": failures[name].append,
                "only_values": True,  # all sites are this researcher's, who wants to see a defect
            }
            for name, identity in identities.items()
        }
        rules = Rules(
            study=study_id(study),
            identity=aggregator,
            roster=roster,
            protection=protection,
            threshold=partial(threshold, study.protection, len(names)),
            min_cohort=min_cohort(study.protection, len(names)),
            colluders=study.protection.colluders_for(len(names)),
        )
        carrier = SimulatedTransport(drops, observer, log)
        progress = _Progress(study.rounds, observer)
        sites = {name: make_site(**given) for name, given in arguments.items()}
        for opened in sites.values():
            stack.callback(opened.close)
        carrier.connect({name: opened.handle for name, opened in sites.items()})
        sums = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-sums-")))
        coordinator = make_run(algorithm, study.rounds, rules, carrier.ask, log, start=start, sums=sums)

        def program() -> ServerProgram:
            return coordinator.server or newest_replica(sites.values())

        observer.started(study.name, names, study.rounds)
        clock = time.perf_counter()

        def finished(outcome: RoundOutcome) -> None:
            nonlocal clock
            report = carrier.report(outcome, time.perf_counter() - clock)
            progress.add(report, outcome, program().metrics())
            carrier.start_round(outcome.round + 1)
            clock = time.perf_counter()

        coordinator.run(finished)
        if not any(outcome.sums for outcome in progress.outcomes):
            raise _no_sum(carrier)
        spent = _privacy_report(study, built, privacy)
        report = _report(study, built, algorithm, names, program(), progress, compare)
        report = replace(report, privacy=spent, zeroed=tuple(_zeroed(failures)))
        if clipping.share and not isinstance(algorithm, NoisedAlgorithm):  # sums with noise have other bounds
            report = replace(report, oracle={**(report.oracle or {}), CLIPPED: clipping.share})
        if out is not None:
            holders = [_Holder(log, roster.aggregator, out / TRANSCRIPT_FILE, program())]
            if coordinator.server is None:
                holders = [
                    _Holder(
                        arguments[name]["log"],
                        roster.public(name),
                        site_folder(out, name) / TRANSCRIPT_FILE,
                        site.replica,
                        site.sums,
                    )
                    for name, site in sites.items()
                    if site.replica is not None
                ]
            _write(out, program(), report, holders, study.rounds)
    observer.finished(report)
    return report


def _zeroed(failures: Mapping[str, Sequence[Failure]]) -> Iterator[Zeroed]:
    for site, found in failures.items():
        if found:
            yield Zeroed(site, len({(one.round, one.exchange) for one in found}), str(found[0]))


def _rounding(seed: int, site: str, number: int, index: int) -> RoundingStream:
    return rounding_stream_for_simulation(seed, site, str(number), str(index))


def _privacy(
    study: Study, algorithm: Algorithm, identity: Identity, folder: Path, epsilon: float | None
) -> SitePrivacy | None:
    """One simulated hospital's privacy: a ledger of its own, noise from the study's seed."""
    settings = study.privacy
    if settings is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    limit = settings.epsilon if epsilon is None else epsilon
    budget = Budget(limit, settings.delta, protects=settings.budgeted)
    ledger = Ledger(
        ledger_file(folder, study.data.name),
        identity,
        study.data.name,
        [budget],
        accountant=accountant(settings.accountant),
    )

    def stream(purpose: str) -> Callable[[int, str], SecureRandom]:
        return lambda number, exchange: SecureRandom.for_simulation(
            study.seed, purpose, identity.name, number, exchange
        )

    return SitePrivacy(
        settings,
        algorithm,
        ledger,
        study=study_id(study),
        seed=study.seed,
        random=stream("local steps"),
        noise_key=lambda number, exchange: stream("noise in the sum")(number, exchange).words(4).tobytes(),
    )


def _privacy_report(
    study: Study, algorithm: Algorithm, privacy: Mapping[str, SitePrivacy | None]
) -> PrivacyReport | None:
    settings = study.privacy
    if settings is None:
        return None
    sites, spent = [], None
    for name, one in privacy.items():
        if one is not None:
            standing = one.ledger.standings()[0]
            spent = standing.spent or spent
            sites.append(SiteSpent(name, standing.epsilon, standing.budget.epsilon, one.refused))
    plans = [plan for number in range(1, study.rounds + 2) for plan in algorithm.exchanges(number)]
    return PrivacyReport(
        unit=settings.unit,
        adjacency=str(settings.privacy_unit.adjacency if spent is None else spent.adjacency),
        delta=settings.delta,
        accountant="none" if spent is None else f"{spent.accountant} ({spent.version})",
        dataset=study.data.name,
        sites=tuple(sites),
        unprotected=tuple(
            dict.fromkeys(name for plan in plans for name in unprotected_fields(algorithm, plan))
        ),
        weak_delta=tuple(
            name for name, one in privacy.items() if one is not None and one.local and one.local.weak_delta
        ),
    )


def _report(
    study: Study,
    built: Algorithm,
    algorithm: Algorithm,
    names: tuple[str, ...],
    program: ServerProgram,
    progress: _Progress,
    compare: Literal["alone"] | None,
) -> RunReport:
    sums = [summed for outcome in progress.outcomes for summed in outcome.sums]
    metrics, closing = program.metrics(), progress.outcomes[-1]
    plans = [plan for number in range(1, study.rounds + 2) for plan in algorithm.exchanges(number)]
    saw = what_the_aggregator_saw(
        study.protection.name,
        sums=len(sums),
        survivors=[len(summed.result.survivors) for summed in sums],
        layouts=(plan.layout for plan in plans),
    )
    return RunReport(
        study=study.study.name,
        algorithm=study.algorithm.name,
        protection=study.protection.name,
        sites=names,
        rounds=tuple(progress.reports[number] for number in sorted(progress.reports)),
        final=metrics.get(study.rounds, {}),  # only a closing evaluation that came to a sum measures it
        saw=saw,
        initial=metrics.get(0),
        oracle=_oracle(built, program.model()),
        compare=None if compare is None else _comparison(study, program.model()),
        closing_aborted=closing.aborted.message if closing.aborted else None,
        start=study.model.start_sha256,
    )


def _oracle(algorithm: Algorithm, model: State) -> Metrics | None:
    """What only a simulation can know: the final model at the site where it does worst."""
    per_site = oracle.per_site_metrics(algorithm, model)
    names = dict.fromkeys(name for found in per_site.values() for name in found)
    return {f"worst_site_{name}": oracle.worst_site(per_site, name)[1] for name in names} or None


def _comparison(study: Study, model: State) -> Comparison:
    found = oracle.compare_alone(study, model)
    rows = [ComparisonRow(site, found.federated[site], found.alone[site]) for site in found.federated]
    federated, alone = oracle.mean_over_sites(found.federated), oracle.mean_over_sites(found.alone)
    return Comparison("alone", (*rows, ComparisonRow("mean", federated, alone)))


def _no_sum(carrier: SimulatedTransport) -> RoundAborted:
    """Why a study came to nothing: mostly every site gave up for the same reason, so one is enough."""
    said = "no round of the study came to a sum; nothing was learned and nothing revealed."
    if carrier.gave_up is None:
        return RoundAborted(said, remedy="let more sites take part")
    site, error = carrier.gave_up
    return RoundAborted(
        f"{said} {site} was the first to give up: {error.message}",
        remedy=error.remedy or "let more sites take part",
    )


@dataclass(frozen=True)
class _Holder:
    """A party that has the model at the end: its transcript, and the server program it ran."""

    log: Transcript
    public_bytes: bytes
    path: Path
    program: ServerProgram
    sums: int | None = None


def _write(
    out: Path,
    program: ServerProgram,
    report: RunReport,
    holders: Sequence[_Holder],
    rounds: int,
) -> None:
    data = encode_state(program.model())
    write_atomic(out / MODEL_FILE, data)
    metrics = run_metrics_digest(report.to_json())
    for holder in holders:
        # Under encrypted protection a site that missed the last sums has another model than the newest.
        newest = holder.program is program
        own = data if newest else encode_state(holder.program.model())
        entries = verify_file(holder.path, holder.public_bytes, TRANSCRIPT)
        measured = metrics if newest else metrics_digest(holder.program.metrics(), rounds)
        record = ModelRecord.of(entries, own, rounds=rounds, metrics=measured, sums=holder.sums)
        holder.log.append(MODEL, record.to_body())
    write_run(report, out)
