"""A site's transcript says about a sum what it says once, and not never."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from secfed.errors import TranscriptError
from secfed.records.transcript import COMPLAINED, REFUSED, RELEASED
from secfed.site.idempotent_log import IdempotentLog

SUM = {"round": 1, "exchange": "update", "attempt": 0}


class Disk:
    """A log whose disk is full until it is told otherwise."""

    def __init__(self) -> None:
        self.full = True
        self.entries: list[tuple[str, Mapping[str, object]]] = []

    def append(self, kind: str, body: Mapping[str, object]) -> object:
        if self.full:
            raise TranscriptError("transcript.jsonl: cannot write", remedy="free space")
        self.entries.append((kind, body))
        return len(self.entries)


@pytest.mark.parametrize(("kind", "body"), [(RELEASED, SUM), (REFUSED, SUM), ("settings", {})])
def test_an_entry_that_could_not_be_written_is_written_the_next_time(
    kind: str, body: Mapping[str, object]
) -> None:
    """Otherwise shares would leave at the second asking, and leave no trace."""
    disk, told = Disk(), list[str]()
    log = IdempotentLog(disk, (), lambda kind, _body: told.append(kind))
    for _ in range(2):
        with pytest.raises(TranscriptError):
            log.append(kind, body)
    assert told == []
    disk.full = False
    assert log.append(kind, body) == 1
    assert log.append(kind, body) is None
    assert (disk.entries, told) == ([(kind, body)], [kind])


def test_another_complaint_in_the_place_of_one_that_did_not_leave_is_written_too() -> None:
    """Otherwise the transcript accuses another site than the complaint that left."""
    disk = Disk()
    disk.full = False
    log = IdempotentLog(disk, ())
    for accused in ("hospital-1", "hospital-3", "hospital-1"):
        log.append(COMPLAINED, {**SUM, "of": [accused]})
    assert [body["of"] for _, body in disk.entries] == [["hospital-1"], ["hospital-3"]]
