"""Masks on a sparse graph: exact sums whoever drops, and a server that tries what the graph might permit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secfed.crypto import labels, shamir
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.choosing import AwaitNeighbourhood
from secfed.crypto.masked.graph import ATTEMPTS, SparseGraph
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    NeighbourDeliveries,
    Neighbourhood,
    ProvenUnmaskRequest,
    UploadProof,
)
from secfed.crypto.masked.states import AwaitSharingSet
from secfed.crypto.messages import (
    Advert,
    SelfMaskShare,
    Shares,
    SharingSet,
    Survivors,
    Upload,
    View,
    view_parts,
)
from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted, SecfedError
from tests.crypto.masked.sparse_case import SITE, Few, attempt_of, peers_of, refused_by_a_copy, sparse
from tests.ring import as_integers
from tests.simulator import Attempt, Consortium, provokes

STAGES = ("advertise", "choose", "share", "confirm", "mask", "consistency", "unmask", "result")


# Sums


@pytest.mark.parametrize("silent", [None, *STAGES[:-1]])
def test_the_sum_is_exact_whenever_a_site_falls_silent(silent: str | None) -> None:
    consortium = sparse()
    attempt = attempt_of(consortium, silent={} if silent is None else {"hospital-3": silent}).run()
    gone = silent is not None and STAGES.index(silent) <= STAGES.index("mask")
    survivors = tuple(name for name in consortium.names if not gone or name != "hospital-3")
    assert attempt.server.survivors == survivors
    assert as_integers(attempt.server.sums) == consortium.expected(survivors)
    assert not attempt.refusals
    strangers = set(consortium.names) - {SITE} - peers_of(attempt).neighbours
    assert strangers


def test_with_everybody_as_a_holder_three_sites_are_enough() -> None:
    consortium = Consortium(3, graph=SparseGraph())
    attempt = consortium.attempt().run()
    assert as_integers(attempt.server.sums) == consortium.expected(consortium.names)


@pytest.mark.parametrize("draw", range(6))
def test_whoever_drops_at_whatever_stage_the_sum_is_exact_or_given_up(draw: int) -> None:
    generator = np.random.default_rng(draw)
    consortium = sparse()
    gone = generator.choice(consortium.names, size=int(generator.integers(0, 4)), replace=False)
    silent = {str(name): STAGES[int(generator.integers(0, 7))] for name in gone}
    attempt = attempt_of(consortium, f"draw {draw}", silent=silent)
    try:
        attempt.run()
    except RoundAborted:
        assert attempt.server.spent == (STAGES.index(attempt.stage) >= STAGES.index("mask"))
        return
    assert as_integers(attempt.server.sums) == consortium.expected(attempt.server.survivors)
    missing = {name for name, stage in silent.items() if STAGES.index(stage) <= STAGES.index("mask")}
    assert missing.isdisjoint(attempt.server.survivors)


def test_a_site_masks_towards_its_neighbours_in_the_sharing_set_only() -> None:
    attempt = attempt_of(sparse()).run(until="consistency")
    for site in attempt.consortium.names:
        deliveries = next(s for s in attempt.states[site] if isinstance(s, AwaitSharingSet))
        peers = deliveries.before.peers
        assert set(deliveries.opened) == peers.neighbours == peers.holders | peers.dealers
        assert {name for name, one in deliveries.opened.items() if one.shares} == peers.dealers


# What each party draws and deals


def test_holders_are_drawn_after_the_advertised_set_is_known() -> None:
    """Nothing that leaves before depends on the draw, and another advertised set gives another one."""
    attempts = {}
    for silent in ("", "hospital-8"):
        attempt = attempt_of(sparse(), silent={silent: "advertise"})
        attempt.run(until="choose")
        drawn = [s for s in attempt.states[SITE] if hasattr(s, "holders")]
        assert not drawn
        attempt.run(until="share")
        attempts[silent] = attempt.states[SITE][-1].holders  # type: ignore[attr-defined]
    assert attempts[""] != attempts["hospital-8"]
    assert "hospital-8" not in attempts["hospital-8"]


def test_a_choice_counts_for_one_advertised_set_only() -> None:
    attempt = attempt_of(sparse()).run(until="share")
    state = attempt.states[SITE][-1]
    assert isinstance(state, AwaitNeighbourhood)
    request = Neighbourhood.decode(attempt.requests[SITE])
    chooser = attempt.consortium.identities[request.choices[0].site]
    body = request.choices[0].body()
    for spec, listed in ((bytes(32), state.listed.digest), (attempt.spec.digest, bytes(32))):
        forged = replace(request.choices[0], signature=chooser.sign(labels.SIGN_CHOICE, spec, listed, body))
        message = replace(request, choices=(forged, *request.choices[1:]))
        refused_by_a_copy(attempt, SITE, message.encode(), Refusal.CHOICE_SIGNATURE)


def test_fewer_holders_than_the_threshold_learn_nothing_and_that_many_rebuild() -> None:
    attempt = attempt_of(sparse(graph=Few(count=5, threshold=4))).run(until="mask")
    peers, position = peers_of(attempt), attempt.consortium.roster.position
    shares = {
        position(name) + 1: attempt.states[name][-1].opened[SITE].shares[1]  # type: ignore[attr-defined]
        for name in peers.holders
    }
    secret = attempt.states[SITE][-1].before.secrets.self_seed  # type: ignore[attr-defined]
    assert len(shares) == 5
    for points in combinations(shares, 4):
        assert shamir.combine({at: shares[at] for at in points}, 4) == secret
    for points in combinations(shares, 3):
        with suppress(SecfedError):
            assert shamir.combine({at: shares[at] for at in points}, 3) != secret


def test_a_site_answers_for_its_dealers_only_and_once() -> None:
    attempt = attempt_of(sparse(), silent={"hospital-4": "mask"}).run(until="result")
    for stage, site, reply in attempt.replies:
        if stage == "unmask":
            assert {share.peer for share in Shares.decode(reply).shares} == peers_of(attempt, site).dealers
            request = ProvenUnmaskRequest((), (), ())
            with pytest.raises(SecfedError, match="refusal 34"):
                attempt.sites[site].handle(request.encode())


# A server that does not follow the protocol


@provokes(Refusal.TOO_MANY_ATTEMPTS)
def test_an_attempt_too_many() -> None:
    consortium = sparse()
    attempt = consortium.attempt(consortium.specification(attempt=ATTEMPTS - 1))
    attempt.run(until="choose")
    attempt = consortium.attempt(consortium.specification(attempt=ATTEMPTS, round=2))
    attempt.refused(SITE, attempt.requests[SITE], Refusal.TOO_MANY_ATTEMPTS)
    complete = Consortium()
    complete.attempt(complete.specification(attempt=ATTEMPTS)).run()


def _digests(attempt: Attempt, **changes: Any) -> dict[str, AdvertDigests]:
    lines = AdvertDigests.decode(attempt.requests[SITE]).adverts
    own = next(line for line in lines if line.site == SITE)
    stranger = replace(lines[1], site="stranger")
    return {
        "order": AdvertDigests((lines[1], lines[0], *lines[2:])),
        "repeated": AdvertDigests((lines[0], lines[1], lines[1], *lines[2:])),
        "stranger": AdvertDigests((*lines, stranger)),
        "own": AdvertDigests((replace(own, digest=bytes(32)), *lines[1:])),
        "few": AdvertDigests(lines[:5]),
    }


def test_a_false_list_of_who_advertised() -> None:
    attempt = attempt_of(sparse()).run(until="choose")
    forged = _digests(attempt)
    for name, refusal in {
        "order": Refusal.ADVERT_ORDER,
        "repeated": Refusal.ADVERT_ORDER,
        "stranger": Refusal.ADVERT_OUTSIDER,
        "own": Refusal.OWN_ADVERT,
        "few": Refusal.TOO_FEW_ADVERTS,
    }.items():
        refused_by_a_copy(attempt, SITE, forged[name].encode(), refusal)


def test_sites_with_different_lists_take_no_choice_of_each_other() -> None:
    """The server hides a site from one half: a choice made under one list counts for nothing in the other."""
    names = sparse().names

    def down(stage: str, site: str, message: Buffer) -> Buffer:
        if stage == "choose" and site in names[:4]:
            lines = AdvertDigests.decode(message).adverts
            return AdvertDigests(tuple(line for line in lines if line.site != names[-1])).encode()
        return message

    attempt = attempt_of(sparse(), down=down)
    with pytest.raises(RoundAborted):
        attempt.run()
    assert not attempt.server.spent
    text = {str(error) for site, error in attempt.refusals.items() if not site.startswith("server")}
    assert text <= {e for e in text if "refusal 47" in e or "refusal 48" in e}


@provokes(Refusal.CHOICE_SIGNATURE)
def test_a_choice_that_its_site_did_not_sign() -> None:
    attempt = attempt_of(sparse()).run(until="share")
    request = Neighbourhood.decode(attempt.requests[SITE])
    first, *others = request.choices
    forged = replace(first, threshold=first.threshold + 1)
    refused_by_a_copy(
        attempt, SITE, replace(request, choices=(forged, *others)).encode(), Refusal.CHOICE_SIGNATURE
    )


@provokes(Refusal.NEIGHBOURHOOD)
def test_a_forged_neighbourhood() -> None:
    """Missing, added and exchanged neighbours; choices out of order, repeated, or not of this site."""
    attempt = attempt_of(sparse()).run(until="share")
    consortium, state = attempt.consortium, attempt.states[SITE][-1]
    assert isinstance(state, AwaitNeighbourhood)
    honest = Neighbourhood.decode(attempt.requests[SITE])
    adverts = {site: Advert.decode(reply) for stage, site, reply in attempt.replies if stage == "advertise"}
    stranger = next(n for n in consortium.names if n != SITE and n not in {a.site for a in honest.adverts})
    choices, first = honest.choices, honest.adverts[0]
    other = next(
        Choice.decode(reply)
        for stage, site, reply in attempt.replies
        if stage == "choose" and site != SITE and SITE not in Choice.decode(reply).names(consortium.names)
    )
    fresh = replace(first, mask_key=adverts[stranger].mask_key)
    parts = labels.SIGN_ADVERT, attempt.spec.digest, fresh.body()
    fresh = replace(fresh, signature=consortium.identities[first.site].sign(*parts))

    def resigned(**changes: Any) -> Choice:
        made = replace(choices[0], **changes)
        parts = labels.SIGN_CHOICE, attempt.spec.digest, state.listed.digest, made.body()
        return replace(made, signature=consortium.identities[made.site].sign(*parts))

    holder = next(a for a in honest.adverts if a.site not in {c.site for c in choices})
    for forged in (
        replace(honest, adverts=honest.adverts[1:]),
        replace(honest, adverts=tuple(a for a in honest.adverts if a != holder)),
        replace(honest, adverts=(*honest.adverts, adverts[stranger])),
        replace(honest, adverts=(fresh, *honest.adverts[1:])),
        replace(honest, adverts=honest.adverts[::-1]),
        replace(honest, choices=(*choices, choices[-1])),
        replace(honest, choices=choices[1:]),
        replace(honest, choices=tuple(sorted((*choices, other), key=lambda c: c.site))),
        replace(honest, choices=(resigned(threshold=0), *choices[1:])),
        replace(honest, choices=(resigned(threshold=9), *choices[1:])),
        replace(honest, choices=(resigned(holders=b"\xff\x01"), *choices[1:])),  # itself, too
        replace(honest, choices=(resigned(holders=choices[0].holders + b"\0"), *choices[1:])),
        replace(honest, choices=(resigned(holders=b"\x01\xf0", threshold=1), *choices[1:])),
    ):
        refused_by_a_copy(attempt, SITE, forged.encode(), Refusal.NEIGHBOURHOOD)
    attempt.run()


def test_a_hidden_chooser_gains_the_server_nothing() -> None:
    """Neither of the two masks towards the other, and then they cannot be in one sharing set."""
    base = attempt_of(sparse()).run(until="share")
    hidden = Neighbourhood.decode(base.requests[SITE]).choices[0].site

    def down(stage: str, site: str, message: Buffer) -> Buffer:
        if stage != "share" or site != SITE:
            return message
        honest = Neighbourhood.decode(message)
        choices = tuple(choice for choice in honest.choices if choice.site != hidden)
        drawn = base.states[SITE][-1].holders  # type: ignore[attr-defined]
        left = {choice.site for choice in choices} | set(drawn)
        return Neighbourhood(tuple(a for a in honest.adverts if a.site in left), choices).encode()

    attempt = attempt_of(sparse(), down=down).run(until="confirm")
    if hidden in base.states[SITE][-1].holders:  # type: ignore[attr-defined]
        pytest.skip("this draw made the two each other's holders")
    assert f"server about {SITE}" in attempt.refusals
    attempt.run(until="mask")
    everybody = SharingSet(attempt.consortium.names).encode()
    attempt.refused(hidden, everybody, Refusal.ENVELOPE_STRAY)


def test_envelopes_that_are_not_for_this_site_or_not_signed() -> None:
    attempt = attempt_of(sparse()).run(until="confirm")
    honest = NeighbourDeliveries.decode(attempt.requests[SITE])
    other = NeighbourDeliveries.decode(attempt.requests["hospital-1"])
    seed, envelope = honest.seeds[0], honest.envelopes[0]
    for forged, refusal in (
        (replace(honest, seeds=(*honest.seeds, seed)), Refusal.ENVELOPE_STRAY),
        (replace(honest, seeds=(other.seeds[0],)), Refusal.ENVELOPE_STRAY),
        (replace(honest, envelopes=(*honest.envelopes, envelope)), Refusal.ENVELOPE_STRAY),
        (replace(honest, envelopes=other.envelopes), Refusal.ENVELOPE_STRAY),
        (replace(honest, seeds=(replace(seed, signature=bytes(64)),)), Refusal.ENVELOPE_SIGNATURE),
        (
            replace(honest, envelopes=(replace(envelope, signature=bytes(64)), *honest.envelopes[1:])),
            Refusal.ENVELOPE_SIGNATURE,
        ),
    ):
        refused_by_a_copy(attempt, SITE, forged.encode(), refusal)


def test_too_few_of_its_own_holders() -> None:
    attempt = attempt_of(sparse()).run(until="mask")
    holders = peers_of(attempt).holders
    left = tuple(n for n in attempt.consortium.names if n not in sorted(holders)[:2])
    assert len(left) >= attempt.spec.threshold
    refused_by_a_copy(attempt, SITE, SharingSet(left).encode(), Refusal.TOO_FEW_SHARING)


def test_an_honest_server_leaves_out_whom_too_few_could_open() -> None:
    """Three of a site's four holders never confirm: the site would refuse, and is not asked."""
    graph, limits = Few(count=4, threshold=2), SiteLimits(colluders=0)

    def consortium() -> Consortium:
        return Consortium(9, graph=graph, threshold=5, limits=limits)

    holders = sorted(peers_of(attempt_of(consortium()).run(until="confirm")).holders)
    attempt = attempt_of(consortium(), silent=dict.fromkeys(holders[:3], "confirm")).run()
    assert SITE not in attempt.server.survivors
    assert as_integers(attempt.server.sums) == attempt.consortium.expected(attempt.server.survivors)
    assert not attempt.refusals


