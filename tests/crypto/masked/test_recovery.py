"""Recovery of secrets at full size, with as many liars as are tolerated: linear work, and the right names."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest

from secfed.crypto import labels, shamir, thresholds
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.masked.key_derivation import commitment, envelope_context, share_digest
from secfed.crypto.masked.recovery import Dealt, check_shares, unmasking_streams
from secfed.crypto.messages import Advert, Envelope, MaskSecretShare, SelfMaskShare
from secfed.errors import InconsistentView, RoundAborted
from tests.simulator import SeededEntropy

SITES = 100
COLLUDERS = thresholds.default_colluders(SITES)
THRESHOLD = thresholds.default_threshold(SITES)
NAMES = tuple(f"site-{index:02d}" for index in range(SITES))
EVENLY = NAMES[::3][:COLLUDERS]
SPEC, ADVERTS = b"\1" * 32, b"\2" * 32


@dataclass(frozen=True)
class Case:
    """What a hundred sites dealt, and what each of them holds."""

    seeds: dict[str, bytes]
    dealt: Dealt
    held: dict[str, dict[str, bytes]]  # holder -> dealer -> share


@functools.cache
def case() -> Case:
    """Only the self masks: that is what survivors are asked for."""
    entropy = SeededEntropy("recovery")
    identities = [Identity.from_seed(name, name.encode().ljust(32, b".")) for name in NAMES]
    roster = Roster.of(Identity.from_seed("aggregator", bytes(32)), identities)
    points = [roster.position(name) + 1 for name in NAMES]
    seeds, adverts, envelopes = {}, {}, {}
    held: dict[str, dict[str, bytes]] = {name: {} for name in NAMES}
    for dealer in NAMES:
        seeds[dealer] = entropy.token("self-mask seed")
        adverts[dealer] = Advert(dealer, b"", b"", commitment(seeds[dealer]))
        shares = shamir.split(seeds[dealer], THRESHOLD, points, randbelow=entropy.below)
        envelopes[dealer] = {}
        for holder in NAMES:
            share = held[holder][dealer] = shares[roster.position(holder) + 1]
            context = envelope_context(SPEC, ADVERTS, dealer, holder)
            stated = share_digest(labels.SELF_MASK_SHARE, context, share)
            envelopes[dealer][holder] = Envelope(dealer, holder, b"", b"", bytes(32), stated)
    return Case(seeds, Dealt(roster, SPEC, adverts, ADVERTS, envelopes), held)


def _shares(held: dict[str, bytes], **changed: bytes) -> list[SelfMaskShare]:
    return [SelfMaskShare(peer, share) for peer, share in sorted({**held, **changed}.items())]


def test_a_third_of_a_hundred_sites_lies_evenly_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One interpolation a secret: no subset of the answers is tried that could contain a liar."""
    found = case()
    assert (COLLUDERS, THRESHOLD, len(EVENLY)) == (33, 67, 33)
    answers: dict[str, dict[str, bytes]] = {}
    for holder in NAMES:
        shares = _shares(found.held[holder])
        if holder in EVENLY:  # about one peer each, so that everything else looks right
            victim = next(name for name in NAMES if name not in EVENLY)
            shares = _shares(found.held[holder], **{victim: bytes(33)})
            with pytest.raises(InconsistentView, match=f"site '{holder}' returned another share"):
                check_shares(holder, shares, NAMES, found.dealt)
            continue
        check_shares(holder, shares, NAMES, found.dealt)
        answers[holder] = found.held[holder]
    assert len(answers) == THRESHOLD
    interpolations, rebuilt = [], shamir.combine

    def combine(shares: dict[int, bytes], threshold: int) -> bytes:
        interpolations.append(len(shares))
        return rebuilt(shares, threshold)

    monkeypatch.setattr(shamir, "combine", combine)
    streams = unmasking_streams(found.dealt, NAMES, (), answers, threshold=THRESHOLD)
    assert [stream.secret for stream in streams] == list(found.seeds.values())
    assert interpolations == [THRESHOLD] * SITES


def test_a_share_of_another_dealer_or_kind_or_holder_is_not_the_one_that_was_dealt() -> None:
    found = case()
    first, second, third = NAMES[:3]
    mine = found.held[first]
    for wrong in (mine[third], found.held[third][second]):
        with pytest.raises(InconsistentView, match=f"'{first}' returned another share"):
            check_shares(first, _shares(mine, **{second: wrong}), NAMES, found.dealt)


def test_a_share_of_the_secret_that_was_not_asked_for_is_refused_though_it_was_dealt() -> None:
    """Taken for a share of the other secret, it would spoil the sum, and its dealer would look guilty."""
    found = case()
    me, dealer = NAMES[:2]
    dealt_too = share_digest(labels.MASK_SECRET_SHARE, found.dealt.context(dealer, me), bytes(33))
    envelope = replace(found.dealt.envelopes[dealer][me], mask_secret_share_digest=dealt_too)
    dealt = replace(found.dealt, envelopes={**found.dealt.envelopes, dealer: {me: envelope}})
    other = MaskSecretShare(dealer, bytes(33))
    check_shares(me, [other], [me], dealt)  # the dealer dropped
    with pytest.raises(InconsistentView, match=f"'{me}' returned a share of the wrong kind"):
        check_shares(me, [other], NAMES, dealt)


def test_a_mask_secret_that_its_owner_shared_wrongly_is_its_owners_fault() -> None:
    """Not that of the survivor whose envelope such a secret does not open."""
    found = case()
    dropped, survivor = NAMES[:2]
    answers = {name: found.held[name] for name in NAMES[1 : THRESHOLD + 1]}
    with pytest.raises(RoundAborted, match=f"site '{dropped}' dealt or returned shares"):
        unmasking_streams(found.dealt, (survivor,), (dropped,), answers, threshold=THRESHOLD)


def test_a_false_share_of_ones_own_seed_is_not_needed_while_others_answer() -> None:
    """It is the one share that no digest vouches for."""
    found = case()
    liar = NAMES[0]
    answers = {name: found.held[name] for name in NAMES[: THRESHOLD + 1]}
    answers[liar] = {**answers[liar], liar: bytes(33)}
    check_shares(liar, _shares(answers[liar]), NAMES, found.dealt)
    streams = unmasking_streams(found.dealt, (liar,), (), answers, threshold=THRESHOLD)
    assert streams[0].secret == found.seeds[liar]
    fewer = {name: answers[name] for name in NAMES[:THRESHOLD]}
    with pytest.raises(RoundAborted, match=f"site '{liar}' dealt or returned shares"):
        unmasking_streams(found.dealt, (liar,), (), fewer, threshold=THRESHOLD)


def test_the_digest_of_a_share_is_bound_to_its_kind_attempt_dealer_and_holder() -> None:
    context = envelope_context(SPEC, ADVERTS, "dealer", "holder")
    others = [
        envelope_context(ADVERTS, ADVERTS, "dealer", "holder"),
        envelope_context(SPEC, SPEC, "dealer", "holder"),
        envelope_context(SPEC, ADVERTS, "another", "holder"),
        envelope_context(SPEC, ADVERTS, "dealer", "another"),
        envelope_context(SPEC, ADVERTS, "holder", "dealer"),
    ]
    kinds = labels.SELF_MASK_SHARE, labels.MASK_SECRET_SHARE
    digests = {share_digest(kind, one, bytes(33)) for kind in kinds for one in (context, *others)}
    assert len(digests) == 2 * (1 + len(others))
