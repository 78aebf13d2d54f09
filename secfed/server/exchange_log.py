"""What the sites answered in the running exchange, on the disk: so that a restart asks nothing twice.

A session of the aggregator decides by nothing but the replies and their order. So they are all that is
recorded; after a restart a fresh session is given the same replies in the same order, makes the same
requests (Ed25519 signatures are deterministic), and goes on with the first reply that is missing. Nothing is
summed twice, because nothing of a sum is kept but what it was made of.

    header   magic, what the record belongs to (32 bytes)
    asked    stage, digest of all requests: on the disk before the first of them leaves
    reply    site, its bytes, as they came
    closed   nobody is waited for any more: on the disk before anything that follows from it leaves

Every entry ends with a SHA-256 over it; what follows the last whole entry was never acted on, and is cut off.
The record is as large as the replies of one exchange, and is removed when the exchange is kept in a
checkpoint. Memory: one reply.

Security: masked vectors and ciphertexts on the aggregator's disk tell what they tell the aggregator:
nothing but their sum. Under ``plain`` protection they are the sites' own updates, as everywhere else there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from secfed.crypto.codec import Buffer, Writer
from secfed.errors import TranscriptError
from secfed.protection.interface import SiteId
from secfed.server.round import Ask
from secfed.storage import failpoints
from secfed.storage.atomic import unwritable_errors, write_all, write_durably
from secfed.wire.transport import OnReply

_MAGIC: Final = b"secfed-asks-1\n"
_SHA256_BYTES: Final = 32
_HEAD_BYTES: Final = 11  # kind, length of the name, length of the data
_ASKED, _REPLY, _CLOSED = 1, 2, 3
_PIECE_BYTES: Final = 1 << 20


@dataclass
class _Asked:
    """One recorded ask."""

    stage: str
    digest: bytes
    replies: list[tuple[SiteId, int, int]] = field(default_factory=list)  # site, offset, bytes
    closed: bool = False


class AskRecord:
    """The file, created or read and continued. One at a time per run; a new one for every exchange.

    ``belongs`` is 32 bytes that say which exchange of which study this is.
    """

    def __init__(self, path: Path, belongs: bytes) -> None:
        self._path = path
        header = _MAGIC + belongs
        self.past: list[_Asked] = []
        if not path.exists():
            write_durably(path, header)
        with unwritable_errors(path):
            self._file = os.open(path, os.O_RDWR)
            if os.pread(self._file, len(header), 0) != header:
                os.close(self._file)
                raise TranscriptError(
                    f"{path}: is not the record of the exchange that this run has come to",
                    remedy="restore the whole folder of the run, or begin a new one",
                )
            end = self._read(len(header))
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)

    def asked(self, stage: str, digest: bytes) -> None:
        """Requests are about to leave."""
        self._append(_ASKED, stage, digest)
        self._sync()

    def reply(self, site: SiteId, reply: Buffer) -> None:
        """A reply arrived. In the kernel's hands when this returns; on the disk with :meth:`closed`."""
        self._append(_REPLY, site, reply)

    def closed(self) -> None:
        """Nobody is waited for any more."""
        self._append(_CLOSED, "", b"")
        self._sync()

    def replies_of(self, asked: _Asked) -> Iterator[tuple[SiteId, bytearray]]:
        """Recorded replies, in the order of their arrival."""
        for site, offset, size in asked.replies:
            yield site, self._reply(offset, size)

    def _reply(self, offset: int, size: int) -> bytearray:
        reply = bytearray(size)  # filled in place: it is in memory once
        view = memoryview(reply)
        for at in range(0, size, _PIECE_BYTES):
            view[at : at + _PIECE_BYTES] = os.pread(self._file, min(_PIECE_BYTES, size - at), offset + at)
        return reply

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def remove(self) -> None:
        """Close and delete it."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _append(self, kind: int, name: str, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        label = name.encode()
        head = Writer().uint(kind, 1).uint(len(label), 2).uint(len(view), 8).done() + label
        checksum = hashlib.sha256(head)
        with unwritable_errors(self._path):
            write_all(self._file, head)
            for at in range(0, len(view), _PIECE_BYTES):
                piece = view[at : at + _PIECE_BYTES]
                checksum.update(piece)
                write_all(self._file, piece)
            write_all(self._file, checksum.digest())

    def _sync(self) -> None:
        with unwritable_errors(self._path):
            os.fsync(self._file)

    def _read(self, at: int) -> int:
        """Read every whole entry; where the last one ends."""
        size = os.fstat(self._file).st_size
        while True:
            head = os.pread(self._file, _HEAD_BYTES, at)
            kind, named = head[:1], int.from_bytes(head[1:3], "big")
            length = int.from_bytes(head[3:], "big")
            start = at + _HEAD_BYTES + named
            end = start + length + _SHA256_BYTES
            if len(head) < _HEAD_BYTES or end > size:
                return at
            label = os.pread(self._file, named, at + _HEAD_BYTES)
            checksum = hashlib.sha256(head + label)
            for piece in self._pieces(start, length):
                checksum.update(piece)
            if os.pread(self._file, _SHA256_BYTES, start + length) != checksum.digest():
                return at
            self._take(kind[0], label.decode(), start, length)
            at = end

    def _take(self, kind: int, name: str, start: int, length: int) -> None:
        if kind == _ASKED:
            self.past.append(_Asked(name, os.pread(self._file, length, start)))
        elif kind == _REPLY:
            self.past[-1].replies.append((name, start, length))
        else:
            self.past[-1].closed = True

    def _pieces(self, start: int, length: int) -> Iterator[bytes]:
        for at in range(start, start + length, _PIECE_BYTES):
            yield os.pread(self._file, min(_PIECE_BYTES, start + length - at), at)


class ReplayableExchange:
    """An ``ask`` that records, and that answers from the record what was asked before."""

    def __init__(self, ask: Ask, folder: Path) -> None:
        self._carry, self._folder = ask, folder
        self._record: AskRecord | None = None
        self._past: list[_Asked] = []

    def open(self, name: str, belongs: bytes) -> None:
        """Begin, or go on with, the record of one exchange; those of others are removed."""
        self.close()
        path = self._folder / f"{name}.asks"
        for other in self._folder.glob("*.asks"):
            if other != path:
                other.unlink()
        self._record = AskRecord(path, belongs)
        self._past = list(self._record.past)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._record is not None:
            self._record.close()
            self._record = None

    def end(self) -> None:
        """Remove the record: the run is over."""
        if self._record is not None:
            self._record.remove()
            self._record = None

    def ask(self, stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
        """Carry one step; see :class:`secfed.server.round.Ask`."""
        record, digest = self._record, _digest(stage, requests)
        if record is None:  # outside any exchange there is nothing to repeat
            self._carry(stage, requests, on_reply)
            return
        left = dict(requests)
        if self._past:
            asked = self._past.pop(0)
            if (asked.stage, asked.digest) != (stage, digest):
                raise TranscriptError(
                    f"{self._folder}: the running exchange cannot be repeated: its {stage!r} requests differ "
                    "from those recorded",
                    remedy="resume with the version of secfed and torch that began it",
                )
            for site, reply in record.replies_of(asked):
                del left[site]
                on_reply(site, reply)
                del reply  # or it would be in memory beside the next one
            if asked.closed:
                return
        else:
            failpoints.failpoint("aggregate: before an ask is recorded")
            record.asked(stage, digest)
            failpoints.failpoint("aggregate: after an ask is recorded")

        def recorded(site: SiteId, reply: Buffer) -> None:
            failpoints.failpoint("aggregate: before a reply is recorded")
            record.reply(site, reply)
            failpoints.failpoint("aggregate: after a reply is recorded")
            on_reply(site, reply)
            failpoints.failpoint("aggregate: after a reply is used")

        if left:
            self._carry(stage, left, recorded)
        failpoints.failpoint("aggregate: before a step is closed")
        record.closed()
        failpoints.failpoint("aggregate: after a step is closed")


def _digest(stage: str, requests: Mapping[SiteId, Buffer]) -> bytes:
    """What was asked of whom; a frame that several sites get is hashed once."""
    known: dict[int, bytes] = {}
    whole = hashlib.sha256(Writer().text(stage).done())
    for site in sorted(requests):
        frame = requests[site]
        if id(frame) not in known:
            known[id(frame)] = hashlib.sha256(frame).digest()
        whole.update(Writer().text(site).done() + known[id(frame)])
    return whole.digest()
