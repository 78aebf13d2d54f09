"""The model that a simulation writes, and who says so in a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secfed.algorithms.framework.base import ServerProgram
from secfed.records.chain_file import verify_file
from secfed.records.transcript import MODEL, TRANSCRIPT, Transcript
from secfed.runs.model_record import ModelRecord, metrics_digest, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import RunReport
from secfed.storage.atomic import write_atomic
from secfed.wire.frames import encode_state


@dataclass(frozen=True)
class ModelHolder:
    """A party that has the model at the end: its transcript, and the server program that it ran."""

    log: Transcript
    public_bytes: bytes
    path: Path
    program: ServerProgram
    sums: int | None = None


def write_model(
    out: Path, program: ServerProgram, report: RunReport, holders: Sequence[ModelHolder], rounds: int
) -> None:
    """Write the newest model, and name every holder's own in its transcript."""
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
