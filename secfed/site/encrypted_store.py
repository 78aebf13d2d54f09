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
from typing import Final

import torch

from secfed.crypto import sealing
from secfed.crypto.codec import Reader, Writer
from secfed.crypto.encrypted.bfv_tenseal import KeyPair
from secfed.storage.signed_files import SignedFiles
from secfed.wire.frames import decode_state, encode_state

_SEAL_KEY, _STUDY_KEY, _REPLICA = "seal-key", "study-key", "replica"
_UPLOADED, _TAKING = "uploaded", "taking"
_X25519_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 1 << 28
_HEADER_BYTES: Final = 4 + 4 + 2 + 32


@dataclass(frozen=True)
class Settled:
    """What was settled for an exchange and cannot be changed any more.

    Attributes:
        here: round and exchange index.
        digest: of the specification that this site's upload was made for, or SHA-256 of the result that the
            aggregator signed over the one sum that may be decrypted.
    """

    here: tuple[int, int]
    digest: bytes


@dataclass(frozen=True)
class Replica:
    """The state after some sums.

    Attributes:
        sums: how many were taken.
        last: round and exchange index of the newest.
        taken: SHA-256 of the newest as it arrived.
        state: what the server program saved.
    """

    sums: int
    last: tuple[int, int]
    taken: bytes
    state: Mapping[str, torch.Tensor] = field(repr=False)


class EncryptedStore:
    """Durable memory of one study under encrypted protection.

    Args:
        files: of the study.
    """

    def __init__(self, files: SignedFiles) -> None:
        self._files = files

    def new_seal_key(self) -> sealing.SealKey:
        """A fresh seal key, on the disk."""
        seeds = secrets.token_bytes(sealing.MLKEM_SEED_BYTES), secrets.token_bytes(_X25519_BYTES)
        self._files.write(_SEAL_KEY, *seeds)
        return sealing.SealKey.from_seeds(*seeds)

    def keep_keys(self, keys: KeyPair) -> None:
        """The study's keys, on the disk."""
        self._files.write(_STUDY_KEY, Writer().blob(keys.secret_key).blob(keys.public_key).done())
        self._files.erase(_SEAL_KEY)

    def keys(self) -> tuple[KeyPair | None, sealing.SealKey | None]:
        """The study's keys, or the seal key that they were asked for with.

        Raises:
            TranscriptError: a file was changed.
        """
        found = self._files.read(_STUDY_KEY)
        if found is not None:
            self._files.erase(_SEAL_KEY)
            reader = Reader(found[0])
            secret = reader.blob(_MAX_KEY_BYTES)
            return KeyPair(secret_key=secret, public_key=reader.blob(_MAX_KEY_BYTES)), None
        seeds = self._files.read(_SEAL_KEY, sealing.MLKEM_SEED_BYTES)
        return None, None if seeds is None else sealing.SealKey.from_seeds(*map(bytes, seeds))

    def keep_uploaded(self, uploaded: Settled) -> None:
        """The specification that an upload was made for, on the disk before the upload leaves."""
        self._keep(_UPLOADED, uploaded)

    def uploaded(self) -> Settled | None:
        """The specification of the newest upload; None before the first.

        Raises:
            TranscriptError: the file was changed.
        """
        return self._settled(_UPLOADED)

    def keep_taking(self, taking: Settled) -> None:
        """The sum that is about to be decrypted, on the disk."""
        self._keep(_TAKING, taking)

    def taking(self) -> Settled | None:
        """The sum that was last about to be decrypted; None before the first.

        Raises:
            TranscriptError: the file was changed.
        """
        return self._settled(_TAKING)

    def keep_replica(
        self, sums: int, last: tuple[int, int], taken: bytes, state: Mapping[str, torch.Tensor]
    ) -> None:
        """The state after one more sum, on the disk."""
        header = Writer().uint(sums, 4).uint(last[0], 4).uint(last[1], 2).fixed(taken, 32).done()
        self._files.write(_REPLICA, header, encode_state(state))

    def replica(self) -> Replica | None:
        """The state after the newest sum; None before the first.

        Raises:
            TranscriptError: the file was changed.
        """
        found = self._files.read(_REPLICA, _HEADER_BYTES)
        if found is None:
            return None
        reader = Reader(found[0])
        sums, last = reader.uint(4), (reader.uint(4), reader.uint(2))
        return Replica(sums, last, reader.fixed(32), decode_state(found[1]))

    def _keep(self, name: str, settled: Settled) -> None:
        header = Writer().uint(settled.here[0], 4).uint(settled.here[1], 2).fixed(settled.digest, 32)
        self._files.write(name, header.done())

    def _settled(self, name: str) -> Settled | None:
        found = self._files.read(name)
        if found is None:
            return None
        reader = Reader(found[0])
        return Settled((reader.uint(4), reader.uint(2)), reader.fixed(32))
