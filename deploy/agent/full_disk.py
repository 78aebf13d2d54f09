"""A full disk at the end of a study: the finished model is not given up, it waits for room.

The model comes once, and what it is made of is destroyed when the study is over. Whatever else a full disk
keeps from being written is refused, and the agent takes no part until there is room for a whole exchange:
were it counted as there, the next round would fail like the last, and the other hospitals pay for it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from secfed.crypto.identity import Roster
from secfed.deploy.admission.admission import frame_caps
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.errors import DiskFull, SecfedError
from secfed.site.terms import Terms

log = logging.getLogger("secfed.agent")

AGAIN_S: Final = 5.0
_COPIES: Final = (
    4  # of an update: as trained, as it leaves, and both anew beside the old before they replace it
)

T = TypeVar("T")


def is_full(error: SecfedError | None) -> bool:
    """Whether it was a full disk; of a transcript or a journal it is another class of error."""
    return error is not None and error.exit_code == DiskFull.exit_code


class Room:
    """Room on the disk, which is looked at after it was lacking."""

    def __init__(self, state: Path) -> None:
        self._state, self._was_full = state, False

    def note(self, error: SecfedError) -> None:
        """Why the agent stopped working in a study."""
        self._was_full = is_full(error)

    def check(self, terms: Terms, roster: Roster) -> None:
        """Refuse to begin where what a whole exchange writes does not fit; DiskFull."""
        if not self._was_full:
            return
        needed, free = room_bytes(frame_caps(terms, roster)), shutil.disk_usage(self._state).free
        if free < needed:
            raise DiskFull(
                f"{self._state}: {free / 1e6:.0f} MB are free, and an exchange writes up to "
                f"{needed / 1e6:.0f} MB",
                remedy="free space on that disk; the agent goes on by itself",
            )
        self._was_full = False


def room_bytes(caps: FrameCaps) -> int:
    """What an exchange writes at most."""
    return _COPIES * caps.answer_bytes + 2 * caps.request_bytes


def when_there_is_room(
    act: Callable[[], T],
    board: StatusBoard,
    pause: Callable[[float], bool],
    mend: Callable[[], None] = lambda: None,
) -> T:
    """Do what writes the finished model; again and again while the disk is full.

    Args:
        act: may be done again.
        board: says meanwhile why nothing goes on.
        pause: waits so many seconds; True where the agent is to end.
        mend: comes before every further try; what failed to be written may refuse everything until then.

    Raises:
        SecfedError: the disk is full, and the agent is to end; or something else is wrong.
    """
    told = False
    while True:
        try:
            if told:
                mend()
            return act()
        except SecfedError as error:
            if not is_full(error):
                raise
            board.set(state=str(Absence.FAILED), why=str(error))
            if not told:
                board.error(str(error))
                log.error("a finished model waits for room on the disk: %s", error)
                told = True
            if pause(AGAIN_S):
                raise
