"""No protection: the aggregator sees each site's quantised update. For simulation and comparison."""

from __future__ import annotations

from collections.abc import Mapping

from secfed.crypto import labels
from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.state import expect
from secfed.crypto.messages import Message, Result, Specification, Upload, peek_type
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_specification
from secfed.errors import MalformedMessage, RoundAborted, WrongState
from secfed.protection.interface import RingSums, SiteId


class PlainSite:
    """Sends the quantised vector as it is."""

    def __init__(self, contribution: SiteContribution) -> None:
        self._contribution = contribution
        self._spec: Specification | None = None
        self._expects: type[Message] | None = Specification
        self.released: tuple[SiteId, ...] | None = None  # nothing is masked, so nothing is released
        self.complaints: tuple[SiteId, ...] = ()  # sites send each other nothing
        self.result: Result | None = None

    def handle(self, message: Buffer) -> Buffer:
        """Specification -> upload; result -> nothing."""
        expects, self._expects = self._expects, None  # a refusal below ends the session
        try:
            kind = peek_type(message)
            if expects is None or kind != expects.TYPE:
                raise Refusal.OUT_OF_ORDER.refuse(f"message type {kind}")
            decoded = expects.decode(message)
        except MalformedMessage as error:
            raise Refusal.MALFORMED.refuse(error.message) from None
        if isinstance(decoded, Result) and self._spec is not None:
            return self._finish(decoded, self._spec)
        contribution, spec = self._contribution, expect(decoded, Specification)
        check_specification(spec, contribution, floor=1)
        attempt = AttemptId(spec.round, spec.exchange_index, spec.attempt)
        contribution.journal.begin(spec.study, attempt)
        contribution.journal.uploaded(spec.study, attempt)  # what leaves in the clear is spent at once
        self._spec, self._expects = spec, Result
        buffer = Upload.frame(contribution.shape.wire_bytes)
        room = buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + contribution.shape.wire_bytes]
        context = masks.MaskContext(spec.digest, contribution.broadcast_digest, contribution.shape)
        vector_digest = masks.write_masked(contribution.source, [], context, room)
        signature = contribution.identity.sign(labels.SIGN_UPLOAD, spec.digest, vector_digest)
        Upload.finish(buffer, bytes(32), vector_digest, signature)
        return buffer

    def _finish(self, result: Result, spec: Specification) -> Buffer:
        aggregator = self._contribution.roster.aggregator
        verify(aggregator, result.signature, labels.SIGN_RESULT, result.body(), who="aggregator")
        if result.spec_digest != spec.digest:
            raise Refusal.RESULT_MISMATCH.refuse()
        self.result = result
        return b""


class PlainServer:
    """Adds the vectors as they arrive."""

    def __init__(self, spec: Specification, roster: Roster, shape: VectorShape) -> None:
        self._spec, self._roster = spec, roster
        self._total = masks.Accumulator(shape)
        self._answered: set[SiteId] = set()  # also those whose upload was refused
        self._uploaded: set[SiteId] = set()
        self._finished = False
        self.spent = False
        self.disputes: tuple[tuple[SiteId, SiteId], ...] = ()  # sites send each other nothing

    @property
    def stage(self) -> str:
        """Plain protection has one step; it takes the name of the step it stands for."""
        return "done" if self._finished else "mask"

    def begin(self) -> Mapping[SiteId, Buffer]:
        """The specification to every site of the cohort."""
        return dict.fromkeys(self._spec.cohort, self._spec.encode())

    def receive(self, site: SiteId, reply: Buffer) -> None:
        """Add one vector."""
        if self._finished or site not in self._spec.cohort or site in self._answered:
            raise WrongState(f"site {site!r} was not asked, or answered twice")
        self._answered.add(site)
        upload = Upload.decode(reply)
        digest = masks.vector_digest(upload.vector)
        if digest != upload.vector_digest:
            raise MalformedMessage(f"the vector of site {site!r} does not match its signed digest")
        public = self._roster.public(site)
        verify(public, upload.signature, labels.SIGN_UPLOAD, self._spec.digest, digest, who=site)
        self._total.add(upload.vector)
        self._uploaded.add(site)
        self.spent = True

    def advance(self) -> Mapping[SiteId, Buffer]:
        """Finish; plain protection needs the same number of sites as the specification says."""
        if len(self._uploaded) < self._spec.threshold:
            raise RoundAborted(
                f"only {len(self._uploaded)} of {len(self._spec.cohort)} sites uploaded, "
                f"{self._spec.threshold} are needed.",
                remedy="wait for more sites",
            )
        self._finished = True
        return {}

    @property
    def survivors(self) -> tuple[SiteId, ...]:
        """Sites whose vector was added, in roster order."""
        return tuple(name for name in self._spec.cohort if name in self._uploaded)

    @property
    def sums(self) -> RingSums:
        """Ring integers of the sum."""
        return self._total.reduced()
