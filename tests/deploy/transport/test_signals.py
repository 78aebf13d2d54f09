"""What a signal does to the agent: a thread is told of it, and the handler does nothing."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from secfed.deploy.transport.signals import called_on_signal


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
