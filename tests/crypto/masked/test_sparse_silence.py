"""What silence and strange choices cost in a sparse graph, and whom an honest server names."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.graph import Holders, SparseGraph
from secfed.crypto.masked.graph_messages import Choice, NeighbourSharing, SeedEnvelope
from secfed.crypto.masked.recovery import Dealt
from secfed.crypto.messages import Confirmation, Shares
from secfed.errors import InconsistentView, RoundAborted, SecfedError
from tests.crypto.masked.sparse_case import SITE, Few, attempt_of, peers_of, sparse
from tests.ring import as_integers
from tests.simulator import Attempt, Consortium, SeededEntropy

QUIET = "hospital-3"


def _dealt(choices: dict[str, Choice], names: tuple[str, ...]) -> Dealt:
    roster: Any = SimpleNamespace(sites=names)
    adverts: Any = dict.fromkeys(names)
    return Dealt(roster, b"", adverts, b"", choices=choices)


@pytest.mark.parametrize("draw", range(20))
def test_whom_enough_holders_are_left_of(draw: int) -> None:
    """What is left is the largest set whose members all have enough holders in it."""
    below = random.Random(draw)
    names = tuple(f"site-{at:02}" for at in range(20))
    chosen = {name: below.sample([n for n in names if n != name], 6) for name in names}
    choices = {name: Choice.of(name, holders, 4, names) for name, holders in chosen.items()}
    present = tuple(name for name in names if below.random() > 0.15)
    expected = set(present)
    while lost := {name for name in expected if len(expected.intersection(chosen[name])) < 4}:
        expected -= lost
    assert _dealt(choices, names).recoverable(present) == tuple(n for n in present if n in expected)


def test_a_long_chain_of_sites_that_hold_each_other_comes_undone() -> None:
    names = tuple(f"site-{at:04}" for at in range(1500))
    others = list(names[1201:])
    choices = {
        name: Choice.of(name, {names[at - 1]} if at <= 1200 else set(others) - {name}, 1, names)
        for at, name in enumerate(names)
        if at
    }
    assert _dealt(choices, names).recoverable(names[1:]) == tuple(others)


@pytest.mark.parametrize("stage", ["share", "confirm"])
def test_too_few_holders_before_anything_leaves_end_the_attempt_and_name_who_is_silent(stage: str) -> None:
    """All others answered, refused nothing, and can go on: in the next attempt they draw among each other."""
    entropies = {name: {"entropy": SeededEntropy("a", name)} for name in sparse().names}
    consortium = Consortium(9, graph=Few(count=4, threshold=4), threshold=6)
    attempt = consortium.attempt(contributions=entropies, silent={QUIET: stage})
    with pytest.raises(RoundAborted) as caught:
        attempt.run()
    assert attempt.server.stage == stage
    assert not attempt.server.spent
    assert not attempt.refusals
    assert [name for name in consortium.names if name in str(caught.value)] == [QUIET]


def test_a_site_with_too_few_holders_is_left_out_before_it_has_to_refuse() -> None:
    graph = Few(count=4, threshold=2)
    holders = sorted(peers_of(attempt_of(_small(graph)).run(until="confirm")).holders)
    attempt = attempt_of(_small(graph), silent=dict.fromkeys(holders[:3], "share")).run()
    assert not attempt.refusals
    assert SITE not in attempt.server.survivors
    assert as_integers(attempt.server.sums) == attempt.consortium.expected(attempt.server.survivors)


def _small(graph: SparseGraph) -> Consortium:
    return Consortium(9, graph=graph, threshold=5, limits=SiteLimits(colluders=0))


def test_holders_that_fall_silent_after_the_upload_are_named_and_no_dealer() -> None:
    attempt = attempt_of(sparse(graph=Few(count=3, threshold=3)), silent={QUIET: "unmask"})
    with pytest.raises(RoundAborted, match="stays masked") as caught:
        attempt.run()
    assert attempt.server.spent
    assert [name for name in attempt.consortium.names if name in str(caught.value)] == [QUIET]


def test_the_server_drops_a_site_whose_threshold_leaves_no_room_for_dropouts() -> None:
    """Otherwise one ordinary dropout after the uploads would lose the sum."""

    @dataclass(frozen=True)
    class Greedy(Few):
        def holders(self, enrolled: int, least: int, colluders: int, advertised: int) -> Holders:
            return Holders(self.count, self.count)

    attempt = attempt_of(sparse(graph=Few(dropout_rate=0.1)))
    attempt.sites[SITE].state = replace(attempt.sites[SITE].state, graph=Greedy())  # type: ignore[type-var]
    attempt.run(until="share")
    assert SITE not in attempt.requests
    assert isinstance(attempt.refusals[f"server about {SITE}"], InconsistentView)
    attempt.run()
    assert as_integers(attempt.server.sums) == attempt.consortium.expected(attempt.server.survivors)


@pytest.mark.parametrize("what", ["recipient", "sender", "signature", "seed signature"])
def test_the_server_drops_a_site_whose_envelopes_its_peers_would_refuse(what: str) -> None:
    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("share", SITE):
            return reply
        sharing = NeighbourSharing.decode(reply)
        if what == "seed signature":
            first, *rest = sharing.seeds
            return replace(sharing, seeds=(replace(first, signature=bytes(64)), *rest)).encode()
        envelopes = sharing.envelopes
        if what == "recipient":
            return replace(sharing, envelopes=envelopes[1:]).encode()
        made = replace(envelopes[0], sender="hospital-1" if what == "sender" else SITE)
        label = b"another label" if what == "signature" else made.LABEL
        listed = attempt.states[SITE][-1].dealer.adverts_digest  # type: ignore[attr-defined]
        signer = attempt.consortium.identities[SITE]
        signature = signer.sign(label, attempt.spec.digest, listed, made.body())
        return replace(sharing, envelopes=(replace(made, signature=signature), *envelopes[1:])).encode()

    attempt: Attempt = attempt_of(sparse(), up=up)
    attempt.run(until="confirm")
    assert list(attempt.refusals) == [f"server about {SITE}"]
    assert isinstance(attempt.refusals[f"server about {SITE}"], SecfedError)
    assert SITE not in attempt.requests


def test_too_few_choices_end_the_attempt() -> None:
    attempt = attempt_of(sparse(), silent=dict.fromkeys(sparse().names[:4], "choose"))
    with pytest.raises(RoundAborted, match="5 of 9 sites chose their holders"):
        attempt.run()


def test_a_complaint_about_a_stranger_is_refused() -> None:
    attempt = attempt_of(sparse()).run(until="confirm")
    peers = peers_of(attempt)
    stranger = next(n for n in peers.advertised if n != SITE and n not in peers.neighbours)
    listed = attempt.states[SITE][-1].dealer.adverts_digest  # type: ignore[attr-defined]
    complaint = Confirmation(SITE, (stranger,))
    parts = labels.SIGN_CONFIRMATION, attempt.spec.digest, listed, complaint.body()
    complaint = replace(complaint, signature=attempt.consortium.identities[SITE].sign(*parts))
    with pytest.raises(InconsistentView, match="sent it nothing"):
        attempt.server.receive(SITE, complaint.encode())


@pytest.mark.parametrize("left_out", [0, -1])
def test_shares_for_fewer_sites_than_a_holder_has_dealers_are_refused(left_out: int) -> None:
    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("unmask", SITE):
            return reply
        shares = list(Shares.decode(reply).shares)
        del shares[left_out]
        unsigned = Shares(tuple(shares))
        parts = labels.SIGN_UNMASK, attempt.spec.digest, unsigned.body()
        return replace(unsigned, signature=attempt.consortium.identities[SITE].sign(*parts)).encode()

    attempt: Attempt = attempt_of(sparse(graph=Few(count=4, threshold=2)), up=up)
    attempt.run()
    assert list(attempt.refusals) == [f"server about {SITE}"]
    assert "exactly the sharing set" in str(attempt.refusals[f"server about {SITE}"])


def test_a_seed_alone_states_no_shares() -> None:
    names = ("site-0", "site-1")
    dealt = _dealt({}, names)
    dealt.envelopes["site-0"] = {"site-1": SeedEnvelope("site-0", "site-1", b"")}
    with pytest.raises(InconsistentView, match="dealt no shares"):
        dealt.stated("site-0", "site-1")
