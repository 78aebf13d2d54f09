"""What ``secfed site check`` can see of the way through Flower: the socket, and whether an agent listens."""

from __future__ import annotations

from pathlib import Path

from secfed.deploy.preflight.checks import PreflightCheck, failed_with, passed, skipped
from secfed.deploy.transport.flower import unix_socket
from secfed.errors import ConfigError, LinkError

_PATIENCE_S = 5.0


def flower_check(path: Path) -> PreflightCheck:
    """Whether Flower's app can find an agent at this socket."""
    try:
        unix_socket.check_place(path)
    except ConfigError as error:
        return failed_with("flower", error)
    try:
        unix_socket.connect(path, _PATIENCE_S).close()
    except LinkError:
        return skipped("flower", f"no agent listens at {path} now")
    return passed("flower", f"an agent listens at {path}")
