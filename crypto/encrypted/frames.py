"""The site's work on one frame, whichever process does it: encrypt slots, decrypt a sum, tag either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters
from secfed.crypto.encrypted.bfv_packing import Slots
from secfed.crypto.encrypted.bfv_tenseal import Decryptor, Encryptor, SeedExpander
from secfed.crypto.encrypted.server import SUM, FrameFormat, expanded
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.encrypted.tags import Tag, TagKey, encode_tag


@dataclass(frozen=True)
class Tagging:
    """Which frames are tagged, and for which specification."""

    form: FrameFormat
    spec_digest: bytes

    @property
    def modulus(self) -> int:
        """The prime q that tags are reduced by."""
        return self.form.parameters.ring.modulus

    def key(self, keys: KeyPair) -> TagKey:
        """What the tags are made and checked with."""
        return TagKey(keys.secret_key, self.spec_digest, self.modulus)


Work = Literal["encrypt", "decrypt", "tag"]
Job = Parameters | Tagging
"""What a frame's work needs beside the frame: parameters, and to tag it the specification too."""


class FrameCipher:
    """Encrypts and decrypts single frames. Contexts are kept: building one takes longer than using it."""

    def __init__(self, keys: KeyPair) -> None:
        def encryptor(parameters: Parameters) -> Encryptor:
            symmetric = parameters.ring.key_mode == "symmetric"
            return Encryptor(parameters, keys.secret_key if symmetric else keys.public_key)

        self._keys = keys
        self._encryptor = cache(encryptor)
        self._decryptor = cache(lambda parameters: Decryptor(parameters, keys.secret_key))
        self._expander = cache(SeedExpander)

    def encrypt(self, parameters: Parameters, slots: Slots) -> bytes:
        """The body of one frame of an upload, from [ciphertexts, slots per ciphertext]."""
        return self._encryptor(parameters).frame(slots)

    def decrypt(self, parameters: Parameters, index: int, frame: Buffer) -> Slots:
        """The slots of one frame of a sum: [ciphertexts, slots per ciphertext].

        ``RangeError``: the noise leaves no margin.
        """
        words, _ = FrameFormat(parameters, SUM).words(frame, index)
        return self._decryptor(parameters).frame(words)

    def products(self, tagging: Tagging, index: int, frame: Buffer) -> Tag:
        """What one frame adds to the tags of its upload or sum; a bad frame is refused."""
        words, seeds = tagging.form.words(frame, index)
        if tagging.form.seeded:
            expander = self._expander(tagging.form.parameters.ring)
            second = np.stack(list(expanded(seeds, expander)))
            words = np.stack([words[:, 0], second], axis=1)
        return tagging.key(self._keys).products(words, index)

    def work(self, work: Work, job: Job, index: int, data: Buffer) -> Buffer:
        """One frame from bytes to bytes, as it lies in memory shared by processes."""
        if isinstance(job, Tagging):
            return encode_tag(self.products(job, index, data))
        if work == "encrypt":
            return self.encrypt(job, slots_of(job, data))
        return np.ascontiguousarray(self.decrypt(job, index, data)).data.cast("B")

    def map(self, work: Work, job: Job, inputs: Iterable[Buffer]) -> Iterator[Buffer]:
        """:meth:`work` on every input, in order; :class:`WorkerPool` does the same in other processes."""
        return (self.work(work, job, index, data) for index, data in enumerate(inputs))

    def close(self) -> None:
        """Nothing runs beside this process."""


def slots_of(parameters: Parameters, data: Buffer) -> Slots:
    """Bytes seen as the slots of a frame, without a copy: [ciphertexts, slots per ciphertext]."""
    kind = "<u8" if parameters.ring.scheme == "bfv" else "<f8"
    return np.frombuffer(data, kind).reshape(-1, parameters.ring.slots_per_ciphertext)
