"""Ctrl-C and SIGTERM: the message that is being handled is finished, then the run stops; nothing is lost.

A run may be killed at any moment (``secfed/server/checkpoints.py``), so stopping is only a matter of manners:
it interrupts waiting, never writing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Final

from secfed.errors import SecfedError

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(SecfedError):
    """The operator stopped the run; it can be resumed."""

    exit_code = 130  # 128 + SIGINT, as shells report it


class StudyPaused(Stopped):
    """A study was put aside before its next exchange, by the operator or for others; it can go on."""


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def called_on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at SIGINT or SIGTERM, in a thread of its own; entered in the main thread.

    A handler interrupts the main thread anywhere, also while it holds a lock that ``act`` could wait for. So
    it only tells the thread; it runs once the main thread's present call into C, if there is one, has
    returned.
    """
    signals: SimpleQueue[int] = SimpleQueue()  # its put() may interrupt itself

    def watch() -> None:
        while signals.get():
            act()

    thread = threading.Thread(target=watch, name="secfed-signals", daemon=True)
    thread.start()
    try:
        with _handled_by(lambda number, _frame: signals.put(number)):
            yield
    finally:
        signals.put(0)
        thread.join()


class Stopper:
    """Turns signals into :class:`Stopped`, at the next moment at which it may be raised."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to SIGINT and SIGTERM; in the main thread."""
        with _handled_by(self._on_signal):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In here a signal raises at once."""
        with self._set_waiting(True):
            self.check()  # only now, or a signal between the two would be forgotten
            yield

    @contextmanager
    def working(self) -> Iterator[None]:
        """In here, within :meth:`waiting`, a signal has to wait until the end."""
        with self._set_waiting(False):
            yield
        self.check()

    @contextmanager
    def _set_waiting(self, waiting: bool) -> Iterator[None]:
        before, self._waiting = self._waiting, waiting
        try:
            yield
        finally:
            self._waiting = before

    def check(self) -> None:
        """Raise if a signal came."""
        if self.asked:
            raise Stopped("The run was stopped")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the interface's
        self.asked = True
        if self._waiting:
            self._waiting = False  # a second signal must not hit the first one's way out
            self.check()
