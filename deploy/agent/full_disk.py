"""A full disk at the end of a study: the finished model is not given up, it waits for room.

Whatever else a full disk keeps from being written is asked for again, or refused before it costs anything.
The model comes once, and what it is made of is destroyed when the study is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.policy.absence import Absence
from secfed.errors import DiskFull, SecfedError

log = logging.getLogger("secfed.agent")

AGAIN_S: Final = 5.0

T = TypeVar("T")


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
            if error.exit_code != DiskFull.exit_code:  # of a transcript it is another kind of error
                raise
            board.set(state=str(Absence.FAILED), why=str(error))
            if not told:
                board.error(str(error))
                log.error("a finished model waits for room on the disk: %s", error)
                told = True
            if pause(AGAIN_S):
                raise
