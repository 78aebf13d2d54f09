"""The records of a site's memory, as bytes, and the names of their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from secfed import errors
from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.errors import SecfedError
from secfed.wire.frames import encode_state
from secfed.wire.layout import Summands

HEADER_BYTES: Final = 4 + 2 + 32  # round, exchange index, broadcast digest
REPLIED: Final = b"\0"
REFUSED: Final = b"\1"
LAST: Final = b"\2"  # the exchange is over; before the reply stands its header
_TEXT_BYTES: Final = 4096
_MOST_TAKEN, _NAME_BYTES = 4096, 1024  # exchanges of a round, and of a name


@dataclass(frozen=True)
class Work:
    """The exchange that a site works on."""

    round: int
    exchange_index: int
    broadcast_digest: bytes  # what it started from; 32 bytes
    work_key: bytes = field(repr=False)  # of all randomness of its work; 32 secret bytes

    @property
    def here(self) -> tuple[int, int]:
        """Round and exchange index."""
        return self.round, self.exchange_index

    def release_id(self, study: str) -> str:
        """Names the release in the ledger and commits to its randomness and input, without telling them."""
        where = Writer().uint(self.round, 4).uint(self.exchange_index, 2).done()
        return digest(labels.RELEASE_ID, study.encode(), where, self.broadcast_digest, self.work_key).hex()


def header_of(work: Work) -> bytes:
    """Names the exchange at the head of a file."""
    return Writer().uint(work.round, 4).uint(work.exchange_index, 2).fixed(work.broadcast_digest, 32).done()


def refusal_of(error: SecfedError) -> bytes:
    """A refusal, to be given again."""
    text = (type(error).__name__, error.message[:_TEXT_BYTES], error.remedy[:_TEXT_BYTES])
    return Writer().many(text, lambda writer, item: writer.text(item)).done()


def given_back(outcome: Buffer, content: Buffer) -> Buffer:
    """An answer as it was given: the reply, or the refusal."""
    if bytes(outcome) == REPLIED:
        return content
    if bytes(outcome) == LAST:
        return memoryview(content)[HEADER_BYTES:]
    kind, message, remedy = Reader(content).many(3, lambda reader: reader.text(4 * _TEXT_BYTES))
    found: Mapping[str, Any] = vars(errors)
    raise found.get(kind, errors.ProtocolError)(message, remedy=remedy)


def parted(record: memoryview) -> tuple[memoryview, memoryview]:
    """A message of an attempt, and its answer."""
    at = 8 + int.from_bytes(record[:8], "big")
    return record[8:at], record[at:]


def attempt_file(attempt: int) -> str:
    """Holds an attempt's randomness, and its messages with their answers; names sort as attempts do."""
    return f"attempt-{attempt:010d}"


def program_file(here: tuple[int, int]) -> str:
    """Holds what the program keeps with the contribution of an exchange."""
    return f"program-{here[0]:010d}-{here[1]:05d}"


def attempt_of(name: str) -> int | None:
    """The attempt that a file belongs to; None if it belongs to none."""
    kind, _, rest = name.partition("-")
    return (
        int(rest[:10]) if kind in ("attempt", "seed", "step") else None
    )  # the last two: of earlier versions


def encode_summands(summands: Summands) -> bytes:
    """As the encoder of a layout would take them: tensors as they are, numbers in float64."""
    return encode_state(
        {
            name: value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)
            for name, value in summands.items()
        }
    )


def encode_taken(round_number: int, taken: Mapping[str, bytes], opened_with: bytes) -> bytes:
    """A round, and by exchange the digests of the broadcasts whose tasks were taken in it."""
    written = Writer().blob(opened_with).uint(round_number, 4)
    written.many(sorted(taken.items()), lambda writer, item: writer.text(item[0]).fixed(item[1], 32))
    return written.done()


def decode_taken(data: Buffer, opened_with: bytes) -> tuple[int, dict[str, bytes]]:
    """From :func:`encode_taken`; nothing if it was written over another data set, or under other limits."""
    reader = Reader(data)
    same, number = bytes(reader.blob(_NAME_BYTES)) == opened_with, reader.uint(4)
    taken = dict(reader.many(_MOST_TAKEN, lambda item: (item.text(_NAME_BYTES), bytes(item.fixed(32)))))
    return (number, taken) if same else (0, {})
