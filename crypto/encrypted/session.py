"""One attempt under encrypted protection: one upload per site, one sum of ciphertexts, no interaction.

The site checks the specification by the same rules as under masks, encrypts, signs and sends; the
aggregator adds. A site that falls silent is simply not in the sum.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import UPLOAD, FrameFormat, RunningSum
from secfed.crypto.encrypted.sum_checks import FLOOR
from secfed.crypto.encrypted.tags import (
    NONCE_BYTES,
    TAGS,
    UPLOAD_TAG_BYTES,
    Tag,
    add_tags,
    decode_tag,
    encode_tag,
)
from secfed.crypto.identity import Roster, verify
from secfed.crypto.masked import masks
from secfed.crypto.messages import Result, Specification, Upload
from secfed.crypto.one_step import OneStepServer, open_specification
from secfed.crypto.specification import decode_as
from secfed.errors import MalformedMessage, WrongState


class EncryptedSite:
    """One site's half: specification -> signed ciphertexts."""

    released: tuple[str, ...] | None = None  # sums come outside the attempt, and nothing is unmasked
    view: tuple[str, ...] | None = None
    complaints: tuple[str, ...] = ()
    result: Result | None = None

    def __init__(self, contribution: SiteContribution, cipher: SiteCipher, parameters: Parameters) -> None:
        self._contribution, self._cipher, self._parameters = contribution, cipher, parameters
        self._used = False

    def handle(self, message: Buffer) -> Buffer:
        """Answer the specification, once. ``SecfedError``: refusals 1-16 and 37-39 of ``refusals.py``."""
        used, self._used = self._used, True
        if used:
            decode_as(None, message)
        own = self._contribution
        # Every site can read sums. Two sums that differ by one site would tell that site's update, so an
        # update that has left once never leaves again.
        spec = open_specification(message, own, floor=FLOOR)
        form = FrameFormat(self._parameters, UPLOAD)
        size = form.total_bytes + UPLOAD_TAG_BYTES
        buffer = Upload.frame(size)
        vector, at = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + size], 0
        for frame in self._cipher.encrypt(self._parameters, own.source):
            vector[at : at + len(frame)] = frame
            at += len(frame)
        vector[at:] = self._cipher.tag(self._parameters, spec.digest, own.site, form.split(vector[:at]))
        vector_digest = masks.vector_digest(vector)
        parameters = self._parameters.digest
        signature = own.identity.sign(labels.SIGN_UPLOAD, spec.digest, parameters, vector_digest)
        Upload.finish(buffer, parameters, vector_digest, signature)
        return buffer


class EncryptedServer(OneStepServer):
    """The aggregator's half: adds ciphertexts and tags as they arrive; it has no key and learns no total."""

    def __init__(self, spec: Specification, roster: Roster, parameters: Parameters) -> None:
        super().__init__(spec, roster)
        self._parameters = parameters
        self._total = RunningSum(parameters)
        self._tag: Tag = (0,) * TAGS
        self._nonces: dict[str, bytes] = {}

    def _add(self, site: str, reply: Buffer) -> None:
        upload = Upload.decode(reply)
        if upload.sharing_digest != self._parameters.digest:
            raise MalformedMessage(f"site {site!r} encrypted under other parameters")
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the ciphertexts of site {site!r} do not match their signed digest")
        parts = (self._spec.digest, self._parameters.digest, digest)
        verify(self._roster.public(site), upload.signature, labels.SIGN_UPLOAD, *parts, who=site)
        self.spent = True
        size = max(0, len(upload.vector) - UPLOAD_TAG_BYTES)
        modulus = self._parameters.ring.modulus
        tag = decode_tag(upload.vector[size + NONCE_BYTES :], modulus)  # before anything is added
        self._total.add(site, upload.vector[:size])
        self._nonces[site] = bytes(upload.vector[size : size + NONCE_BYTES])
        self._tag = add_tags(modulus, self._tag, tag)

    @property
    def sums(self) -> tuple[NDArray[Any], ...]:
        """Not at the aggregator. ``WrongState``: always."""
        raise WrongState("an aggregator cannot read encrypted sums")

    def ciphertext(self) -> bytes:
        """The sum: all frames in order."""
        return b"".join(self._total.frames())

    @property
    def nonces(self) -> bytes:
        """Those of the survivors' uploads, in the order of :attr:`survivors`."""
        return b"".join(self._nonces[site] for site in self.survivors)

    @property
    def tag(self) -> bytes:
        """The sum of the survivors' tags."""
        return encode_tag(self._tag)
