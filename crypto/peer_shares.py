"""Message 6, upwards: one share per peer, which is of the self mask *or* of the mask secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

from secfed.crypto import shamir
from secfed.crypto.codec import Reader, Writer
from secfed.crypto.identity import MAX_SITES, SIGNATURE_BYTES
from secfed.crypto.message_base import Message, read_name
from secfed.errors import MalformedMessage


@dataclass(frozen=True)
class SelfMaskShare:
    """A share of a survivor's self-mask seed."""

    KIND: ClassVar[int] = 1
    peer: str
    share: bytes = field(repr=False)


@dataclass(frozen=True)
class MaskSecretShare:
    """A share of a dropped site's mask secret."""

    KIND: ClassVar[int] = 2
    peer: str
    share: bytes = field(repr=False)


# One or the other: giving out both shares of one peer cannot be expressed.
PeerShare = SelfMaskShare | MaskSecretShare
_SHARE_KINDS: dict[int, Callable[[str, bytes], PeerShare]] = {1: SelfMaskShare, 2: MaskSecretShare}


def _write_share(writer: Writer, share: PeerShare) -> None:
    writer.text(share.peer).uint(share.KIND, 1).fixed(share.share, shamir.SHARE_BYTES)


def _read_share(reader: Reader) -> PeerShare:
    peer, kind = read_name(reader), reader.uint(1)
    if kind not in _SHARE_KINDS:
        raise MalformedMessage(f"unknown kind of share: {kind}")
    return _SHARE_KINDS[kind](peer, reader.fixed(shamir.SHARE_BYTES))


@dataclass(frozen=True)
class Shares(Message):
    """Message 6, upwards: one share per peer of the sharing set, peers strictly ascending."""

    TYPE: ClassVar[int] = 9
    shares: tuple[PeerShare, ...] = field(repr=False)
    signature: bytes = b""

    def body(self) -> bytes:
        """Everything but the signature."""
        return Writer().many(self.shares, _write_share).done()

    def _write(self, writer: Writer) -> None:
        body = self.body()
        writer.fixed(body, len(body)).fixed(self.signature, SIGNATURE_BYTES)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        shares = reader.many(MAX_SITES, _read_share)
        peers = [share.peer for share in shares]
        if any(a >= b for a, b in pairwise(peers)):
            raise MalformedMessage("shares are repeated or out of order")
        return cls(shares, reader.fixed(SIGNATURE_BYTES))
