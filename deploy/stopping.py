"""Ctrl-C and SIGTERM: the message that is being handled is finished, then the run stops; nothing is lost.

A run may be killed at any moment (``secfed/checkpoints.py``), so stopping is only a matter of manners: it
interrupts waiting, never writing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from secfed.errors import SecfedError


class Stopped(SecfedError):
    """The operator stopped the run; it can be resumed."""

    exit_code = 130  # 128 + SIGINT, as shells report it


class Stopper:
    """Turns signals into :class:`Stopped`, at the next moment at which it may be raised."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to SIGINT and SIGTERM; in the main thread."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In here a signal raises at once.

        Raises:
            Stopped: one came, now or before.
        """
        self.check()
        before, self._waiting = self._waiting, True
        try:
            yield
        finally:
            self._waiting = before

    @contextmanager
    def working(self) -> Iterator[None]:
        """In here, within :meth:`waiting`, a signal has to wait until the end.

        Raises:
            Stopped: one came meanwhile.
        """
        before, self._waiting = self._waiting, False
        try:
            yield
        finally:
            self._waiting = before
        self.check()

    def check(self) -> None:
        """Raise if a signal came.

        Raises:
            Stopped: one came.
        """
        if self.asked:
            raise Stopped("The run was stopped")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the interface's
        self.asked = True
        if self._waiting:
            self._waiting = False  # a second signal must not hit the first one's way out
            self.check()
