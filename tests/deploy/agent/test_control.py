"""Who the running agent is, asked at the very moment at which one starts."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.agent import control

_STALE = 999_999_999  # the number of an agent that was killed; another process may have it by now


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    control.make_state_folder(folder)
    return folder


def test_the_number_of_an_earlier_agent_is_never_taken_for_the_one_that_starts(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "agent.lock").write_text(f"{_STALE}\n")
    truncate, found = os.ftruncate, []
    looking = threading.Thread(target=lambda: found.append(control.running(state)), daemon=True)

    def slow(descriptor: int, length: int) -> None:
        looking.start()
        looking.join(0.5)  # ends in this time only if it does not wait
        truncate(descriptor, length)

    monkeypatch.setattr(os, "ftruncate", slow)
    with control.only_agent(state):
        looking.join()
    assert found in ([os.getpid()], [None])  # None: it looked after the end


def test_a_look_at_the_moment_of_a_start_does_not_prevent_it(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control.only_agent(state):
        pass
    lock, looks, tried = fcntl.flock, threading.Event(), threading.Event()

    def slow(descriptor: int, operation: int) -> Any:
        mine = threading.current_thread() is looking
        if not mine:
            tried.set()
        result = lock(descriptor, operation)
        if mine and operation == fcntl.LOCK_EX | fcntl.LOCK_NB:
            looks.set()
            tried.wait(60)
            tried.clear()
            tried.wait(0.2)
        return result

    looking = threading.Thread(target=lambda: control.running(state), daemon=True)
    monkeypatch.setattr(fcntl, "flock", slow)
    looking.start()
    looks.wait()
    with control.only_agent(state):
        assert (state / "agent.lock").read_text() == f"{os.getpid()}\n"
    looking.join()


def test_two_that_look_at_once_take_each_other_for_no_agent(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "agent.lock").write_text(f"{_STALE}\n")
    lock, looks, found = fcntl.flock, threading.Event(), []

    def slow(descriptor: int, operation: int) -> Any:
        result = lock(descriptor, operation)
        if threading.current_thread() is looking and operation == fcntl.LOCK_EX | fcntl.LOCK_NB:
            looks.set()
            threading.Event().wait(0.3)
        return result

    looking = threading.Thread(target=lambda: found.append(control.running(state)), daemon=True)
    monkeypatch.setattr(fcntl, "flock", slow)
    looking.start()
    looks.wait()
    assert control.running(state) is None
    looking.join()
    assert found == [None]
