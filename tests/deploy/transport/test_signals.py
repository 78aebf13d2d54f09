"""What a signal does: an agent's thread is told of it; at an aggregator it ends the wait that it meets."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from secfed.deploy.transport import signals
from secfed.deploy.transport.signals import Stopped, Stopper, called_on_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_signal_calls_may_take_a_lock_that_the_interrupted_code_holds(number: int) -> None:
    lock, called = threading.Lock(), threading.Event()

    def act() -> None:
        with lock:
            called.set()

    with called_on_signal(act):
        with lock:
            os.kill(os.getpid(), number)
            assert not called.wait(0.1)  # here a handler that takes the lock waits for ever
        assert called.wait(60)


def test_signals_are_as_before_afterwards() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with called_on_signal(lambda: None):
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert "secfed-signals" not in [thread.name for thread in threading.enumerate()]


def waits_after_a_signal(at: int) -> bool | None:
    """Whether somebody would wait after a signal just before line ``at`` of entering; None: no such line."""
    stopper, lines = Stopper(), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_filename == signals.__file__:
            if lines == at:
                signal.raise_signal(signal.SIGINT)
            lines += 1
        return trace

    with stopper.installed():
        sys.settrace(trace)
        try:
            with stopper.waiting():
                sys.settrace(None)
                return stopper.asked if lines > at else None
        except Stopped:
            return False
        finally:
            sys.settrace(None)


def test_no_signal_is_forgotten_while_a_wait_is_entered() -> None:
    seen = [waits_after_a_signal(at) for at in range(30)]
    tried = seen.index(None)
    assert tried >= 4
    assert seen == [False] * tried + [None] * (30 - tried)
