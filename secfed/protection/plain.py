"""No protection: the aggregator sees each site's quantised update. For simulation and comparison."""

from __future__ import annotations

from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.messages import Message, Result, Specification, Upload
from secfed.crypto.one_step import OneStepServer, open_specification
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import decode_as
from secfed.errors import MalformedMessage
from secfed.protection.interface import RingSums, SiteId


class PlainSite:
    """Sends the quantised vector as it is."""

    def __init__(self, contribution: SiteContribution) -> None:
        self._contribution = contribution
        self._spec_digest = b""
        self._expects: type[Message] | None = Specification
        self.released: tuple[SiteId, ...] | None = None  # nothing is masked, so nothing is released
        self.view: tuple[SiteId, ...] | None = None
        self.complaints: tuple[SiteId, ...] = ()  # sites send each other nothing
        self.result: Result | None = None

    def handle(self, message: Buffer) -> Buffer:
        """Specification -> upload; result -> nothing."""
        expects, self._expects = self._expects, None  # a refusal below ends the session
        if expects is not Specification:
            return self._finish(decode_as(expects, message))
        own = self._contribution
        spec = open_specification(message, own, floor=1)
        self._spec_digest, self._expects = spec.digest, Result
        buffer = Upload.frame(own.shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + own.shape.wire_bytes]
        context = masks.MaskContext(spec.digest, own.broadcast_digest, own.shape)
        vector_digest = masks.write_masked(own.source, [], context, room)
        signature = own.identity.sign(labels.SIGN_UPLOAD, spec.digest, vector_digest)
        Upload.finish(buffer, bytes(32), vector_digest, signature)
        return buffer

    def _finish(self, result: Message) -> Buffer:
        if not isinstance(result, Result):
            raise Refusal.OUT_OF_ORDER.refuse()
        aggregator = self._contribution.roster.aggregator
        verify(aggregator, result.signature, labels.SIGN_RESULT, result.body(), who="aggregator")
        if result.spec_digest != self._spec_digest:
            raise Refusal.RESULT_MISMATCH.refuse()
        self.result = result
        return b""


class PlainServer(OneStepServer):
    """Adds the vectors as they arrive."""

    def __init__(self, spec: Specification, roster: Roster, shape: VectorShape) -> None:
        super().__init__(spec, roster)
        self._total = masks.Accumulator(shape)

    def _add(self, site: SiteId, reply: Buffer) -> None:
        upload = Upload.decode(reply)
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the vector of site {site!r} does not match its signed digest")
        public = self._roster.public(site)
        verify(public, upload.signature, labels.SIGN_UPLOAD, self._spec.digest, digest, who=site)
        self._total.add(upload.vector)
        self.spent = True

    @property
    def sums(self) -> RingSums:
        """Ring integers of the sum."""
        return self._total.reduced()
