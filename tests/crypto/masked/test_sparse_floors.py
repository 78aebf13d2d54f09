"""What each site insists on in a sparse graph: enough sites that add something, fresh and signed keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.masked.choosing import AwaitNeighbourhood
from secfed.crypto.masked.graph import Holders
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    NeighbourDeliveries,
    Neighbourhood,
    ProvenUnmaskRequest,
    advert_digest,
)
from secfed.crypto.messages import Advert, SharingSet, Survivors
from secfed.crypto.refusals import Refusal
from tests.crypto.masked.sparse_case import SITE, Few, attempt_of, peers_of, refused_by_a_copy, sparse
from tests.simulator import Attempt, Consortium, SeededEntropy


@pytest.mark.parametrize(("owners", "enough"), [(6, False), (7, True)])
def test_survivors_of_whom_some_may_be_strangers_to_the_sum(owners: int, enough: bool) -> None:
    """Of nine survivors three may share no mask with a sum over six: they hide nobody in it."""
    consortium = sparse()
    parts = ((frozenset(consortium.names[:owners]), 4),)
    contributions = {
        name: {"contributors": parts, "entropy": SeededEntropy("a", name)} for name in consortium.names
    }
    attempt = consortium.attempt(contributions=contributions).run(until="consistency")
    if enough:
        attempt.run()
        return
    refused_by_a_copy(attempt, SITE, attempt.requests[SITE], Refusal.TOO_FEW_CONTRIBUTORS)
    few = (*consortium.names[:4], *consortium.names[-2:])
    attempt.deliver(SITE, Survivors(few).encode())  # as many as the sum has: there is no room for strangers


def test_a_switched_off_site_is_no_company_for_another() -> None:
    """The server makes up keys of a site that is off, drops all that drew it, and lists it as a survivor.

    No holder of its shares exists, so that nobody asks for a proof of its upload. If sites counted it, the
    sum would hold the part of one honest site alone.
    """
    graph, limits = Few(count=3, threshold=1), SiteLimits(colluders=1)
    consortium = Consortium(16, graph=graph, threshold=9, limits=limits)
    off, victim, colluder = "hospital-00", "hospital-01", "hospital-15"
    parts = ((frozenset({off, victim, colluder}), 3),)
    contributions = {
        name: {"contributors": parts, "entropy": SeededEntropy("three", name)} for name in consortium.names
    }
    attempt = consortium.attempt(contributions=contributions, silent={off: "advertise"})
    made_up = Advert(off, b"\1" * 1216, b"\2" * 1216, b"\3" * 32, b"\4" * 64)

    def answers() -> None:
        for site, message in attempt.requests.items():
            if site != off:
                attempt.server.receive(site, attempt.deliver(site, message))

    answers()
    attempt.server._state.adverts[off] = made_up  # type: ignore[union-attr]
    attempt.requests = dict(attempt.server.advance())
    attempt.requests.pop(off)
    attempt.run(until="mask")
    state: Any = attempt.server._state
    assert victim in state.sharing
    state.sharing = (off, *state.sharing)
    attempt.requests = dict.fromkeys(state.sharing, SharingSet(state.sharing).encode())
    answers()
    state.uploads[off] = None
    attempt.requests = dict(attempt.server.advance())
    assert {off, victim, colluder} <= set(Survivors.decode(attempt.requests[victim]).survivors)
    attempt.refused(victim, attempt.requests[victim], Refusal.TOO_FEW_CONTRIBUTORS)


@dataclass(frozen=True)
class Asked(Few):
    """Notes for what it is asked."""

    calls: list[tuple[int, int, int, int]] = field(default_factory=list)

    def holders(self, enrolled: int, least: int, colluders: int, advertised: int) -> Holders:
        self.calls.append((enrolled, least, colluders, advertised))
        return Holders(self.count, self.threshold)


def test_holders_are_counted_for_the_roster_and_for_whom_the_site_tolerates() -> None:
    """Ten are enrolled, nine asked, eight advertise: a server may ask other cohorts at the same time."""
    graph = Asked()
    consortium = Consortium(10, graph=graph, threshold=6, limits=SiteLimits(colluders=2))
    spec = consortium.specification(cohort=consortium.names[:9])
    consortium.attempt(spec, silent={"hospital-8": "advertise"}).run(until="share")
    assert set(graph.calls) == {(10, 6, 2, 8)}


def _shown(forge: Any) -> tuple[Attempt, Neighbourhood]:
    """A site to which the server has listed a forged advert, and the neighbourhood with it.

    Everybody is a holder, so that all keys are shown.
    """
    attempt = attempt_of(sparse(graph=Few(count=8, threshold=5))).run(until="choose")
    replies = {site: reply for stage, site, reply in attempt.replies if stage == "advertise"}
    adverts = tuple(Advert.decode(replies[name]) for name in attempt.consortium.names)
    forged = forge(attempt, adverts)
    adverts = tuple(forged if advert.site == forged.site else advert for advert in adverts)
    attempt.deliver(SITE, AdvertDigests(tuple(advert_digest(advert) for advert in adverts)).encode())
    assert isinstance(attempt.sites[SITE].state, AwaitNeighbourhood)
    return attempt, Neighbourhood(tuple(one for one in adverts if one.site != SITE), ())


def _resigned(attempt: Attempt, advert: Advert) -> Advert:
    parts = labels.SIGN_ADVERT, attempt.spec.digest, advert.body()
    return replace(advert, signature=attempt.consortium.identities[advert.site].sign(*parts))


def test_a_listed_advert_that_its_site_did_not_sign() -> None:
    attempt, shown = _shown(lambda _, adverts: replace(adverts[4], signature=bytes(64)))
    attempt.refused(SITE, shown.encode(), Refusal.ADVERT_SIGNATURE)


@pytest.mark.parametrize("owner", [0, 5])
def test_a_key_that_another_site_advertised(owner: int) -> None:
    """A neighbour's, or this site's own."""
    attempt, shown = _shown(
        lambda attempt, adverts: _resigned(attempt, replace(adverts[4], mask_key=adverts[owner].mask_key))
    )
    attempt.refused(SITE, shown.encode(), Refusal.DUPLICATE_KEY)


def test_envelopes_of_a_kind_that_their_sender_does_not_deal() -> None:
    """Of a dealer a seed alone, of another neighbour shares, or what was sealed for another recipient."""
    attempt = attempt_of(sparse()).run(until="confirm")
    honest = NeighbourDeliveries.decode(attempt.requests[SITE])
    names, peers = attempt.consortium.names, peers_of(attempt)
    envelope, seed = honest.envelopes[0], honest.seeds[0]
    deliveries = {
        name: NeighbourDeliveries.decode(message)
        for name, message in attempt.requests.items()
        if name != SITE
    }
    elsewhere = [one for other in deliveries.values() for one in other.envelopes]
    strays = [one for other in deliveries.values() for one in other.seeds]
    dealer_seed = next(one for one in strays if one.sender in peers.dealers)
    other_envelope = next(one for one in elsewhere if one.sender in peers.neighbours - peers.dealers)
    same_sender = next(one for one in elsewhere if one.sender == envelope.sender)

    def order(records: Any) -> tuple[Any, ...]:
        return tuple(sorted(records, key=lambda one: names.index(one.sender)))

    for forged in (
        replace(honest, seeds=order((*honest.seeds, replace(dealer_seed, recipient=SITE)))),
        replace(honest, envelopes=order((*honest.envelopes, replace(other_envelope, recipient=SITE)))),
        replace(honest, envelopes=(same_sender, *honest.envelopes[1:])),
        replace(honest, seeds=(replace(seed, recipient=names[1]), *honest.seeds[1:])),
    ):
        refused_by_a_copy(attempt, SITE, forged.encode(), Refusal.ENVELOPE_STRAY)
    refused_by_a_copy(attempt, SITE, NeighbourDeliveries((), ()).encode(), Refusal.TOO_FEW_SHARING)


def test_a_sharing_set_that_is_too_small_or_without_this_site() -> None:
    attempt = attempt_of(sparse()).run(until="mask")
    names, holders = attempt.consortium.names, sorted(peers_of(attempt).holders)
    kept = {SITE, *holders}
    few = tuple(name for name in names if name in kept)
    assert len(few) < attempt.spec.threshold
    refused_by_a_copy(attempt, SITE, SharingSet(few).encode(), Refusal.TOO_FEW_SHARING)
    refused_by_a_copy(attempt, SITE, SharingSet(names[1:]).encode(), Refusal.ENVELOPE_STRAY)


def test_views_and_proofs_in_another_order_or_of_outsiders() -> None:
    attempt = attempt_of(sparse(), silent={"hospital-8": "mask"}).run(until="unmask")
    honest = ProvenUnmaskRequest.decode(attempt.requests[SITE])
    outsider = replace(honest.views[-1], site="hospital-8")
    for views in (honest.views[::-1], (*honest.views, outsider), (*honest.views, honest.views[-1])):
        forged = replace(honest, views=views)
        refused_by_a_copy(attempt, SITE, forged.encode(), Refusal.VIEW_OUTSIDER)
    assert len(honest.uploads) > 1
    forged = replace(honest, uploads=honest.uploads[::-1])
    refused_by_a_copy(attempt, SITE, forged.encode(), Refusal.UPLOAD_UNPROVEN)
