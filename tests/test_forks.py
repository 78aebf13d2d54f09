"""What tests start instead of new interpreters: ``forks.py``."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from tests.forks import Fork


@pytest.mark.parametrize("number", [90, 203, 204, 300])
def test_a_process_gets_a_descriptor_whatever_its_number(number: int) -> None:
    """203 was closed again: a training process without its socket ends, as if it had failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        passed = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, number)  # the next that is free
        try:
            code = f"import os; os.write({passed}, b'here')"
            process = Fork([sys.executable, "-c", code], pass_fds=[passed], stderr=subprocess.DEVNULL)
        finally:
            os.close(passed)
        theirs.close()
        said = ours.recv(10)
        assert (process.wait(60), said) == (0, b"here")
