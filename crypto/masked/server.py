"""The aggregator's half of masked protection: it relays, adds, and asks for exactly one set of shares.

    advertise -> share -> confirm -> mask -> consistency -> unmask -> done

In a sparse graph ``choose`` comes after ``advertise``. This file holds the session and the states before
anything masked leaves a site, ``server_sum.py`` the others. Each state takes one reply per site and knows how
to close its step. A reply that is wrong is an error for that site only: the caller counts the site as dropped
and goes on. What a site can do wrong towards its *peers* shows before anything that is masked leaves a site:
as a complaint, which ends the attempt, and of which the server says between whom it stands (``disputes.py``
says what follows from it). What the server can learn is the sum over the survivors; everything a server could
try instead is refused by the sites (``client.py`` and the files it names), so this file carries no trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from secfed.crypto import labels, sealing
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.graph import Holders, SparseGraph
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    NeighbourDeliveries,
    Neighbourhood,
    NeighbourSharing,
    SeedEnvelope,
    advert_digest,
)
from secfed.crypto.masked.recovery import Dealt
from secfed.crypto.masked.server_sum import Attempt, Done, Mask, State
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Confirmation,
    Deliveries,
    Envelope,
    Message,
    Sharing,
    SharingSet,
    Specification,
)
from secfed.crypto.specification import ordered_subset
from secfed.errors import InconsistentView, RoundAborted, WrongState


@dataclass
class _Advertise:
    attempt: Attempt
    graph: SparseGraph | None
    stage: str = "advertise"
    adverts: dict[str, Advert] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        advert = Advert.decode(reply)
        if advert.site != site:
            raise InconsistentView(f"site {site!r} advertised in another site's name")
        self.attempt.check_signed(site, advert, labels.SIGN_ADVERT)
        for public in (advert.mask_key, advert.seal_key):
            # A trial: a key that cannot be sealed to would make every peer refuse, not only drop this site.
            sealing.seal(public, b"", labels.SEAL_PAIR_SEED)
        self._check_fresh(advert)
        self.adverts[site] = advert

    def _check_fresh(self, advert: Advert) -> None:
        """Take no key twice: every peer would refuse (20), and the attempt would die of one site.

        Whoever comes second is dropped. Only who reads an honest site's advert before the server has it could
        come first with a copy, and who sits there can hold that site's messages back as well.
        """
        if len(set(advert.fresh)) < len(advert.fresh):
            raise InconsistentView(f"site {advert.site!r} advertised one key for two purposes")
        for other in self.adverts.values():
            if not set(advert.fresh).isdisjoint(other.fresh):
                raise InconsistentView(
                    f"site {advert.site!r} advertised a key or commitment that site {other.site!r} had "
                    "advertised before"
                )

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        self.attempt.require(self.adverts, "advertised keys")
        names = self.attempt.in_order(self.adverts)
        if self.graph is not None:
            listed = AdvertDigests(tuple(advert_digest(self.adverts[name]) for name in names))
            self.attempt.adverts_digest = listed.digest
            dealt = Dealt(self.attempt.roster, self.attempt.spec.digest, self.adverts, listed.digest)
            return _Choose(self.attempt, dealt, self.graph), dict.fromkeys(names, listed.encode())
        message = Adverts(tuple(self.adverts[name] for name in names))
        encoded = message.encode()
        self.attempt.adverts_digest = message.digest
        dealt = Dealt(self.attempt.roster, self.attempt.spec.digest, self.adverts, message.digest)
        return _Share(self.attempt, dealt), dict.fromkeys(names, encoded)


@dataclass
class _Choose:
    """Only in a sparse graph."""

    attempt: Attempt
    dealt: Dealt
    graph: SparseGraph
    stage: str = "choose"
    choices: dict[str, Choice] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        choice = Choice.decode(reply)
        if choice.site != site:
            raise InconsistentView(f"site {site!r} chose in another site's name")
        self.attempt.check_signed(site, choice, labels.SIGN_CHOICE, self.dealt.adverts_digest)
        holders = choice.names(self.attempt.in_order(self.dealt.adverts))
        if not holders:
            raise InconsistentView(f"site {site!r} did not choose its holders among the other sites")
        # A threshold that leaves no room for dropouts would lose the sum to the first of them, updates spent.
        chosen, advertised = Holders(len(holders), choice.threshold), len(self.dealt.adverts)
        if not self.graph.survives(chosen, self.attempt.spec.threshold, advertised):
            raise InconsistentView(
                f"site {site!r} wants {chosen.threshold} of its {chosen.count} holders: more than are left "
                "with the dropouts that the study expects"
            )
        self.choices[site] = choice

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        self.attempt.require(self.choices, "chose their holders")
        dealt = replace(self.dealt, choices=self.choices)
        advertised, choosers = self.attempt.in_order(dealt.adverts), self.attempt.in_order(self.choices)
        requests = {
            site: Neighbourhood(
                tuple(dealt.adverts[name] for name in advertised if dealt.adjacent(site, name)),
                tuple(self.choices[name] for name in choosers if dealt.holds(site, name)),
            ).encode()
            for site in choosers
        }
        return _Share(self.attempt, dealt), requests


@dataclass
class _Share:
    attempt: Attempt
    dealt: Dealt
    stage: str = "share"

    def receive(self, site: str, reply: Buffer) -> None:
        dealt, seeds = self.dealt, tuple[SeedEnvelope, ...]()
        if dealt.choices is None:
            envelopes = Sharing.decode(reply).envelopes
        else:
            sharing = NeighbourSharing.decode(reply)
            envelopes, seeds = sharing.envelopes, sharing.seeds
        peers = [name for name in self.attempt.in_order(dealt.adverts) if dealt.adjacent(site, name)]
        holders = [name for name in peers if dealt.holds(name, site)]
        others = [name for name in peers if not dealt.holds(name, site)]
        if [one.recipient for one in envelopes] != holders or [one.recipient for one in seeds] != others:
            raise InconsistentView(f"site {site!r} did not share with exactly the advertised peers")
        every: tuple[Envelope | SeedEnvelope, ...] = (*envelopes, *seeds)
        for envelope in every:
            if envelope.sender != site:
                raise InconsistentView(f"site {site!r} shared in another site's name")
            self.attempt.check_signed(site, envelope, envelope.LABEL, dealt.adverts_digest)
        dealt.envelopes[site] = {envelope.recipient: envelope for envelope in every}

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        answered = self.attempt.in_order(self.dealt.envelopes)
        self.attempt.require(self.dealt.envelopes, "shared secrets")
        # Already now: honest sites would refuse (26), and be missing from the next attempt, too.
        dealers = _recoverable(self.attempt, self.dealt, answered, self.attempt.in_order(self.dealt.adverts))
        requests = {name: self._deliveries(name, dealers).encode() for name in dealers}
        return _Confirm(self.attempt, self.dealt, dealers), requests

    def _deliveries(self, site: str, dealers: tuple[str, ...]) -> Message:
        found = [self.dealt.envelopes[peer][site] for peer in dealers if self.dealt.adjacent(peer, site)]
        envelopes = tuple(one for one in found if isinstance(one, Envelope))
        if self.dealt.choices is None:
            return Deliveries(envelopes)
        return NeighbourDeliveries(envelopes, tuple(one for one in found if isinstance(one, SeedEnvelope)))


@dataclass
class _Confirm:
    attempt: Attempt
    dealt: Dealt
    dealers: tuple[str, ...]
    stage: str = "confirm"
    complaints: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def receive(self, site: str, reply: Buffer) -> None:
        confirmation = Confirmation.decode(reply)
        if confirmation.site != site:
            raise InconsistentView(f"site {site!r} confirmed in another site's name")
        self.attempt.check_signed(site, confirmation, labels.SIGN_CONFIRMATION, self.dealt.adverts_digest)
        senders = tuple(name for name in self.dealers if self.dealt.adjacent(name, site))
        if not ordered_subset(confirmation.complaints, senders):
            raise InconsistentView(f"site {site!r} complained of a site that sent it nothing")
        self.complaints[site] = confirmation.complaints

    def close(self) -> tuple[State, Mapping[str, Buffer]]:
        answered = self.attempt.in_order(self.complaints)
        self.attempt.disputes = tuple((one, other) for one in answered for other in self.complaints[one])
        if self.attempt.disputes:
            # Before the first upload: no update is spent, and another attempt can do without the culprit.
            raise RoundAborted(
                "; ".join(f"{one} cannot use the envelope of {other}" for one, other in self.attempt.disputes)
                + "; nothing was revealed.",
                remedy="one of the two does not follow the protocol; ask both",
            )
        self.attempt.require(self.complaints, "confirmed their envelopes")
        sharing = _recoverable(self.attempt, self.dealt, answered, self.dealers)
        encoded = SharingSet(sharing).encode()
        return Mask(self.attempt, self.dealt, sharing), dict.fromkeys(sharing, encoded)


def _recoverable(
    attempt: Attempt, dealt: Dealt, answered: tuple[str, ...], asked: tuple[str, ...]
) -> tuple[str, ...]:
    """Those of whose holders enough are left: others would refuse, or cost the sum.

    Raises:
        RoundAborted: they are fewer than the threshold. All that answered can take part in another attempt,
            for which they draw among those that are left.
    """
    kept = dealt.recoverable(answered)
    if len(kept) < attempt.spec.threshold:
        silent = ", ".join(name for name in asked if name not in answered)
        raise RoundAborted(
            f"without {silent} only {len(kept)} sites have enough holders left, {attempt.spec.threshold} are "
            "needed; nothing was revealed.",
            remedy="ask those sites; if it happens often, set a higher protection.dropout_rate",
        )
    return kept


class MaskedServer:
    """The aggregator's session for one attempt. Sans-I/O."""

    def __init__(
        self,
        spec: Specification,
        roster: Roster,
        shape: VectorShape,
        *,
        graph: SparseGraph | None = None,
        cipher: StreamCipher = StreamCipher.CHACHA20,
    ) -> None:
        context = masks.MaskContext(spec.digest, spec.broadcast_digest, shape, cipher)
        self._attempt = Attempt(spec, roster, context, masks.Accumulator(shape))
        self._state: State = _Advertise(self._attempt, graph)
        self._asked: tuple[str, ...] = ()
        self._answered: set[str] = set()
        self.spent = False  # once true, the sites' updates are spent

    def begin(self) -> Mapping[str, Buffer]:
        """Message 0 to every site of the cohort."""
        encoded = self._attempt.spec.encode()
        self._asked = self._attempt.spec.cohort
        return dict.fromkeys(self._asked, encoded)

    def receive(self, site: str, reply: Buffer) -> None:
        """Take one reply to the current requests; a site whose reply is refused counts as dropped."""
        if site not in self._asked or site in self._answered:
            raise WrongState(f"site {site!r} was not asked, or answered twice")
        self._answered.add(site)
        self._state.receive(site, reply)

    def advance(self) -> Mapping[str, Buffer]:
        """Close the current step; the next requests, empty when done.

        Raises:
            RoundAborted: fewer sites than the threshold are left.
        """
        self._state, requests = self._state.close()
        self._asked, self._answered = tuple(requests), set()
        if isinstance(self._state, Mask):
            self.spent = True
        return requests

    @property
    def stage(self) -> str:
        """Name of the current step."""
        return self._state.stage

    @property
    def disputes(self) -> tuple[tuple[str, str], ...]:
        """Complaints that ended the attempt: (who complained, of whom). One of each two is at fault."""
        return self._attempt.disputes

    @property
    def _done(self) -> Done:
        if not isinstance(self._state, Done):
            raise WrongState("the sum is not complete yet")
        return self._state

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites whose summand is in the sum."""
        return self._done.survivors

    @property
    def shape(self) -> VectorShape:
        """Of what is summed."""
        return self._attempt.context.shape

    @property
    def adverts_digest(self) -> bytes:
        """What the streams that close a sum are bound to, beside the specification."""
        return self._done.attempt.adverts_digest

    @property
    def sums(self) -> tuple[NDArray[Any], ...]:
        """Ring integers of the sum, one array per run."""
        return self._done.attempt.total.reduced()
