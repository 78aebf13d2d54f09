"""Whether the models beside the transcripts of a run are those that the transcripts name.

1. A ``model.safetensors`` beside a transcript is, byte for byte, the last one that this transcript names.
   Beside that of an aggregator that names none (encrypted protection) it is the newest that a site names.
2. What a site was given was signed by the aggregator.
3. All parties name one model: the sites the aggregator's; without one, those that took as many sums the same.
4. The metrics in ``run.json`` are those that were recorded with the model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secfed.audit.languages import said
from secfed.audit.party import Findings, Party
from secfed.crypto.identity import Roster
from secfed.errors import BadSignature, TranscriptError
from secfed.records.transcript import MODEL, SUMMED
from secfed.runs.final_model import check_signature
from secfed.runs.model_record import ModelRecord, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE, RUN_FILE

Named = tuple[int, ModelRecord]  # line of the newest model's entry, and what it says


@dataclass(frozen=True)
class FoundModel:
    """One model that a transcript names."""

    owner: str  # in whose folder the file belongs
    is_own: bool  # False where a simulation put a site's newest model beside the aggregator's files
    record: ModelRecord
    path: Path  # where the file belongs
    is_here: bool
    is_right: bool  # the file is that model


def check_models(main: Party, sites: Sequence[Party], roster: Roster, found: Findings) -> list[FoundModel]:
    """Check every model that is named; ``main`` is the aggregator's transcript."""
    by_site = {site.owner: model for site in sites if (model := _last_model(site, found)) is not None}
    for site in sites:
        line, record = by_site.get(site.owner, (0, None))
        try:
            if record is not None and record.signature:
                check_signature(record, roster, site.study)
        except BadSignature:
            found.problem(site.path, line, "the aggregator's signature over the model does not verify")
    central = _last_model(main, found)
    if central is not None:  # it comes after every sum that the aggregator recorded
        line, record = central
        sums, before = len(main.summed), sum(entry.kind == SUMMED for entry in main.entries[:line])
        if not record.sums == sums == before:
            text = "names a model after {of} sums, and the transcript has {sums}"
            why = said(text, of=record.sums, sums=sums)
            found.problem(main.path, line, why)
    _compare(central, sites, by_site, found)
    records = {owner: record for owner, (_, record) in by_site.items()}
    newest = max(records.values(), key=lambda record: record.sums, default=None)
    if central is None and newest is not None:
        for site in sites:
            sums = records.get(site.owner, newest).sums
            if sums < newest.sums:
                text = (
                    "{file}: names the model after {sums} sums of {of}; the later ones never "
                    "reached this site"
                )
                found.notes.append(said(text, file=site.path, sums=sums, of=newest.sums))
    released = newest if central is None else central[1]
    models: list[FoundModel] = []
    for party, record in [(main, released), *((site, records.get(site.owner)) for site in sites)]:
        if not party.entries:
            continue
        path = party.path.parent / MODEL_FILE
        is_own = party is not main or central is not None
        if record is not None and (path.is_file() or is_own):
            models.append(_compare_file(party.owner, is_own, record, path, found))
        elif path.is_file():
            text = (
                "{file}: no transcript here names a model, so nothing shows which study it is of (a run "
                "that was stopped before its end, or one of an older version)"
            )
            found.notes.append(said(text, file=path))
    if released is not None and released.metrics and main.entries:
        _check_run_json(main.path.parent / RUN_FILE, released, central is None, found)
    return models


def _last_model(party: Party, found: Findings) -> Named | None:
    for entry in reversed(party.entries):
        if entry.kind == MODEL:
            try:
                return entry.seq + 1, ModelRecord.from_body(entry.body)
            except TranscriptError as error:
                found.problem(party.path, entry.seq + 1, error.message)
                return None
    return None


def _compare_file(owner: str, is_own: bool, record: ModelRecord, path: Path, found: Findings) -> FoundModel:
    is_here, is_right = path.is_file(), False
    if is_here:
        try:
            with path.open("rb") as file:
                is_right = hashlib.file_digest(file, "sha256").digest() == record.sha256
            if not is_right:
                found.problem(path, None, "is not the model that the transcript names")
        except OSError as error:
            found.problem(path, None, os.strerror(error.errno or 0))
    return FoundModel(owner, is_own, record, path, is_here, is_right)


def _compare(
    central: Named | None, sites: Sequence[Party], by_site: Mapping[str, Named], found: Findings
) -> None:
    """One study ends with one model."""
    paths = {site.owner: site.path for site in sites}
    first: dict[int, tuple[str, int, ModelRecord]] = {}
    for owner, (line, record) in by_site.items():
        if central is not None:
            known = ("the aggregator", *central)
        else:
            known = first.setdefault(record.sums, (owner, line, record))
        if (record.sha256, record.sums) != (known[2].sha256, known[2].sums):
            text = "names another model than line {line} of {owner}'s transcript"
            why = said(text, line=known[1], owner=known[0])
            found.problem(paths[owner], line, why)


def _check_run_json(path: Path, record: ModelRecord, may_lack: bool, found: Findings) -> None:
    """Compare metrics; ``may_lack`` where only the sites know any: the aggregator of encrypted sums."""
    if not path.is_file():
        return
    try:
        content = json.loads(path.read_bytes())
        metrics = run_metrics_digest(content if isinstance(content, dict) else {})
    except OSError as error:
        found.problem(path, None, os.strerror(error.errno or 0))
    except (ValueError, RecursionError, TranscriptError):
        found.problem(path, None, "cannot be read")
    else:
        if metrics != record.metrics and (metrics or not may_lack):
            found.problem(path, None, "its metrics are not those that the transcript names")
