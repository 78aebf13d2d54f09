"""What goes to and from a process that trains: a JSON head and tensors, over a socket pair or an actor.

Nothing is unpickled: the process that trains runs models that others wrote, and what it says is data.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from secfed import errors
from secfed.config.plugins import own_place
from secfed.crypto.codec import Reader, Writer
from secfed.errors import MalformedMessage, SecfedError
from secfed.wire.frames import decode_state, encode_state

SOCKET_VARIABLE: Final = "SECFED_TRAINING_SOCKET"
DEFECT: Final = "Defect"
_MAX_HEAD_BYTES: Final = 1 << 22

Tensors = Mapping[str, torch.Tensor]


class Connection(Protocol):
    """As of :mod:`multiprocessing.connection`: whole messages, both ways."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for one message; EOFError once nobody is there any more."""


@dataclass(frozen=True)
class Job:
    """What a training process needs to know once."""

    site: str  # name of this site
    settings: str = field(repr=False)  # the study, TOML
    own_code: Sequence[str] = ()  # names of factories that the site's policy permits
    # where the data set is on this machine; None if the study needs no path
    data_path: str | None = field(default=None, repr=False)
    study: str = ""  # study id
    simulated: bool = False  # take randomness from the study's seed. Tests only.
    max_delta_times_records: float = 10.0  # of the site's policy
    site_seed: int | None = field(default=None, repr=False)  # of the site's own work; None takes the study's
    # a value that does not fit the study's ``[data]`` is an error. For a check by the hospital's own people:
    # an aggregator that hears of the error learns that there is such a value.
    strict: bool = False
    only_values: bool = (
        False  # contain failures of values only; a defect of the program is an error. Simulation only.
    )


def encoded(head: Mapping[str, Any], tensors: Tensors | None = None) -> bytes:
    """One message."""
    text = json.dumps(head, allow_nan=False)
    return Writer().text(text).done() + (encode_state(tensors) if tensors else b"")


def decoded(message: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Head and tensors of a message."""
    reader = Reader(message)
    try:
        head = json.loads(reader.text(_MAX_HEAD_BYTES))
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise MalformedMessage("the training process sent something that is not a message")
    rest = reader.rest()
    return head, decode_state(rest) if rest else {}


def send(connection: Connection, head: Mapping[str, Any], tensors: Tensors | None = None) -> None:
    """Send one message."""
    connection.send_bytes(encoded(head, tensors))


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Wait for one message; ``EOFError`` or ``OSError`` where the other process is gone."""
    return decoded(connection.recv_bytes())


def error_head(error: SecfedError) -> dict[str, Any]:
    """An error, to be raised on the other side."""
    return {"do": "failed", "kind": type(error).__name__, "message": error.message, "remedy": error.remedy}


def defect_head(error: Exception) -> dict[str, Any]:
    """A defect of somebody's code, in a simulation: what and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
    return {"do": "failed", "kind": DEFECT, "message": message, "remedy": "", "own": own_place(error)}


def raise_error(head: Mapping[str, Any]) -> None:
    """Raise the error in a message, if it is one."""
    if head.get("do") != "failed":
        return
    kind: Any = getattr(errors, str(head.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, SecfedError)):
        kind = SecfedError
    raise kind(str(head.get("message")), remedy=str(head.get("remedy", "")))
