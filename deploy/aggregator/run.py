"""One run of a study at the study centre, whatever carries its messages; it outlives its process.

What is on the disk and why a restart sums nothing twice: ``secfed/server/checkpoints.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import torch
from pydantic import TypeAdapter, ValidationError

from secfed.algorithms.framework.base import Metrics
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity
from secfed.deploy.aggregator.measured_transport import MeasuredTransport
from secfed.deploy.aggregator.standstill import BEGINNINGS, standstill
from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.enrolment.rosters import save_roster
from secfed.errors import ConfigError, RoundAborted, StudyStopped, TranscriptError
from secfed.protection.interface import SiteId
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import Entry
from secfed.records.roster_file import ROSTER_FILE
from secfed.records.transcript import (
    ABORTED,
    CLOSED,
    MODEL,
    SETTINGS,
    SUMMED,
    TRANSCRIPT,
    Log,
    SumRecord,
    Transcript,
)
from secfed.runs.aggregator_saw import what_the_aggregator_saw, who_was_left_out, why_no_metrics
from secfed.runs.final_model import final_frame
from secfed.runs.machine import machine
from secfed.runs.model_record import ModelRecord, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, prepare, write_run
from secfed.runs.run_report import Observer, RoundReport, RunReport, chosen_round, complete
from secfed.server.checkpoints import RESUME_FOLDER, KeptRun
from secfed.server.coordinator import RoundOutcome, StudyRun
from secfed.server.make_run import make_run
from secfed.server.round import Rules
from secfed.storage import failpoints
from secfed.storage.atomic import write_durably
from secfed.wire.frames import encode_state
from secfed.wire.transport import OnReply

SUMS_FOLDER: Final = "sums"
_REPORTS: Final = TypeAdapter(list[RoundReport])  # of what asdict() made of them


class CentralRun:
    """One run, from the folder it lives in: new or empty, or that of this study's earlier start.

    ``make_carrier`` is given the transcript, for refusals, and makes what carries the messages.
    ``ConfigError``: the folder holds something else, or cannot be written; ``TranscriptError``: its records
    were changed.
    """

    def __init__(
        self,
        central: CentralStudy,
        identity: Identity,
        out: Path,
        make_carrier: Callable[[Log], MeasuredTransport],
        observer: Observer,
    ) -> None:
        self._central, self._identity, self._out, self._observer = central, identity, out, observer
        make_ready(out, central.id)
        path, digest = out / TRANSCRIPT_FILE, central.roster.digest
        self._transcript = Transcript(identity, study=central.id, roster_digest=digest, sink=path)
        try:
            entries = self._entries()
            if not any(entry.kind == SETTINGS for entry in entries):
                failpoints.failpoint("aggregate: before the settings are in the transcript")
                self._transcript.append(SETTINGS, central.study.settings(len(central.names)))
                entries = self._entries()
            save_roster(out / ROSTER_FILE, central.roster)
            self._carrier = make_carrier(self._transcript)
            self._kept = KeptRun(out, central.id, self._transcript, entries, self._carrier.ask)
        except BaseException:
            self._transcript.close()
            raise
        self._asked: dict[SiteId, None] = {}  # of this round, in order
        self._cohort: tuple[SiteId, ...] = ()  # of the last exchange that was begun
        self._stage = ""  # of the last question in this round
        self.final_frame = (
            b""  # in the end, what brings the model to a site; empty if the aggregator has none
        )
        self._waited_for: set[SiteId] = set()  # for which one round was lost already
        try:
            self._reports = {report.round: report for report in self._read_reports()}
            self._coordinator = self._assemble()
        except BaseException:
            self.close()
            raise

    def _read_reports(self) -> list[RoundReport]:
        try:
            return _REPORTS.validate_python(self._kept.notes.get("rounds", []), extra="forbid")
        except ValidationError:
            raise TranscriptError(
                f"{self._out}: the checkpoint's reports of rounds cannot be read",
                remedy="resume with the version of secfed that wrote it, or begin anew in another folder",
            ) from None

    def _ask(self, stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
        # Within a stage single sites are asked again, for keys and to catch up: nobody else is waited for.
        self._carrier.begins = stage != self._stage
        self._stage = stage
        if self._carrier.begins and stage in BEGINNINGS:
            self._cohort = tuple(requests)
        if stage == "train":
            self._asked.update(dict.fromkeys(requests))  # here, because a repeated step is not carried
        self._kept.asks.ask(stage, requests, on_reply)

    def _assemble(self) -> StudyRun:
        central, kept = self._central, self._kept
        study = central.study
        rules = Rules.of(
            study, self._identity, central.roster, central.protection, central.asked, central.names
        )
        sums = self._out / SUMS_FOLDER
        algorithm, start = central.algorithm, central.start
        return make_run(algorithm, study.rounds, rules, self._ask, kept.log, kept, start=start, sums=sums)

    @property
    def resumed(self) -> bool:
        """Whether this goes on with an earlier start."""
        return self._kept.resumed

    def run(self, *, end: bool = False) -> RunReport:
        """Run what is left of the study, and write its results.

        ``StudyStopped``: the next rounds could come to no sum, nothing is written, and it can go on;
        ``RoundAborted``: not one sum came about.
        """
        study = self._central.study
        self._observer.started(study.name, self._central.names, study.rounds)
        for number in sorted(self._reports):
            self._observer.round_kept(self._reports[number])
        clock = time.perf_counter()
        self._carrier.start_round(self._kept.start.round)

        def finished(outcome: RoundOutcome) -> None:
            nonlocal clock
            report = self._carrier.report(outcome, time.perf_counter() - clock)
            self._add(replace(report, asked=tuple(self._asked)), self._metrics())
            self._asked.clear()
            self._stage = ""
            self._carrier.start_round(outcome.round + 1)
            clock = time.perf_counter()

        if not end:
            self._coordinator.run(finished, self._standstill)
        report = self._report()
        self._write(report)
        self._kept.asks.end()
        self._observer.finished(report)
        return report

    def _standstill(self, outcome: RoundOutcome) -> StudyStopped | None:
        """Why no further round should be begun after one that was aborted."""
        study = self._central.study
        needed = max(study.protection.min_cohort, self._central.threshold(len(self._cohort)))

        def failed(sites: Collection[SiteId]) -> set[SiteId]:
            # Once: a hospital that comes back and fails again would cost the others a round every time.
            again = self._waited_for.intersection(sites)
            self._waited_for.update(sites)
            return set() if again else set(self._carrier.failed(sites))

        return standstill(outcome.round, self._cohort, needed, self._carrier.refusals, failed)

    def record_end(self, delivered: Collection[SiteId]) -> None:
        """The study is over: close the transcript, naming the sites that say that they have the model."""
        self._transcript.append(CLOSED, self._transcript.closing(delivered=sorted(delivered)))

    def close(self) -> None:
        """Close the files; what is in them stays."""
        self._kept.asks.close()
        self._transcript.close()

    def _entries(self) -> tuple[Entry, ...]:
        return verify_file(self._out / TRANSCRIPT_FILE, self._identity.public_bytes, TRANSCRIPT)

    def _metrics(self) -> Mapping[int, Metrics]:
        return {} if self._coordinator.server is None else self._coordinator.server.metrics()

    def _add(self, report: RoundReport, metrics: Mapping[int, Metrics]) -> None:
        if report.round <= self._central.study.rounds:  # the closing evaluation has no row of its own
            self._reports[report.round] = report
            self._observer.round_finished(report)
        complete(self._reports, metrics, self._observer)
        self._kept.notes["rounds"] = [asdict(self._reports[number]) for number in sorted(self._reports)]

    def _report(self) -> RunReport:
        study, algorithm = self._central.study, self._central.algorithm
        entries = self._entries()
        sums = [SumRecord.from_body(entry.body) for entry in entries if entry.kind == SUMMED]
        ended = [entry.body for entry in entries if entry.kind == ABORTED]
        closing = [str(body["reason"]) for body in ended if body["round"] == study.rounds + 1]
        if not sums:
            raise RoundAborted(
                "no round of the study came to a sum; nothing was learned and nothing revealed.",
                remedy="see in the transcript who refused or was missing, and why",
            )
        metrics, server = self._metrics(), self._coordinator.server
        plans = [plan for number in range(1, study.rounds + 2) for plan in algorithm.exchanges(number)]
        saw = what_the_aggregator_saw(
            study.protection.kind,
            sums=len(sums),
            survivors=[len(record.survivors) for record in sums],
            layouts=(plan.layout for plan in plans),
            words=algorithm.field_words(),
        )
        more = who_was_left_out(algorithm.left_out()), why_no_metrics(study.protection.kind)
        return RunReport(
            study=study.name,
            algorithm=study.algorithm.name,
            protection=study.protection.kind,
            sites=self._central.names,
            rounds=tuple(self._reports[number] for number in sorted(self._reports)),
            final=metrics.get(
                study.rounds if server is None else server.kept(study.rounds), {}
            ),  # only a closing evaluation that came to a sum measures it
            saw=" ".join(filter(None, (saw, *more))),
            initial=metrics.get(0),
            closing_aborted=closing[0] if closing else None,
            start=study.model.start_sha256,
            **({} if server is None else chosen_round(server, study.rounds)),
            machine=machine(torch.get_num_threads()),
        )

    def _write(self, report: RunReport) -> None:
        server = self._coordinator.server
        data = b"" if server is None else encode_state(server.model())
        failpoints.failpoint("aggregate: before the results are written")
        if data:
            write_durably(self._out / MODEL_FILE, data)
        failpoints.failpoint("aggregate: after the model is written")
        if server is not None:
            metrics = run_metrics_digest(report.to_json())
            rounds = server.kept(self._central.study.rounds)
            record = ModelRecord.of(self._entries(), data, rounds=rounds, metrics=metrics)
            self._kept.log.append(MODEL, record.to_body())
            self.final_frame = final_frame(
                self._identity, self._central.roster, self._central.id, record, data
            )
        write_run(report, self._out)
        failpoints.failpoint("aggregate: after the results are written")


def make_ready(out: Path, study: str) -> None:
    """Create the folder of a run, or accept that of an earlier start of the same study."""
    if not (out / TRANSCRIPT_FILE).is_file():
        prepare(out)
        return
    with (out / TRANSCRIPT_FILE).open("rb") as file:
        line = file.readline(1 << 16)
    if line.endswith(b"\n") and study.encode() not in line:
        raise ConfigError(
            f"--out {out}: holds a run of another study, or of another version of this study file",
            remedy="name another folder; a study that has begun cannot be changed",
        )
    if not (out / RESUME_FOLDER).is_dir() and any(out.glob("sites/*")):
        raise ConfigError(f"--out {out}: holds a simulation", remedy="name another folder")
