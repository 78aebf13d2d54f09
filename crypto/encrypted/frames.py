"""The site's work on one frame, whichever process does it: encrypt slots, decrypt a sum, tag either."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters, Ring
from secfed.crypto.encrypted.bfv_packing import Slots
from secfed.crypto.encrypted.bfv_tenseal import Decryptor, Encryptor, KeyPair, SeedExpander
from secfed.crypto.encrypted.server import SUM, FrameFormat, expanded
from secfed.crypto.encrypted.tags import Tag, TagKey, encode_tag


@dataclass(frozen=True)
class Tagging:
    """Which frames are tagged, and for which specification.

    Attributes:
        form: of the frames.
        spec_digest: of the specification.
    """

    form: FrameFormat
    spec_digest: bytes

    @property
    def modulus(self) -> int:
        """The prime q that tags are reduced by."""
        return self.form.parameters.ring.modulus

    def key(self, keys: KeyPair) -> TagKey:
        """What the tags are made and checked with."""
        return TagKey(keys.secret_key, self.spec_digest, self.modulus)


class FrameCipher:
    """Encrypts and decrypts single frames. Contexts are kept: building one takes longer than using it.

    Args:
        keys: the study's keys.
    """

    def __init__(self, keys: KeyPair) -> None:
        self._keys = keys
        self._encryptors: dict[Parameters, Encryptor] = {}
        self._decryptors: dict[Parameters, Decryptor] = {}
        self._expanders: dict[Ring, SeedExpander] = {}

    def encrypt(self, parameters: Parameters, slots: Slots) -> bytes:
        """The body of one frame of an upload, without its header.

        Args:
            parameters: of the exchange.
            slots: [ciphertexts, slots per ciphertext] of the frame.

        Raises:
            MalformedMessage: the keys are for another ring.
        """
        if parameters not in self._encryptors:
            symmetric = parameters.ring.key_mode == "symmetric"
            key = self._keys.secret_key if symmetric else self._keys.public_key
            self._encryptors[parameters] = Encryptor(parameters, key)
        return self._encryptors[parameters].frame(slots)

    def decrypt(self, parameters: Parameters, index: int, frame: Buffer) -> Slots:
        """The slots of one frame of a sum: [ciphertexts, slots per ciphertext].

        Raises:
            MalformedMessage: the frame is refused, or the keys are for another ring.
            RangeError: the noise leaves no margin.
        """
        words, _ = FrameFormat(parameters, SUM).words(frame, index)
        if parameters not in self._decryptors:
            self._decryptors[parameters] = Decryptor(parameters, self._keys.secret_key)
        return self._decryptors[parameters].frame(words)

    def products(self, tagging: Tagging, index: int, frame: Buffer) -> Tag:
        """What one frame adds to the tags of its upload or sum.

        Raises:
            MalformedMessage: the frame is refused.
        """
        words, seeds = tagging.form.words(frame, index)
        if tagging.form.seeded:
            ring = tagging.form.parameters.ring
            if ring not in self._expanders:
                self._expanders[ring] = SeedExpander(ring)
            second = np.stack(list(expanded(seeds, self._expanders[ring])))
            words = np.stack([words[:, 0], second], axis=1)
        return tagging.key(self._keys).products(words, index)

    # The same on bytes, as they lie in memory shared by processes.

    def encrypt_bytes(self, parameters: Parameters, _index: int, slots: Buffer) -> Buffer:
        """:meth:`encrypt` of the bytes of a frame's slots."""
        return self.encrypt(parameters, slots_of(parameters, slots))

    def decrypt_bytes(self, parameters: Parameters, index: int, frame: Buffer) -> Buffer:
        """:meth:`decrypt` to the bytes of the frame's slots."""
        return np.ascontiguousarray(self.decrypt(parameters, index, frame)).data.cast("B")

    def products_bytes(self, tagging: Tagging, index: int, frame: Buffer) -> Buffer:
        """:meth:`products`, encoded as a tag is."""
        return encode_tag(self.products(tagging, index, frame))


def slots_of(parameters: Parameters, data: Buffer) -> Slots:
    """Bytes seen as the slots of a frame, without a copy: [ciphertexts, slots per ciphertext]."""
    kind = "<u8" if parameters.ring.scheme == "bfv" else "<f8"
    return np.frombuffer(data, kind).reshape(-1, parameters.ring.slots_per_ciphertext)
