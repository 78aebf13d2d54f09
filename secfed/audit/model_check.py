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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secfed.crypto.identity import Roster
from secfed.errors import BadSignature, TranscriptError
from secfed.records.hash_chain import Entry
from secfed.records.transcript import MODEL, SUMMED
from secfed.runs.final_model import check_signature
from secfed.runs.model_record import ModelRecord, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE, RUN_FILE

NOT_NAMED = "is not the model that the transcript names"
Tell = Callable[[Path, int | None, str], None]  # told of each problem: file, line, why


@dataclass(frozen=True)
class FoundModel:
    """One model that a transcript names.

    Attributes:
        owner: in whose folder the file belongs.
        is_own: whether the owner's own transcript names it; a simulation under encrypted protection puts the
            newest model of its sites into the aggregator's folder.
        record: what was written about it.
        path: where the file belongs.
        is_here: whether there is such a file.
        is_right: whether it is that model.
    """

    owner: str
    is_own: bool
    record: ModelRecord
    path: Path
    is_here: bool
    is_right: bool


@dataclass(frozen=True)
class Party:
    """One party's verified transcript.

    Attributes:
        owner: its owner.
        path: of the transcript.
        entries: verified; empty if it is not here or does not verify.
    """

    owner: str
    path: Path
    entries: Sequence[Entry]

    def last_model(self, tell: Tell) -> tuple[int, ModelRecord] | None:
        """The line that names the newest model, and what it says."""
        for entry in reversed(self.entries):
            if entry.kind == MODEL:
                try:
                    return entry.seq + 1, ModelRecord.from_body(entry.body)
                except TranscriptError as error:
                    tell(self.path, entry.seq + 1, error.message)
                    return None
        return None


def check_models(
    main: Party, sites: Sequence[Party], roster: Roster, tell: Tell, note: Callable[[Path, str], None]
) -> list[FoundModel]:
    """Check every model of a run.

    Args:
        main: the aggregator's transcript.
        sites: those of sites.
        roster: whose keys to believe.
        tell: told of everything that is wrong.
        note: told of what is worth knowing about a file.

    Returns:
        The models that are named.
    """
    named = {party.owner: model for party in sites if (model := party.last_model(tell)) is not None}
    for party in sites:
        if party.owner in named:
            _check_signature(party, *named[party.owner], roster, tell)
    central = main.last_model(tell)
    if central is not None:
        _check_sums(main, *central, tell)
    _compare(central, {party.owner: party for party in sites}, named, tell)
    here = central[1] if central is not None else _newest(named)
    models: list[FoundModel] = []
    records = {owner: record for owner, (_, record) in named.items()}
    for party, record in [(main, here), *((party, records.get(party.owner)) for party in sites)]:
        if not party.entries:
            continue
        path = party.path.parent / MODEL_FILE
        if record is not None and (path.is_file() or party is not main or central is not None):
            is_own = party is not main or central is not None
            models.append(_look(party.owner, is_own, record, path, tell))
        elif path.is_file():
            note(
                path,
                "no transcript here names a model, so nothing shows which study it is of (a run that was "
                "stopped before its end, or one of an older version)",
            )
    if here is not None and here.metrics and main.entries:
        _check_run_json(main.path.parent / RUN_FILE, here, may_lack=central is None, tell=tell)
    return models


def _check_signature(party: Party, line: int, record: ModelRecord, roster: Roster, tell: Tell) -> None:
    if record.signature:
        try:
            check_signature(record, roster, str(party.entries[0].body.get("study", "")))
        except BadSignature:
            tell(party.path, line, "the aggregator's signature over the model does not verify")


def _newest(named: Mapping[str, tuple[int, ModelRecord]]) -> ModelRecord | None:
    return max((record for _, record in named.values()), key=lambda record: record.sums, default=None)


def _look(owner: str, is_own: bool, record: ModelRecord, path: Path, tell: Tell) -> FoundModel:
    """Compare a file with what was written about it."""
    if not path.is_file():
        return FoundModel(owner, is_own, record, path, is_here=False, is_right=False)
    try:
        with path.open("rb") as file:
            is_right = hashlib.file_digest(file, "sha256").digest() == record.sha256
    except OSError as error:
        tell(path, None, os.strerror(error.errno or 0))
        return FoundModel(owner, is_own, record, path, is_here=True, is_right=False)
    if not is_right:
        tell(path, None, NOT_NAMED)
    return FoundModel(owner, is_own, record, path, is_here=True, is_right=is_right)


def _check_sums(main: Party, line: int, record: ModelRecord, tell: Tell) -> None:
    """The aggregator's model comes after every sum that the aggregator recorded."""
    sums = sum(entry.kind == SUMMED for entry in main.entries)
    before = sum(entry.kind == SUMMED for entry in main.entries[:line])
    if not record.sums == sums == before:
        tell(main.path, line, f"names a model after {record.sums} sums, and the transcript has {sums}")


def _compare(
    central: tuple[int, ModelRecord] | None,
    sites: Mapping[str, Party],
    named: Mapping[str, tuple[int, ModelRecord]],
    tell: Tell,
) -> None:
    """One study ends with one model."""
    first: dict[int, tuple[str, int, ModelRecord]] = {}
    for owner, (line, record) in named.items():
        if central is not None:
            known = ("the aggregator", *central)
        else:
            known = first.setdefault(record.sums, (owner, line, record))
        if (record.sha256, record.sums) != (known[2].sha256, known[2].sums):
            path = sites[owner].path
            tell(path, line, f"names another model than line {known[1]} of {known[0]}'s transcript")


def _check_run_json(path: Path, record: ModelRecord, *, may_lack: bool, tell: Tell) -> None:
    """Compare metrics; ``may_lack`` where only the sites know any: the aggregator of encrypted sums."""
    if not path.is_file():
        return
    try:
        content = json.loads(path.read_bytes())
        found = run_metrics_digest(content if isinstance(content, dict) else {})
    except OSError as error:
        tell(path, None, os.strerror(error.errno or 0))
        return
    except (ValueError, RecursionError, TranscriptError):
        tell(path, None, "cannot be read")
        return
    if found != record.metrics and (found or not may_lack):
        tell(path, None, "its metrics are not those that the transcript names")
