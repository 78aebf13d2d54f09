"""The site's work on one frame, whichever process does it: slots to ciphertexts, a summed frame to slots."""

from __future__ import annotations

import numpy as np

from secfed.crypto.bfv import Parameters
from secfed.crypto.bfv_packing import Slots
from secfed.crypto.bfv_tenseal import Decryptor, Encryptor, KeyPair
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted import SUM, FrameFormat


class FrameCipher:
    """Encrypts and decrypts single frames. Contexts are kept: building one takes longer than using it.

    Args:
        keys: the study's keys.
    """

    def __init__(self, keys: KeyPair) -> None:
        self._keys = keys
        self._encryptors: dict[Parameters, Encryptor] = {}
        self._decryptors: dict[Parameters, Decryptor] = {}

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

    # The same on bytes, as they lie in memory shared by processes.

    def encrypt_bytes(self, parameters: Parameters, _index: int, slots: Buffer) -> Buffer:
        """:meth:`encrypt` of the bytes of a frame's slots."""
        return self.encrypt(parameters, slots_of(parameters, slots))

    def decrypt_bytes(self, parameters: Parameters, index: int, frame: Buffer) -> Buffer:
        """:meth:`decrypt` to the bytes of the frame's slots."""
        return np.ascontiguousarray(self.decrypt(parameters, index, frame)).data.cast("B")


def slots_of(parameters: Parameters, data: Buffer) -> Slots:
    """Bytes seen as the slots of a frame, without a copy: [ciphertexts, slots per ciphertext]."""
    kind = "<u8" if parameters.ring.scheme == "bfv" else "<f8"
    return np.frombuffer(data, kind).reshape(-1, parameters.ring.slots_per_ciphertext)
