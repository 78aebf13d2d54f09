"""Why a hospital takes no part in a study now: one word each, at the hospital and at the study centre.

held      a person at the hospital has to approve it first
paused    the hospital's agent takes no new work
waiting   for the hours in which the hospital's policy lets studies work
refused   the hospital's policy, or a person there, does not permit it
failed    something at the hospital has to be put right first
removed   the study centre has taken the hospital out of the roster

The words travel in the text of a refusal, which both sides read here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from secfed.errors import PolicyRefused

HELD_TEXT: Final = "waits for the approval of this site"
PAUSED_TEXT: Final = "this site has paused its agent"
WAITING_TEXT: Final = "waits for the hours of this site"
REMOVED_TEXT: Final = "was removed from the roster"


class Absence(StrEnum):
    """Why a hospital takes no part."""

    HELD = "held"
    PAUSED = "paused"
    WAITING = "waiting"
    REFUSED = "refused"
    FAILED = "failed"
    REMOVED = "removed"

    @classmethod
    def of(cls, kind: str, text: str) -> Absence:
        """What a refusal means: the class of its error, and its text."""
        if kind != PolicyRefused.__name__:
            return cls.FAILED
        said = text.partition(":")[0]  # what follows quotes the study, whose author could write these words
        for words, state in _TEXTS.items():
            if words in said:
                return state
        return cls.REFUSED


_TEXTS: Final = {
    HELD_TEXT: Absence.HELD,
    PAUSED_TEXT: Absence.PAUSED,
    WAITING_TEXT: Absence.WAITING,
    REMOVED_TEXT: Absence.REMOVED,
}
