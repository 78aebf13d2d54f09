"""What a site under encrypted protection keeps for a whole study: the study key, and the state it leads to.

    seal-key    seeds of the key that the study key is sealed to, until the study key is there
    study-key   the study's keys
    uploaded    for which specification the newest upload was made
    taking      which sum is the one of its exchange, before it is decrypted
    replica     the server program's state, and which sums led to it

Security: whoever reads ``study-key`` can read every upload of the study that he gets hold of. The agent
destroys these files when the study is over.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import torch

from secfed.crypto import sealing
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.message_base import U32, Digest
from secfed.crypto.record import Record, blob, pair, uint
from secfed.storage.signed_files import SignedFiles
from secfed.wire.frames import decode_state, encode_state

UPLOADED: Final = "uploaded"
TAKING: Final = "taking"
_SEAL_KEY, _STUDY_KEY, _REPLICA = "seal-key", "study-key", "replica"
_X25519_BYTES: Final = 32
_HEADER_BYTES: Final = 4 + 4 + 2 + 32

_Key = Annotated[bytes, blob(1 << 28)]
_Position = Annotated[tuple[int, int], pair(uint(4), uint(2))]  # round and exchange index


@dataclass(frozen=True)
class Settled(Record):
    """What was settled for an exchange and cannot be changed any more."""

    here: _Position
    # of the specification that this site's upload was made for, or SHA-256 of the result that the aggregator
    # signed over the one sum that may be decrypted
    digest: Digest


@dataclass(frozen=True)
class Replica(Record):
    """Which sums led to the state."""

    sums: U32  # how many were taken
    last: _Position  # of the newest
    taken: Digest  # SHA-256 of the newest as it arrived


@dataclass(frozen=True)
class _Keys(Record):
    secret_key: _Key = field(repr=False)
    public_key: _Key = field(repr=False)


class EncryptedStore:
    """Durable memory of one study under encrypted protection. Whatever is kept is on the disk on return.

    Reading raises :class:`~secfed.errors.TranscriptError` where a file was changed.
    """

    def __init__(self, files: SignedFiles) -> None:
        self._files = files

    def new_seal_key(self) -> sealing.SealKey:
        """A fresh seal key."""
        seeds = secrets.token_bytes(sealing.MLKEM_SEED_BYTES), secrets.token_bytes(_X25519_BYTES)
        self._files.write(_SEAL_KEY, *seeds)
        return sealing.SealKey.from_seeds(*seeds)

    def keep_keys(self, keys: KeyPair) -> None:
        """Keep the study's keys; the seal key is not needed any more."""
        self._files.write(_STUDY_KEY, _Keys(keys.secret_key, keys.public_key).encode())
        self._files.erase(_SEAL_KEY)

    def keys(self) -> tuple[KeyPair | None, sealing.SealKey | None]:
        """The study's keys, or the seal key that they were asked for with."""
        content = self._files.read(_STUDY_KEY)
        if content is not None:
            self._files.erase(_SEAL_KEY)
            keys = _Keys.decode(content[0])
            return KeyPair(secret_key=keys.secret_key, public_key=keys.public_key), None
        seeds = self._files.read(_SEAL_KEY, sealing.MLKEM_SEED_BYTES)
        return None, None if seeds is None else sealing.SealKey.from_seeds(*map(bytes, seeds))

    def settle(self, name: str, settled: Settled) -> None:
        """Keep :data:`UPLOADED` before the upload leaves, or :data:`TAKING` before a sum is decrypted."""
        self._files.write(name, settled.encode())

    def settled(self, name: str) -> Settled | None:
        """The newest of that name; None before the first."""
        content = self._files.read(name)
        return None if content is None else Settled.decode(content[0])

    def keep_replica(self, replica: Replica, state: Mapping[str, torch.Tensor]) -> None:
        """Keep the state after one more sum."""
        self._files.write(_REPLICA, replica.encode(), encode_state(state))

    def replica(self) -> tuple[Replica, Mapping[str, torch.Tensor]] | None:
        """The state after the newest sum; None before the first."""
        content = self._files.read(_REPLICA, _HEADER_BYTES)
        return None if content is None else (Replica.decode(content[0]), decode_state(content[1]))
