"""Where a study is and what it waits for, in one sentence: at the study centre, and at a hospital.

A hospital is told two numbers: how many are wanted and how many are there. Who they are, and why one is not,
is for the study centre alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from secfed.deploy.policy.absence import Absence

NOTHING, ARRIVALS, ANSWERS = 0, 1, 2  # what an aggregator waits for; numbers of the link

LEAST_SHARED: Final = 3  # of fewer, a number would be about one other hospital


@dataclass(frozen=True)
class Waits:
    """What an aggregator waits for: hospitals to connect, answers of a step, or neither."""

    kind: int = NOTHING
    done: int = 0  # so many are there
    of: int = 0  # so many are wanted

    @property
    def valid(self) -> bool:
        """Whether the numbers can be."""
        return self.kind in (NOTHING, ARRIVALS, ANSWERS) and 0 <= self.done <= self.of

    def shareable(self) -> Waits:
        """What hospitals may know of it: numbers, and only of three hospitals and more."""
        return self if self.kind != NOTHING and self.of >= LEAST_SHARED else Waits()

    def describe(self) -> str:
        """Such as "waiting for 1 more hospital (2 of 3 answered)"; empty where nothing is waited for."""
        missing = self.of - self.done
        if self.kind == NOTHING or missing <= 0:
            return ""
        more = f"waiting for {missing} more hospital{'s' if missing != 1 else ''}"
        if self.kind == ARRIVALS:
            return f"{more} to connect ({self.done} of {self.of} there)"
        return f"{more} ({self.done} of {self.of} answered)"


def where(number: int, rounds: int | None) -> str:
    """Such as "round 3 of 20"."""
    if rounds is None:
        return f"round {number}"
    return f"round {number} of {rounds}" if number <= rounds else "closing evaluation"


def now_at_hospital(status: Mapping[str, Any]) -> str:
    """What an agent is doing, or waits for and why."""
    if not status.get("running"):
        return "nothing: the agent is not running"
    state, why = status.get("state"), status.get("why")
    if state == Absence.REMOVED:
        return "removed: the study centre has taken this hospital out of its roster; ask there"
    if status.get("connection") != "connected":
        return "no connection to the study centre; it is tried again"
    if state in (Absence.REFUSED, Absence.FAILED):
        return f"the study does not run here: {why or 'see the last error'}"
    if state in set(Absence):
        return f"{state}: {why}"
    if state != "serving":
        return "waiting for a study to be served" if state == "idle" else "the study is over"
    number = status.get("round")
    place = "" if number is None else f"{where(number, status.get('rounds'))}, "
    if status.get("working"):
        return f"{place}this hospital is at work"
    if why:
        return f"{place}this hospital refused: {why}"
    waits = Waits(**(status.get("waits") or {}))
    return place + (waits.describe() or "waiting for the study centre")
