"""A whole study in one process: every hospital, the aggregator and the link between them.

The sites here are the same objects that run in a hospital (:func:`secfed.site.build.build_site`), fed through
the same frames; only the link is a function call, and four things differ from a real deployment: identities
are made on the spot, journals live in memory, the rounding noise comes from the study's seed, so that a study
gives the same model bytes every time, and where local work failed is counted and shown. Whoever knows the
seed can undo the rounding: never outside simulation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from secfed.algorithms.framework.base import ServerProgram
from secfed.config.plugins import own_code_errors, own_place, source_of
from secfed.crypto.identity import remembered_signatures
from secfed.engine.choice import open_engine
from secfed.engine.interface import threads_of_torch
from secfed.engine.options import EngineOptions
from secfed.engine.pool import link_errors
from secfed.errors import ConfigError, RoundAborted
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.records.chain_file import verify_file
from secfed.records.transcript import CLOSED, MODEL, TRANSCRIPT, Transcript
from secfed.runs.model_record import ModelRecord, metrics_digest, run_metrics_digest
from secfed.runs.notebook import unless_told
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, site_folder, write_run
from secfed.runs.run_report import CallingObserver, Observer, RoundReport, RunReport
from secfed.server.coordinator import RoundOutcome
from secfed.simulation.comparison import Comparer, Other
from secfed.simulation.dropouts import Dropout
from secfed.simulation.going_on import go_on, kept_of
from secfed.simulation.parties import Consortium, open_consortium
from secfed.simulation.report import Progress, report_of
from secfed.simulation.transport import SimulatedTransport
from secfed.simulation.unfinished import Unfinished, stamp_of
from secfed.site.terms import Terms
from secfed.storage.atomic import write_atomic
from secfed.study.build import build, build_data
from secfed.study.study import Study
from secfed.wire.frames import encode_state


def simulate(
    study: Study,
    *,
    out: Path | None = None,
    drops: Sequence[Dropout] = (),
    observer: Observer | Callable[[RoundReport], None] | None = None,
    compare: Other | None = None,
    budgets: Mapping[str, float] | None = None,
    engine: EngineOptions | None = None,
) -> RunReport:
    """Run a study on this machine; where its local work is done, ``engine`` says.

    Args:
        observer: told of stages and rounds as they end; a function is called with every round's report, and
            again once its metrics are known. None shows a table in a notebook, and nothing elsewhere.
        out: folder for run.json, model.safetensors, transcripts and the roster; None writes nothing. A run
            of the same study that was killed there is gone on with.
        compare: also train outside the protocol: ``alone`` each hospital by itself, ``centralised`` one model
            on all records.
        budgets: site to the epsilon that its policy allows, where that is not the study's own.

    Raises:
        ConfigError: a drop or budget names an unknown site, privacy that the study cannot have, or a
            ``model.start`` that it cannot begin with; an engine that is not there.
        ConfigError: also whatever own code of the study raises, with its text, file and line; or ``out``
            holds the beginning of a run that was made with something else.
        RoundAborted: not one sum came about, or every round was given up.
        LinkError: the engine ended.
    """
    if not isinstance(observer, Observer):
        observer = unless_told() if observer is None else CallingObserver(observer)
    with own_code_errors(study.own_code), link_errors(), ExitStack() as stack:
        options = engine or EngineOptions()
        stack.enter_context(threads_of_torch(options.threads))
        stack.enter_context(remembered_signatures())
        _check_packages(study)
        built = build(study)
        data = build_data(study)
        names = tuple(sorted(data.sites))
        _check_drops(study, drops, names)
        _check_budgets(study, budgets or {}, names)
        terms = Terms(study, with_privacy(study, built, names), names)
        comparer = None if compare is None else Comparer(study, built, data, compare)
        working = open_engine(options, study, built, study_id=terms.study_id, sites=len(names))
        stack.callback(working.close)
        kept = None
        if out is not None and all(map(source_of, study.own_code)):  # else nobody can tell if it changed
            kept = Unfinished(out, stamp_of(study, drops, budgets or {}, options))
            stack.enter_context(_ended_by_its_own(kept, own_code=bool(study.own_code)))
        left = None if kept is None else kept.left
        parties = open_consortium(terms, working, out, budgets or {}, stack, left)
        # The ciphers of masked protection let go of Python's lock; nothing else would gain by threads.
        threads = min(working.workers, os.cpu_count() or 1) if study.protection.name == "masked" else 1
        carrier = SimulatedTransport(
            drops, observer, parties.log, workers=working.workers, protecting=threads
        )
        run = parties.connect(carrier, out, kept, stack)
        progress = Progress(study.rounds, observer)
        observer.started(study.name, names, study.rounds)
        if left is not None:
            go_on(parties, progress, carrier, left)
        if kept is not None and out is not None:
            kept.collect = partial(kept_of, parties, progress, carrier, out)
        clock = time.perf_counter()

        def finished(outcome: RoundOutcome) -> None:
            nonlocal clock
            report = carrier.report(outcome, time.perf_counter() - clock)
            progress.add(report, outcome, parties.server_program().metrics())
            carrier.start_round(outcome.round + 1)
            for site in parties.sites.values():
                site.rest()
            clock = time.perf_counter()

        run.run(finished)
        if not progress.survivors:
            raise _no_sum(carrier)
        if progress.reports and all(report.aborted for report in progress.reports.values()):
            raise _no_round(progress)
        report = report_of(parties, built, progress)
        if out is not None:
            _write_model(parties, report, out)
            for log in (parties.log, *parties.logs.values()):
                log.append(CLOSED, log.closing())
            write_run(report, out)
        if kept is not None:
            kept.end()
        if comparer is not None:  # what goes wrong from here on leaves a finished run
            report = replace(report, compare=comparer.result(parties.server_program().model()))
            if out is not None:
                write_run(report, out)
    observer.finished(report)
    return report


@contextmanager
def _ended_by_its_own(kept: Unfinished, *, own_code: bool) -> Iterator[None]:
    """A study that came to nothing, and own code that failed, begin again: to go on would repeat the end."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RoundAborted) or (own_code and own_place(error) is not None):
            kept.end()
        raise


