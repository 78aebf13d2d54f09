"""The records of a site's memory, as bytes: the exchange it works on, and the answer it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from secfed import errors
from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Reader, Writer, digest
from secfed.errors import SecfedError

HEADER_BYTES: Final = 4 + 2 + 32  # round, exchange index, broadcast digest
REPLIED: Final = b"\0"
REFUSED: Final = b"\1"
_TEXT_BYTES: Final = 4096


@dataclass(frozen=True)
class Work:
    """The exchange that a site works on.

    Attributes:
        round, exchange_index: where.
        broadcast_digest: what it started from; 32 bytes.
        work_key: of all randomness of its work; 32 secret bytes.
    """

    round: int
    exchange_index: int
    broadcast_digest: bytes
    work_key: bytes = field(repr=False)

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
    kind, message, remedy = Reader(content).many(3, lambda reader: reader.text(4 * _TEXT_BYTES))
    found: Mapping[str, Any] = vars(errors)
    raise found.get(kind, errors.ProtocolError)(message, remedy=remedy)
