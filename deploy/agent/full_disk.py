"""A full disk at the end of a study: the finished model is not given up, it waits for room.

The model comes once, and what it is made of is destroyed when the study is over. Whatever else a full disk
keeps from being written is refused, and the agent takes no part until there is room for a whole exchange:
were it counted as there, the next round would fail like the last, and the other hospitals pay for it.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from secfed.crypto.identity import Roster
from secfed.deploy.admission.admission import frame_caps
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.errors import DiskFull, SecfedError
from secfed.site.terms import Terms
from secfed.storage.atomic import PART, hidden_beside, unwritable_errors

log = logging.getLogger("secfed.agent")

AGAIN_S: Final = 5.0
AGAIN_AFTER_S: Final = 60.0  # between two tries of what may be a long write
_TRIED: Final = "room"  # name of files that are tried
# Of an update: as trained, as it leaves, and both anew beside the old before they replace it.
_COPIES: Final = 4

T = TypeVar("T")


def is_full(error: SecfedError | None) -> bool:
    """Whether it was a full disk; of a transcript or a journal it is another class of error."""
    return error is not None and error.exit_code == DiskFull.exit_code


class Room:
    """Room on the disk, looked at when the agent starts and after it was lacking.

    It is tried out, since a quota, or a disk that takes no more files, shows as free space.
    """

    def __init__(self, state: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._state, self._now_s = state, now_s
        self._is_there, self._again_s = False, 0.0

    def note(self, error: SecfedError) -> None:
        """Why the agent stopped working in a study."""
        if is_full(error):
            self._is_there, self._again_s = False, 0.0

    def check(self, terms: Terms, roster: Roster) -> None:
        """Refuse to begin where what a whole exchange writes does not fit; DiskFull."""
        if self._is_there:
            return
        caps = frame_caps(terms, roster)
        if self._now_s() >= self._again_s:
            self._again_s = self._now_s() + AGAIN_AFTER_S
            self._is_there = _fits(self._state, _sizes(caps))
        if not self._is_there:
            raise DiskFull(
                f"{self._state}: an exchange writes up to {room_bytes(caps) / 1e6:.0f} MB in files, and they "
                "do not fit",
                remedy="free space or files on that disk, or raise the quota; the agent goes on by itself",
            )


def _sizes(caps: FrameCaps) -> list[int]:
    """The files that an exchange writes."""
    return [caps.answer_bytes] * _COPIES + [caps.request_bytes] * 2


def room_bytes(caps: FrameCaps) -> int:
    """What an exchange writes at most."""
    return sum(_sizes(caps))


def _fits(folder: Path, sizes: Sequence[int]) -> bool:
    """Whether files of these sizes fit: they are written, and gone afterwards.

    Raises:
        ConfigError: something else is wrong there.
    """
    for left in folder.glob(f".{_TRIED}.*{PART}"):  # by a process that was killed
        left.unlink(missing_ok=True)
    if shutil.disk_usage(folder).free < sum(sizes):
        return False
    block = secrets.token_bytes(1 << 20)  # random, for a disk that compresses
    try:
        with unwritable_errors(folder), ExitStack() as written:
            for size in sizes:
                parts = [block] * (size // len(block)) + [block[: size % len(block)]]
                written.enter_context(hidden_beside(folder / _TRIED, *parts))
    except DiskFull:
        return False
    return True


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
