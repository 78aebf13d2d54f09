"""Turns at a ledger: whoever waits is next, and neither a fork nor Ctrl-C leaves a lock behind."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from secfed.errors import TranscriptError
from secfed.records.chain_file import ChainFile
from secfed.storage import file_lock
from secfed.storage.file_lock import locked

# Python 3.12 and later warn about every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

LONG_S = 60.0


@contextmanager
def forked() -> Iterator[None]:
    """A child that has everything open that is open now, and lives on until the end of the block."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_whoever_comes_back_at_once_does_not_pass_those_who_wait(tmp_path: Path) -> None:
    ledger, order = tmp_path / "ledger", []

    def other() -> None:
        with locked(ledger, LONG_S):
            order.append("other")

    for _ in range(5):
        order.clear()
        waiting = threading.Thread(target=other)
        with locked(ledger, LONG_S):
            waiting.start()
            for _ in range(10_000):  # not for ever, where nobody can be next
                if is_locked(tmp_path / "ledger.next"):
                    break
                time.sleep(0.001)
        with locked(ledger, LONG_S):
            order.append("first")
        waiting.join()
        assert order == ["other", "first"]


def test_waiting_ends_and_says_what_to_do(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    late = pytest.raises(TranscriptError, match=r"no turn came in 0\.05 s")
    with locked(ledger, 0.0), late as caught, locked(ledger, 0.05):
        pass
    assert str(ledger) in caught.value.message
    assert "try again" in caught.value.remedy
    with locked(ledger, 0.0):
        pass


def test_ctrl_c_ends_the_waiting_and_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = tmp_path / "ledger"

    def interrupted(_pause_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(file_lock.time, "sleep", interrupted)
    with locked(ledger, LONG_S):
        with pytest.raises(KeyboardInterrupt), locked(ledger, LONG_S):
            pass
        assert not is_locked(tmp_path / "ledger.next")
    with locked(ledger, 0.0):
        pass


def test_a_child_that_was_forked_in_between_keeps_no_lock(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    opened = locked(ledger, 0.0)
    opened.__enter__()
    file = ChainFile(ledger)
    with forked():
        file.close()
        opened.__exit__(None, None, None)
        with locked(ledger, 0.0):
            ChainFile(ledger).close()
