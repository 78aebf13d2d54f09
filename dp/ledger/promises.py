"""What studies were promised of a data set's budgets: all that each will pay, before it pays first.

    promised -> paid ... -> ended: what was not used is free again

A study that begins can so be finished: nobody else gets what it still needs. Whose promise stands longer goes
first, so that budgets which were lowered meanwhile stop the newest studies only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from secfed.dp.accounting.events import Event, compose, from_value, to_value
from secfed.errors import ConfigError, TranscriptError
from secfed.records.hash_chain import Entry

# Kinds of entries in a ledger.
PROMISED = "promised"  # what one study will pay in all, and what of it is still to come
ENDED = "ended"  # the study pays no more
_SPENT: Final = "spent"


@dataclass(frozen=True)
class Promise:
    """What a study will pay."""

    whole: tuple[Event, ...]  # from its first payment to its last
    rest: tuple[Event, ...]  # not paid yet

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Read the body of an entry; TranscriptError if it cannot be read."""
        try:
            whole, rest = ([from_value(event) for event in body[name]] for name in ("whole", "rest"))
        except (ConfigError, KeyError, TypeError):
            raise TranscriptError("a ledger entry about a promise is incomplete") from None
        return cls(compose(whole), compose(rest))

    def to_body(self) -> dict[str, Any]:
        """Body of a :data:`PROMISED` entry, without the study."""
        parts = {"whole": self.whole, "rest": self.rest}
        return {name: [to_value(event) for event in events] for name, events in parts.items()}


def promises(entries: Iterable[Entry]) -> dict[str, Promise]:
    """The promises that stand, by study, the oldest first."""
    found: dict[str, Promise] = {}
    for entry in entries:
        study = str(entry.body.get("study"))
        if entry.kind == PROMISED:
            found[study] = Promise.from_body(entry.body)
        elif entry.kind == ENDED:
            found.pop(study, None)
    return {study: _after(entries, study, promise) for study, promise in found.items()}


def still_to_pay(entries: Sequence[Entry], study: str, whole: Sequence[Event]) -> tuple[Event, ...]:
    """What a study that will pay ``whole`` in all still has to pay.

    Where records were added or taken away since the last promise, its steps are others than those that were
    paid: then as large a part is still to come as was before.
    """
    plan = compose(whole)
    newest = next((e for e in reversed(entries) if e.kind == PROMISED and e.body.get("study") == study), None)
    if newest is None:
        return _less(plan, _paid(entries, study))
    before = Promise.from_body(newest.body)
    left = _after(entries, study, before).rest
    if before.whole == plan:
        return left
    part = sum(event.times for event in left) / max(1, sum(event.times for event in before.whole))
    return tuple(event.repeated(math.ceil(event.times * part)) for event in plan) if part else ()


def older(entries: Sequence[Entry], study: str) -> dict[str, Promise]:
    """The promises that a study's own comes after; without one, all."""
    found: dict[str, Promise] = {}
    for other, promise in promises(entries).items():
        if other == study:
            break
        found[other] = promise
    return found


def to_come(entries: Sequence[Entry], study: str, rest: Iterable[Event]) -> tuple[Event, ...]:
    """What budgets have to cover beside all that was spent, if a study still has to pay ``rest``.

    That and what older promises still need. A study that has to pay nothing asks nothing of them.
    """
    asked = tuple(rest)
    before = older(entries, study).values() if asked else ()
    return (*asked, *(event for promise in before for event in promise.rest))


def _after(entries: Iterable[Entry], study: str, promise: Promise) -> Promise:
    """A study's newest promise, less what was paid since."""
    since: list[Entry] = []
    for entry in entries:
        if entry.kind == PROMISED and entry.body.get("study") == study:
            since = []
        since.append(entry)
    return Promise(promise.whole, _less(promise.rest, _paid(since, study)))


def _paid(entries: Iterable[Entry], study: str) -> Iterable[Event]:
    for entry in entries:
        if entry.kind == _SPENT and entry.body.get("study") == study:
            try:
                yield from_value(entry.body.get("event"))
            except ConfigError as error:
                raise TranscriptError(f"a ledger entry about spending: {error.message}") from None


def _less(events: Iterable[Event], paid: Iterable[Event]) -> tuple[Event, ...]:
    """Events less those that were paid, mechanism by mechanism."""
    done: Counter[Event] = Counter()
    for event in paid:
        done[event.repeated(1)] += event.times
    left = ((event, event.times - done[event.repeated(1)]) for event in compose(events))
    return tuple(event.repeated(times) for event, times in left if times > 0)
