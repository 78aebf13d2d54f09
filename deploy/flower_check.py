"""What ``secfed site check`` can see of the way through Flower: the socket, and whether an agent listens."""

from __future__ import annotations

from pathlib import Path

from secfed.deploy import local_socket
from secfed.deploy.site_check import Check, failed_with, passed, skipped
from secfed.errors import ConfigError, LinkError

_PATIENCE_S = 5.0


def flower_check(path: Path) -> Check:
    """Whether Flower's app can find an agent at this socket."""
    try:
        local_socket.check_place(path)
    except ConfigError as error:
        return failed_with("flower", error)
    try:
        local_socket.connect(path, _PATIENCE_S).close()
    except LinkError:
        return skipped("flower", f"no agent listens at {path} now")
    return passed("flower", f"an agent listens at {path}")