LONELY = "hospital-00"


def _lonely(consortium: Consortium) -> tuple[Attempt, tuple[str, ...]]:
    """An attempt in which the victim is shown a sharing set without any of its neighbours."""
    neighbours = peers_of(attempt_of(consortium).run(until="confirm"), LONELY).neighbours
    alone = tuple(name for name in consortium.names if name not in neighbours)
    consortium.forget(consortium.names)

    def down(stage: str, site: str, message: Buffer) -> Buffer:
        return SharingSet(alone).encode() if (stage, site) == ("mask", LONELY) else message

    return attempt_of(consortium, down=down), alone


@provokes(Refusal.UPLOAD_UNPROVEN)
def test_a_victim_without_neighbours_is_not_unmasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack that a sparse graph invites: a site that sees none of its neighbours has a self mask only.

    If enough holders then gave out shares of it, its update would lie open. Each holder wants to see first
    what the victim signed when it uploaded.
    """
    consortium = Consortium(16, graph=Few(count=2, threshold=2), threshold=9, limits=SiteLimits(colluders=1))
    # Sites count their own holders in the set that they are shown: without that rule, too, the proof holds.
    monkeypatch.setattr("secfed.crypto.masked.dealing.Peers.holding", lambda *_: 99)
    attempt, alone = _lonely(consortium)
    assert len(alone) >= 9
    attempt.run(until="mask")
    sharing = SharingSet.decode(attempt.requests[consortium.names[5]]).sharing
    requests = dict(attempt.requests)
    uploads = {}
    for site, message in requests.items():
        shown = SharingSet(alone).encode() if site == LONELY else message
        uploads[site] = Upload.decode(attempt.deliver(site, shown))
    for site in sharing:
        if site != LONELY:
            View.decode(attempt.deliver(site, Survivors(sharing).encode()))
    listed = next(
        s.before.dealer.adverts_digest for s in attempt.states[LONELY] if isinstance(s, AwaitSharingSet)
    )
    parts = view_parts(attempt.spec.digest, listed, sharing, sharing)
    views = tuple(
        View(n, consortium.identities[n].sign(labels.SIGN_VIEW, *parts)) for n in sharing if n != LONELY
    )
    proofs = {n: UploadProof(n, up.vector_digest, up.signature) for n, up in uploads.items()}
    holders = [n for n in consortium.names if LONELY in peers_of(attempt, n).dealers]
    assert len(holders) == 2
    for holder in holders:
        mine = tuple(proofs[n] for n in sharing if n in peers_of(attempt, holder).dealers)
        without = tuple(proof for proof in mine if proof.site != LONELY)
        for shown in (mine, without):
            request = ProvenUnmaskRequest((), views, shown)
            refused_by_a_copy(attempt, holder, request.encode(), Refusal.UPLOAD_UNPROVEN)
    # And it is the proof that stands between: with it out of the way the victim's own shares leave.
    monkeypatch.setattr("secfed.crypto.masked.states.verify", lambda *_args, **_kwargs: None)
    mine = tuple(proofs[n] for n in sharing if n in peers_of(attempt, holders[0]).dealers)
    reply = attempt.deliver(holders[0], ProvenUnmaskRequest((), views, mine).encode())
    assert LONELY in {share.peer for share in Shares.decode(reply).shares if isinstance(share, SelfMaskShare)}
