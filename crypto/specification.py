"""The rules for message 0, the same under every protection, and checks that later rules use too."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol, TypeVar

from secfed.crypto import labels
from secfed.crypto.attempt import SiteContribution, SumRules
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import verify
from secfed.crypto.messages import Message, Specification, peek_type
from secfed.crypto.refusals import Refusal
from secfed.errors import BadSignature, MalformedMessage

M = TypeVar("M", bound=Message)


class Signed(Protocol):
    """A record with a signature over its body."""

    @property
    def signature(self) -> bytes:
        """64 bytes."""
        ...

    def body(self) -> bytes:
        """See :meth:`secfed.crypto.record.Record.body`."""
        ...


def verified(
    record: Signed, public: bytes, label: bytes, *context: Buffer, who: str, refusal: Refusal
) -> None:
    """Check the signature of context and body; a wrong one is this refusal, naming ``who``."""
    try:
        verify(public, record.signature, label, *context, record.body(), who=who)
    except BadSignature:
        raise refusal.refuse(who) from None


def decode_as(kind: type[M] | None, message: Buffer) -> M:
    """The message as the only type that is taken now (refusals 1 and 2); ``kind`` None takes none."""
    try:
        found = peek_type(message)
        if kind is None or found != kind.TYPE:
            raise Refusal.OUT_OF_ORDER.refuse(f"message type {found}")
        return kind.decode(message)
    except MalformedMessage as error:
        raise Refusal.MALFORMED.refuse(error.message) from None


def ordered_subset(names: Iterable[str], whole: tuple[str, ...]) -> bool:
    """Whether ``names`` are distinct members of ``whole`` in its order."""
    position = {name: index for index, name in enumerate(whole)}
    at = [position.get(name, -1) for name in names]
    return all(index >= 0 for index in at) and all(a < b for a, b in pairwise(at))


def check_contributors(sites: Iterable[str], own: SumRules, *, strangers: int = 0) -> None:
    """Refuse (39) where too few of these sites add more than zeros to a part: zeros hide nothing.

    ``strangers`` is how many of the sites may be in no sum with this one.
    """
    present = frozenset(sites)
    for part, least in own.contributors:
        found, needed = len(part & present), max(least, own.colluders + 2) + strangers
        if 0 < found < needed:
            raise Refusal.TOO_FEW_CONTRIBUTORS.refuse(f"{found} of {needed}")


def check_cohort(spec: Specification, own: SumRules, *, floor: int, site: str | None) -> None:
    """Who may be in a sum: the same whether a site is asked to contribute to it or given the sum.

    ``floor`` is the smallest cohort of the protection; ``site`` must be in the cohort, None requires nobody.

    Raises:
        SecfedError: refusals 4-8 and 38.
    """
    roster, limits = own.roster, own.limits
    if spec.roster_digest != roster.digest:
        raise Refusal.ROSTER_CHANGED.refuse()
    for name in spec.cohort:
        if name not in roster.sites:
            raise Refusal.UNKNOWN_MEMBER.refuse(name)
    if not ordered_subset(spec.cohort, roster.sites):
        raise Refusal.COHORT_ORDER.refuse()
    if site is not None and site not in spec.cohort:
        raise Refusal.NOT_INVITED.refuse()
    for name in spec.cohort:
        if own.planned is not None and name not in own.planned:
            raise Refusal.NOT_PLANNED.refuse(name)
    if len(spec.cohort) < max(limits.min_cohort, floor):
        raise Refusal.COHORT_TOO_SMALL.refuse(f"{len(spec.cohort)} sites")


def check_specification(spec: Specification, own: SiteContribution, *, floor: int) -> None:
    """The rules for message 0 that every protection shares; ``floor`` is its smallest cohort.

    Raises:
        SecfedError: refusals 3-8, 10-16, 38 and 39.
    """
    roster, limits = own.roster, own.limits
    refusal = Refusal.SPEC_SIGNATURE
    verified(spec, roster.aggregator, labels.SIGN_SPEC, who="aggregator", refusal=refusal)
    check_cohort(spec, own, floor=floor, site=own.site)
    asked = (spec.study, spec.round, spec.exchange_index, spec.exchange)
    if asked != (own.study, own.round, own.exchange_index, own.exchange):
        raise Refusal.OTHER_EXCHANGE.refuse()
    check_contributors(spec.cohort, own)
    if own.shape.elements > limits.max_elements:
        raise Refusal.LAYOUT_TOO_LARGE.refuse(f"{own.shape.elements} elements")
    if spec.layout_digest != own.shape.digest:
        raise Refusal.LAYOUT_CHANGED.refuse()
    if spec.broadcast_digest != own.broadcast_digest:
        raise Refusal.BROADCAST_UNKNOWN.refuse()
    if limits.require_privacy and not own.privacy_applied:
        raise Refusal.PRIVACY_FLOOR.refuse()
