"""Payments that came to no sum: what a ledger spent on an exchange that the site's transcript lacks.

A site pays before it touches a record, so what is spent on a round that is given up stays spent. That is
sound, and worth showing: a budget can be used up by rounds of which nobody learns anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from secfed.audit.languages import said
from secfed.dp.ledger.ledger import SPENT
from secfed.records.hash_chain import Entry
from secfed.records.transcript import SUMMED

Place = tuple[int, str]  # round, exchange
_MOST: Final = 10  # rounds that are named


def paid_without_sum(
    ledger: Iterable[Entry], transcript: Iterable[Entry], study: str
) -> dict[Place, list[Entry]]:
    """Payments of one study for exchanges that the site was in no sum of, by round and exchange, in order.

    Both records are verified. The exchange that is running is among them.
    """
    summed = {_place(entry) for entry in transcript if entry.kind == SUMMED}
    found: dict[Place, list[Entry]] = {}
    for entry in ledger:
        if entry.kind == SPENT and entry.body.get("study") == study and _place(entry) not in summed:
            found.setdefault(_place(entry), []).append(entry)
    return found


def shown(places: Iterable[Place]) -> str:
    """Rounds for people: ``2 exchanges (rounds 1, 4)``."""
    listed = list(places)
    rounds = list(dict.fromkeys(number for number, _ in listed))
    text = "{count} exchange (round {rounds})"
    if len(listed) > 1:
        text = (
            "{count} exchanges (rounds {rounds})" if len(rounds) > 1 else "{count} exchanges (round {rounds})"
        )
    if len(rounds) > _MOST:
        text = "{count} exchanges (rounds {rounds} and {more} more)"
    first = ", ".join(map(str, rounds[:_MOST]))
    return said(text, count=len(listed), rounds=first, more=len(rounds) - _MOST)


def _place(entry: Entry) -> Place:
    number = entry.body.get("round")
    return number if isinstance(number, int) else 0, str(entry.body.get("exchange", ""))
