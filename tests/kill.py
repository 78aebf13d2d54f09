"""Processes that end by ``kill -9``, and system calls that fail.

The processes are forks: the disk's state is that of any killed process, and starting is cheap.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Never


def _forked(work: Callable[[], object], output: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(output, 1)
            work()
        finally:
            os._exit(1)
    return pid


def kills_itself(work: Callable[[], object]) -> None:
    """Run what must kill its process."""
    _, status = os.waitpid(_forked(work, 1), 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def killed_after(pause_s: float, work: Callable[[], object]) -> str:
    """What a process had said until it was killed."""
    reading, writing = os.pipe()
    pid = _forked(work, writing)
    os.close(writing)
    time.sleep(pause_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Run all at the same time, each in a process of its own; what they say is dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    pids = [_forked(work, nowhere) for work in works]
    os.close(nowhere)
    for pid in pids:
        os.waitpid(pid, 0)


def failing(number: int) -> Callable[..., Never]:
    """What stands in for a system call that fails with this error number."""

    def fail(*_: object) -> Never:
        raise OSError(number, os.strerror(number))

    return fail
