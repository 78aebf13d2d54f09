"""Masks on a sparse graph: the server's own checks, and what is the same in the complete graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    NeighbourSharing,
    ProvenUnmaskRequest,
    advert_digest,
)
from secfed.crypto.masked.states import AwaitSurvivors
from secfed.crypto.messages import Adverts, Shares, UnmaskRequest, names_digest
from secfed.crypto.refusals import Refusal
from secfed.errors import InconsistentView, RoundAborted
from tests.crypto.masked.sparse_case import SITE, Few, attempt_of, peers_of, sparse
from tests.ring import as_integers
from tests.simulator import Consortium


def _share_reply(reply: Buffer, **changes: Any) -> bytes:
    return replace(NeighbourSharing.decode(reply), **changes).encode()


@pytest.mark.parametrize("what", ["length", "padding", "self", "threshold", "name", "signature"])
def test_the_server_drops_a_site_whose_choice_is_no_choice(what: str) -> None:
    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("choose", SITE):
            return reply
        choice = Choice.decode(reply)
        changed = {
            "length": {"holders": choice.holders + b"\0"},
            "padding": {"holders": choice.holders[:1] + b"\xff"},
            "self": {"holders": b"\xff\x01"},
            "threshold": {"threshold": 4},
            "name": {"site": "hospital-1"},
            "signature": {},
        }[what]
        made = replace(choice, **changed)  # type: ignore[arg-type]
        listed = attempt.states[SITE][-1].listed.digest  # type: ignore[attr-defined]
        parts = labels.SIGN_CHOICE, attempt.spec.digest, b"" if what == "signature" else listed, made.body()
        return replace(made, signature=attempt.consortium.identities[SITE].sign(*parts)).encode()

    attempt = attempt_of(sparse(), up=up)
    attempt.run(until="share")
    assert set(attempt.refusals) == {f"server about {SITE}"}
    assert SITE not in attempt.requests


def test_the_server_drops_a_site_that_shares_with_others_than_its_neighbours() -> None:
    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("share", SITE):
            return reply
        return _share_reply(reply, seeds=())

    attempt = attempt_of(sparse(), up=up)
    attempt.run(until="confirm")
    assert isinstance(attempt.refusals[f"server about {SITE}"], InconsistentView)


@pytest.mark.parametrize("part", ["envelopes", "seeds"])
def test_a_bad_envelope_ends_the_attempt_before_anything_is_spent(part: str) -> None:
    """Whether it holds shares or a pair seed only, its recipient says so, and of whom."""
    accused: list[str] = []

    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("share", SITE):
            return reply
        sharing = NeighbourSharing.decode(reply)
        first, *others = getattr(sharing, part)
        bad = replace(first, sealed_seed=bytes(len(first.sealed_seed)))
        listed = attempt.states[SITE][-1].dealer.adverts_digest  # type: ignore[attr-defined]
        parts = bad.LABEL, attempt.spec.digest, listed, bad.body()
        bad = replace(bad, signature=attempt.consortium.identities[SITE].sign(*parts))
        accused.append(bad.recipient)
        return _share_reply(reply, **{part: (bad, *others)})

    attempt = attempt_of(sparse(), up=up)
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        attempt.run()
    assert attempt.server.disputes == ((accused[0], SITE),)
    assert not attempt.server.spent


def test_a_false_share_is_refused_and_its_sender_named() -> None:
    def up(stage: str, site: str, reply: Buffer) -> Buffer:
        if (stage, site) != ("unmask", SITE):
            return reply
        first, *others = Shares.decode(reply).shares
        unsigned = Shares((replace(first, share=bytes(33)), *others))
        parts = labels.SIGN_UNMASK, attempt.spec.digest, unsigned.body()
        return replace(unsigned, signature=attempt.consortium.identities[SITE].sign(*parts)).encode()

    attempt = attempt_of(sparse(graph=Few(count=4, threshold=2)), up=up)
    attempt.run()
    assert list(attempt.refusals) == [f"server about {SITE}"]
    assert as_integers(attempt.server.sums) == attempt.consortium.expected(attempt.consortium.names)


# Both graphs


def test_messages_of_one_graph_mean_nothing_in_the_other() -> None:
    consortium, complete = sparse(), Consortium(9)
    sparsely, completely = attempt_of(consortium).run(until="choose"), complete.attempt().run(until="share")
    adverts = Adverts.decode(completely.requests[SITE])
    sparsely.refused(SITE, adverts.encode(), Refusal.OUT_OF_ORDER)
    listed = AdvertDigests(tuple(advert_digest(advert) for advert in adverts.adverts))
    completely.refused(SITE, listed.encode(), Refusal.OUT_OF_ORDER)
    sparsely = attempt_of(sparse()).run(until="unmask")
    plain = ProvenUnmaskRequest.decode(sparsely.requests[SITE])
    sparsely.refused(SITE, UnmaskRequest(plain.dropped, plain.views).encode(), Refusal.OUT_OF_ORDER)


def test_the_journal_comes_before_everything_that_leaves() -> None:
    """As in the complete graph: the same calls in the same order."""
    attempt = attempt_of(sparse()).run()
    complete = Consortium(9).attempt().run()
    here, there = (one.consortium.journals[SITE] for one in (attempt, complete))
    assert (here.left, here.spent) == (there.left, there.spent)
    assert len(here.left) == len(here.spent) == 1


def test_what_a_site_signed_stands_beside_its_shares() -> None:
    """A proof is exactly the upload's signature: nothing new is signed for it."""
    attempt = attempt_of(sparse()).run(until="unmask")
    request = ProvenUnmaskRequest.decode(attempt.requests[SITE])
    assert {proof.site for proof in request.uploads} == peers_of(attempt).dealers
    for proof in request.uploads:
        upload = attempt.uploaded(proof.site)
        assert (proof.vector_digest, proof.signature) == (upload.vector_digest, upload.signature)
    state = attempt.states[SITE][-2]
    assert isinstance(state, AwaitSurvivors)
    assert upload.sharing_digest == names_digest(labels.SHARING_DIGEST, state.sharing)
