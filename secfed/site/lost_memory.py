"""What a hospital that lost its memory must not do by itself, because nobody here knows what came before.

    STATE/from-backup/lost.json                  since when, and what a person has confirmed
    STATE/from-backup/[NUMBER/]ledger-*.jsonl    copies of ledgers from backups: they go on from each of these

While the first file is there, a person decides about every study whatever the policy says, and a ledger is
used only if it goes on from a copy, or a person has confirmed the data set by its name. What was confirmed
before memory was lost once more does not count.

Security: a backup says nothing of what came after it. A study may have been begun and withdrawn, a data set
may have got its first ledger; an agent that was started meanwhile may have begun either once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from secfed.config.schema import Strict, checked
from secfed.errors import ConfigError, TranscriptError
from secfed.runs.run_folder import FROM_BACKUP, dataset_of, ledger_file
from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

_FILE: Final = "lost.json"
_WARNING: Final = (
    "This site has lost part of its memory ({when}). A study that it may have begun before must not be "
    "approved: it would answer twice."
)


class LostMemory(Strict):
    """What ``lost.json`` holds."""

    version: Literal[1] = Field(description="1")
    lost_s: int = Field(ge=0, lt=private_files.LATEST_S, description="seconds since 1970")
    data_sets: tuple[str, ...] = Field(
        default=(), description="whose ledger is the newest, or whose budget is what is left"
    )
    policy_decides: bool = Field(default=False, description="no study from before can come again")


def lost_memory(state: Path) -> LostMemory | None:
    """What is known of it; None for a site that lost nothing. ConfigError: the file cannot be read."""
    path = _path(state)
    if not path.exists():
        return None
    return checked(LostMemory, private_files.read_json(path, "the mark of a restored site"), str(path))


def note_loss(state: Path, now: datetime) -> None:
    """From now on persons decide; nothing that they confirmed before counts."""
    _write(state, LostMemory(version=1, lost_s=int(now.timestamp())))


def asks_person(state: Path) -> bool:
    """Whether a person decides about every study, whatever the policy says."""
    lost = lost_memory(state)
    return lost is not None and not lost.policy_decides


def warning(state: Path) -> str:
    """What a person is told before a study is approved; empty for a site that lost nothing."""
    lost = lost_memory(state)
    if lost is None:
        return ""
    return _WARNING.format(when=datetime.fromtimestamp(lost.lost_s, UTC).date().isoformat())


def check_ledger(state: Path, dataset: str) -> None:
    """Refuse, with ``TranscriptError``, a ledger of which nobody knows what it lacks."""
    lost = lost_memory(state)
    if lost is None or dataset in lost.data_sets or any(copies(state, dataset)):
        return
    raise TranscriptError(
        f"data set {dataset!r}: this site has lost part of its memory, and nothing shows what was paid from "
        "the budget before",
        remedy=f"see docs/operators.md, back up and restore; then: secfed site confirm {dataset}",
    )


def confirm_data_set(state: Path, dataset: str) -> None:
    """A person says: its ledger in the state folder is the newest, or its budget is what is left."""
    if any(copies(state, dataset)):
        raise ConfigError(
            f"data set {dataset!r}: a backup has a ledger of it, and that must go on",
            remedy=f"put the newest copy back ({ledger_file(state, dataset)}); if that is lost, give the "
            "data set another name in policy.toml, with what is left of its budget, and confirm that name",
        )
    lost = _needed(state)
    _write(state, lost.model_copy(update={"data_sets": (*lost.data_sets, dataset)}))


def let_policy_decide(state: Path) -> None:
    """A person says: no study that this site began before it lost its memory will come again."""
    _write(state, _needed(state).model_copy(update={"policy_decides": True}))


def copies(state: Path, dataset: str) -> Iterator[Path]:
    """Copies from backups of a data set's ledger: of one history, or more."""
    folder = state / FROM_BACKUP
    for path in sorted([*folder.glob("ledger-*.jsonl"), *folder.glob("*/ledger-*.jsonl")]):
        if dataset_of(path) == dataset:
            yield path


def keep_copy(state: Path, name: str, data: bytes) -> Path:
    """Keep a copy of a ledger: of two with one history the one that knows more, of two histories both."""
    for number in itertools.count(1):
        path = state / FROM_BACKUP / (str(number) if number > 1 else "") / name
        known = path.read_bytes() if path.exists() else b""
        if known.startswith(data):
            return path
        if data.startswith(known):
            break
    with unwritable_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.replace(path, data)
    return path


def _needed(state: Path) -> LostMemory:
    lost = lost_memory(state)
    if lost is None:
        raise ConfigError("this site has lost nothing: there is nothing to confirm", remedy="go on")
    return lost


def _write(state: Path, lost: LostMemory) -> None:
    path = _path(state)
    with unwritable_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.replace(path, private_files.to_json(lost.model_dump(mode="json")))


def _path(state: Path) -> Path:
    return state / FROM_BACKUP / _FILE
