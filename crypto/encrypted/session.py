"""One attempt under encrypted protection: one upload per site, one sum of ciphertexts, no interaction.

The site checks the specification by the same rules as under masks, encrypts, signs and sends; the
aggregator adds. A site that falls silent is simply not in the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.attempt import AttemptId, SiteContribution
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
from secfed.crypto.messages import Result, Specification, Upload, peek_type
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification
from secfed.errors import MalformedMessage, Replay, RoundAborted, WrongState


class EncryptedSite:
    """One site's half: specification -> signed ciphertexts."""

    released: tuple[str, ...] | None = None  # sums come outside the attempt, and nothing is unmasked
    complaints: tuple[str, ...] = ()
    result: Result | None = None

    def __init__(self, given: SiteContribution, cipher: SiteCipher, parameters: Parameters) -> None:
        self._given, self._cipher, self._parameters = given, cipher, parameters
        self._used = False

    def handle(self, message: Buffer) -> Buffer:
        """Answer the specification.

        Raises:
            SecfedError: refusals 1-16 and 37-39 of ``refusals.py``.
        """
        used, self._used = self._used, True
        given = self._given
        try:
            kind = peek_type(message)
            if used or kind != Specification.TYPE:
                raise Refusal.OUT_OF_ORDER.refuse(f"message type {kind}")
            spec = Specification.decode(message)
        except MalformedMessage as error:
            raise Refusal.MALFORMED.refuse(error.message) from None
        check_specification(spec, given, floor=FLOOR)
        attempt = AttemptId(spec.round, spec.exchange_index, spec.attempt)
        given.journal.begin(spec.study, attempt)
        # Every site can read sums. Two sums that differ by one site would tell that site's update, so an
        # update that has left once never leaves again.
        given.journal.uploaded(spec.study, attempt)
        form = FrameFormat(self._parameters, UPLOAD)
        size = form.total_bytes + UPLOAD_TAG_BYTES
        buffer = Upload.frame(size)
        vector, at = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + size], 0
        for frame in self._cipher.encrypt(self._parameters, given.source):
            vector[at : at + len(frame)] = frame
            at += len(frame)
        vector[at:] = self._cipher.tag(self._parameters, spec.digest, given.site, form.split(vector[:at]))
        vector_digest = masks.vector_digest(vector)
        parameters = self._parameters.digest
        signature = given.identity.sign(labels.SIGN_UPLOAD, spec.digest, parameters, vector_digest)
        Upload.finish(buffer, parameters, vector_digest, signature)
        return buffer


class EncryptedServer:
    """The aggregator's half: adds ciphertexts and tags as they arrive; it has no key and learns no total."""

    def __init__(self, spec: Specification, roster: Roster, parameters: Parameters) -> None:
        self._spec, self._roster, self._parameters = spec, roster, parameters
        self._total = RunningSum(parameters)
        self._tag: Tag = (0,) * TAGS
        self._nonces: dict[str, bytes] = {}
        self._answered: set[str] = set()
        self._finished = False
        self.spent = False
        self.disputes: tuple[tuple[str, str], ...] = ()  # sites send each other nothing

    @property
    def stage(self) -> str:
        """Encrypted protection has one step; it takes the name of the step it stands for."""
        return "done" if self._finished else "mask"

    def begin(self) -> Mapping[str, Buffer]:
        """The specification to every site of the cohort."""
        return dict.fromkeys(self._spec.cohort, self._spec.encode())

    def receive(self, site: str, reply: Buffer) -> None:
        """Check one upload and add it; nothing is added if any part of it is refused.

        Raises:
            ProtocolError: the upload is refused; the site counts as dropped.
        """
        if self._finished or site not in self._spec.cohort:
            raise WrongState(f"site {site!r} was not asked")
        if site in self._answered:  # also where its upload was refused
            raise Replay(f"site {site!r} has answered already")
        self._answered.add(site)
        upload = Upload.decode(reply)
        if upload.sharing_digest != self._parameters.digest:
            raise MalformedMessage(f"site {site!r} encrypted under other parameters")
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the ciphertexts of site {site!r} do not match their signed digest")
        parts = (self._spec.digest, self._parameters.digest, digest)
        verify(self._roster.public(site), upload.signature, labels.SIGN_UPLOAD, *parts, who=site)
        self.spent = True
        size = len(upload.vector) - UPLOAD_TAG_BYTES
        frames, rest = upload.vector[: max(0, size)], upload.vector[max(0, size) :]
        received = self._total.open(site)
        for frame in FrameFormat(self._parameters, UPLOAD).split(frames):
            received.feed(frame)
        modulus = self._parameters.ring.modulus
        tag = decode_tag(rest[NONCE_BYTES:], modulus)  # before anything is added
        received.commit()
        self._nonces[site] = bytes(rest[:NONCE_BYTES])
        self._tag = add_tags(modulus, self._tag, tag)

    def advance(self) -> Mapping[str, Buffer]:
        """Close the sum.

        Raises:
            RoundAborted: fewer uploads than the specification's threshold.
        """
        if len(self._total.sites) < self._spec.threshold:
            raise RoundAborted(
                f"only {len(self._total.sites)} of {len(self._spec.cohort)} sites uploaded, "
                f"{self._spec.threshold} are needed.",
                remedy="wait for more sites",
            )
        self._finished = True
        return {}

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites whose ciphertexts are in the sum, in roster order."""
        return tuple(name for name in self._spec.cohort if name in self._total.sites)

    @property
    def sums(self) -> tuple[NDArray[Any], ...]:
        """Not at the aggregator.

        Raises:
            WrongState: always.
        """
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
