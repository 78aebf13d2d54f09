"""One site in a process of its own, over a journal on the disk, that kills itself at a chosen step.

    python tests/crash/site_process.py PARAMETERS.json

Requests come in and replies go out on the standard streams, each with a 32-bit length before it. A reply
starts with one byte: 0 and the message, or 1 and the text of the refusal.

Death is SIGKILL: no handler, no destructor and no buffer of Python's gets a chance.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked.client import MaskedSite
from secfed.errors import SecfedError
from secfed.site.journal import Journal
from tests.ring import Integers

POINTS = (
    "before begin",
    "inside begin",
    "after begin",
    "before uploaded",
    "inside uploaded",
    "after uploaded",
    "before unmasked",
    "inside unmasked",
    "after unmasked",
    "after reply",
)


def die() -> None:
    """What a power cut does to a process."""
    os.kill(os.getpid(), signal.SIGKILL)


class MortalJournal:
    """The real journal; dies before, inside or after one of its calls. Inside: before the commit."""

    def __init__(self, path: Path, point: str) -> None:
        self._journal, self._point = Journal(path), point

    def _step(self, call: str, study: str, attempt: AttemptId) -> None:
        if self._point == f"before {call}":
            die()
        if self._point == f"inside {call}":
            self._journal._db.set_trace_callback(lambda sql: die() if sql == "COMMIT" else None)
        getattr(self._journal, call)(study, attempt)
        if self._point == f"after {call}":
            die()

    def begin(self, study: str, attempt: AttemptId) -> None:
        """See :class:`secfed.crypto.attempt.AttemptJournal`."""
        self._step("begin", study, attempt)

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """See :class:`secfed.crypto.attempt.AttemptJournal`."""
        self._step("uploaded", study, attempt)

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """See :class:`secfed.crypto.attempt.AttemptJournal`."""
        self._step("unmasked", study, attempt)


def read(stream: BinaryIO) -> bytes | None:
    """One message, None at the end of the stream."""
    size = stream.read(4)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 4 else None


def write(stream: BinaryIO, message: bytes) -> None:
    """One message, out of this process's hands when it returns."""
    stream.write(len(message).to_bytes(4, "big") + message)
    stream.flush()


def contribution(parameters: dict[str, object], journal: MortalJournal) -> SiteContribution:
    """The site's input, as the test wrote it down."""
    runs = tuple(Run(bits, len(lanes)) for bits, lanes in parameters["update"])  # type: ignore[attr-defined]
    lanes = tuple(
        np.array(values, dtype=run.dtype)
        for run, (_, values) in zip(runs, parameters["update"], strict=True)  # type: ignore[call-overload]
    )
    hexed = {name: bytes.fromhex(str(parameters[name])) for name in ("seed", "roster", "layout", "broadcast")}
    return SiteContribution(
        identity=Identity.from_seed(str(parameters["site"]), hexed["seed"]),
        roster=Roster.decode(hexed["roster"]),
        study="study",
        round=1,
        exchange="update",
        exchange_index=0,
        shape=VectorShape(runs, hexed["layout"]),
        broadcast_digest=hexed["broadcast"],
        source=Integers(lanes),
        journal=journal,
    )


def main() -> None:
    """Serve one attempt."""
    parameters = json.loads(Path(sys.argv[1]).read_text())
    point = parameters["point"]
    journal = MortalJournal(Path(parameters["journal"]), point)
    site = MaskedSite(contribution(parameters, journal))
    replies = 0
    while (request := read(sys.stdin.buffer)) is not None:
        try:
            reply = b"\0" + bytes(site.handle(request))
        except SecfedError as error:
            reply = b"\1" + error.message.encode()
        write(sys.stdout.buffer, reply)
        replies += 1
        if point == "after reply" and replies == 6:  # the shares have left
            die()


if __name__ == "__main__":
    main()