def _check_packages(study: Study) -> None:
    """Say at the start what is missing, packages or files in memory, not round by round."""
    if study.protection.name == "encrypted":
        import_module("secfed.crypto.encrypted.bfv_tenseal").MemoryFile()


def _check_drops(study: Study, drops: Sequence[Dropout], names: Sequence[str]) -> None:
    for drop in drops:
        if drop.site not in names:
            remedy = f"the sites are {', '.join(names)}"
            raise ConfigError(f"--drop {drop}: the study has no site {drop.site!r}", remedy=remedy)
        if drop.round is not None and drop.round > study.rounds + 1:
            remedy = f"name a round up to {study.rounds + 1}, the closing evaluation"
            raise ConfigError(f"--drop {drop}: the study has no round {drop.round}", remedy=remedy)


def _check_budgets(study: Study, budgets: Mapping[str, float], names: Sequence[str]) -> None:
    for site in budgets:
        if site not in names:
            remedy = f"the sites are {', '.join(names)}"
            raise ConfigError(f"--budget {site}: the study has no site {site!r}", remedy=remedy)
    if budgets and study.privacy is None:
        raise ConfigError("--budget: the study spends no budget", remedy="add [privacy] to the study")


def _no_sum(carrier: SimulatedTransport) -> RoundAborted:
    """Why a study came to nothing: mostly every site gave up for the same reason, so one is enough."""
    message = "no round of the study came to a sum; nothing was learned and nothing revealed."
    if carrier.gave_up is None:
        return RoundAborted(message, remedy="let more sites take part")
    site, error = carrier.gave_up
    return RoundAborted(
        f"{message} {site} was the first to give up: {error.message}",
        remedy=error.remedy or "let more sites take part",
    )


def _no_round(progress: Progress) -> RoundAborted:
    """Sums of metrics may have come about: they are those of a model that no round has trained."""
    first = progress.reports[min(progress.reports)]
    count = "the only round was" if len(progress.reports) == 1 else f"all {len(progress.reports)} rounds were"
    why = f"{first.aborted} ({first.gave_up})" if first.gave_up else first.aborted
    message = f"{count} given up, so there is no trained model. The first: {why}"
    return RoundAborted(message, remedy="let more sites take part, or remove what makes them give up")


def _write_model(parties: Consortium, report: RunReport, out: Path) -> None:
    """Write the newest model, and let everyone who has one at the end name it in the own transcript."""
    newest, rounds = parties.server_program(), parties.terms.study.rounds
    data, metrics = encode_state(newest.model()), run_metrics_digest(report.to_json())
    write_atomic(out / MODEL_FILE, data)

    def name(log: Transcript, folder: Path, signer: bytes, program: ServerProgram, sums: int | None) -> None:
        own, measured = data, metrics
        # Under encrypted protection a site that missed the last sums has another model than the newest.
        if program is not newest:
            own, measured = (
                encode_state(program.model()),
                metrics_digest(program.metrics(), program.kept(rounds)),
            )
        entries = verify_file(folder / TRANSCRIPT_FILE, signer, TRANSCRIPT)
        record = ModelRecord.of(entries, own, rounds=program.kept(rounds), metrics=measured, sums=sums)
        log.append(MODEL, record.to_body())

    for site, held in parties.sites.items():
        if held.replica is not None:
            signer = parties.roster.public(site)
            name(parties.logs[site], site_folder(out, site), signer, held.replica, held.sums)
    if parties.run.server is not None:
        name(parties.log, out, parties.roster.aggregator, newest, None)
