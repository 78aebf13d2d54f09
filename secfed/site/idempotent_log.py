"""A site's transcript when messages may be handled twice: what it says about a sum, it says once.

A crash can come between an entry and the answer it belongs to. The answer is then found again by handling
the message again, and the entry is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from secfed.records.hash_chain import Entry
from secfed.records.transcript import (
    CLOSED,
    COMPLAINED,
    FOLLOWED,
    MODEL,
    REFUSED,
    RELEASED,
    SETTINGS,
    SUMMED,
    Log,
)

_ONCE = {
    RELEASED: ("round", "exchange", "attempt"),
    SUMMED: ("round", "exchange", "attempt"),
    FOLLOWED: ("round", "exchange", "attempt"),
    COMPLAINED: ("round", "exchange", "attempt", "of"),
    REFUSED: ("round", "exchange"),
    SETTINGS: (),
    MODEL: ("sha256",),
    CLOSED: ("sums",),
}


class IdempotentLog:
    """Leaves out entries that are there already."""

    def __init__(
        self,
        log: Log,
        entries: Iterable[Entry],
        on_entry: Callable[[str, Mapping[str, object]], None] = lambda _kind, _body: None,
    ) -> None:
        self._log, self._on_entry = log, on_entry
        self._known = {_place(entry.kind, entry.body) for entry in entries if entry.kind in _ONCE}

    def append(self, kind: str, body: Mapping[str, object]) -> object:
        """Append one entry, durably, unless it is there; None then."""
        place = _place(kind, body) if kind in _ONCE else None
        if place in self._known:
            return None
        entry = self._log.append(kind, body)
        if place is not None:
            self._known.add(place)  # only now: an entry that could not be written is not there
        self._on_entry(kind, body)
        return entry


def _place(kind: str, body: Mapping[str, object]) -> tuple[object, ...]:
    found = (body.get(name) for name in _ONCE[kind])
    return kind, *(tuple(value) if isinstance(value, list) else value for value in found)
