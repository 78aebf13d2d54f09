"""TCP ports for tests, so that they pass whatever else listens on this machine."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO, Final

# Below what systems hand out to connections that go out and to port 0 (from 32768 on Linux, 49152 elsewhere).
_FIRST, _LAST = 15_000, 30_000
_HELD: Final[list[IO[str]]] = []  # a lock lives as long as its file is open


def free_port() -> int:
    """A port of localhost that nothing listens on and that is given to this process alone.

    The system will not hand it to anybody in the meantime either, so a server may also stop and listen there
    again. Where a server can listen on port 0 and be asked for its port, that is better.
    """
    locks = Path(tempfile.gettempdir()) / f"ports-of-tests-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(_FIRST, _LAST), 1000):
        lock = (locks / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for host in ("127.0.0.1", "localhost"):
                socket.create_server((host, port)).close()
        except OSError:
            lock.close()
            continue
        _HELD.append(lock)
        return port
    raise OSError(f"no free port from {_FIRST} to {_LAST}")


def without_metrics(site: Path) -> None:
    """Let the agent of this folder serve no metrics: their default port is one for the whole machine."""
    settings = site / "site.toml"
    text = settings.read_text(encoding="utf-8")
    assert "# metrics_port = 9464" in text
    settings.write_text(text.replace("# metrics_port = 9464", "metrics_port = 0"), encoding="utf-8")
