"""Refusals 17-26: what a malicious server may not do to keys and envelopes on their way between sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from secfed.crypto import labels, message_base
from secfed.crypto.messages import Advert, Adverts, Confirmation, Deliveries, Envelope, Sharing, SharingSet
from secfed.crypto.refusals import Refusal
from tests.simulator import Attempt, Consortium, SeededEntropy, provokes

VICTIM, PEER, COLLUDER = "hospital-0", "hospital-1", "hospital-2"
FRESH = SeededEntropy("the server's own keys")

AdvertsEdit = Callable[[list[Advert]], list[Advert]]
EnvelopesEdit = Callable[[list[Envelope]], list[Envelope]]


def relay(attempt: Attempt, edit: AdvertsEdit) -> bytes:
    """The adverts as a malicious server relays them to the victim."""
    return Adverts(tuple(edit(list(Adverts.decode(attempt.requests[VICTIM]).adverts)))).encode()


def relay_envelopes(attempt: Attempt, edit: EnvelopesEdit) -> bytes:
    """The envelopes as a malicious server relays them to the victim."""
    return Deliveries(tuple(edit(list(Deliveries.decode(attempt.requests[VICTIM]).envelopes)))).encode()


def signed(attempt: Attempt, advert: Advert, signer: str) -> Advert:
    """An advert with a signature for this attempt, by whoever colludes."""
    return message_base.signed(
        advert, attempt.consortium.identities[signer], labels.SIGN_ADVERT, attempt.spec.digest
    )


def replaced(attempt: Attempt, at: int, signer: str, **changes: bytes) -> bytes:
    """The adverts, of which one says something else under a signature by whoever colludes."""

    def edit(adverts: list[Advert]) -> list[Advert]:
        adverts[at] = signed(attempt, replace(adverts[at], **changes), signer)
        return adverts

    return relay(attempt, edit)


def own_key() -> bytes:
    """A key whose private half the server holds."""
    return FRESH.seal_key().public_bytes


@provokes(Refusal.ADVERT_SIGNATURE)
@pytest.mark.parametrize("part", ["mask_key", "seal_key", "commitment"])
def test_a_substituted_key(part: str) -> None:
    attempt = Consortium().attempt().run(until="share")
    value = bytes(32) if part == "commitment" else own_key()
    message = relay(attempt, lambda adverts: [adverts[0], replace(adverts[1], **{part: value}), *adverts[2:]])
    assert PEER in attempt.refused(VICTIM, message, Refusal.ADVERT_SIGNATURE).message


def test_a_substituted_key_signed_by_a_colluder() -> None:
    attempt = Consortium().attempt().run(until="share")
    attempt.refused(VICTIM, replaced(attempt, 1, COLLUDER, mask_key=own_key()), Refusal.ADVERT_SIGNATURE)


@pytest.mark.parametrize("change", [{"round": 1, "attempt": 1}, {"round": 2}], ids=["attempt", "round"])
def test_keys_replayed_from_an_earlier_attempt_or_round(change: dict[str, int]) -> None:
    consortium = Consortium()
    earlier = consortium.attempt().run(until="share")
    old = Adverts.decode(earlier.requests[VICTIM]).adverts
    attempt = consortium.attempt(consortium.specification(**change)).run(until="share")
    message = relay(attempt, lambda adverts: [adverts[0], old[1], *adverts[2:]])
    attempt.refused(VICTIM, message, Refusal.ADVERT_SIGNATURE)


@pytest.mark.parametrize(
    "change",
    [{"threshold": 6}, {"cohort": tuple(f"hospital-{i}" for i in range(1, 6))}, {"attempt": 3}],
    ids=["threshold", "cohort", "attempt"],
)
def test_sites_that_were_shown_different_specifications_do_not_accept_each_others_keys(
    change: dict[str, object],
) -> None:
    """The aggregator signs two specifications for one attempt and shows each to half of the sites."""
    consortium = Consortium(6)
    other = consortium.specification(**change)

    def down(stage: str, site: str, message: bytes) -> bytes:
        return other.encode() if stage == "advertise" and site in consortium.names[3:] else message

    attempt = consortium.attempt(down=down)
    attempt.server.receive = lambda site, reply: attempt.server._state.adverts.__setitem__(  # type: ignore[method-assign]
        site, Advert.decode(reply)
    )  # the server looks the other way
    attempt.step()
    assert not attempt.refusals
    for site in consortium.names[:3]:
        attempt.refused(site, attempt.requests[site], Refusal.ADVERT_SIGNATURE)


@provokes(Refusal.ADVERT_OUTSIDER)
@pytest.mark.parametrize("outsider", ["hospital-4", "hospital-9"], ids=["enrolled, not asked", "sybil"])
def test_a_key_from_outside_the_cohort(outsider: str) -> None:
    consortium = Consortium()
    attempt = consortium.attempt(consortium.specification(cohort=consortium.names[:4])).run(until="share")
    attempt.consortium.identities.setdefault(outsider, consortium.person(outsider))

    def edit(adverts: list[Advert]) -> list[Advert]:
        extra = replace(adverts[1], site=outsider, mask_key=own_key(), seal_key=own_key())
        return [*adverts, signed(attempt, extra, outsider)]

    attempt.refused(VICTIM, relay(attempt, edit), Refusal.ADVERT_OUTSIDER)


@provokes(Refusal.ADVERT_ORDER)
@pytest.mark.parametrize(
    "edit",
    [lambda a: [a[1], a[0], *a[2:]], lambda a: [*a[:4], a[3]], lambda a: [a[0], *a]],
    ids=["reordered", "one peer twice", "own keys twice"],
)
def test_keys_out_of_order_or_repeated(edit: AdvertsEdit) -> None:
    attempt = Consortium().attempt().run(until="share")
    attempt.refused(VICTIM, relay(attempt, edit), Refusal.ADVERT_ORDER)


@provokes(Refusal.DUPLICATE_KEY)
@pytest.mark.parametrize("copied", [0, 1], ids=["the victim's", "a peer's"])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("mask_key", "mask_key"),
        ("seal_key", "seal_key"),
        ("seal_key", "mask_key"),
        ("commitment", "commitment"),
    ],
)
def test_a_colluder_advertises_a_copy_of_an_honest_key(mine: str, theirs: str, copied: int) -> None:
    """Sharing with oneself under another name would give the server a second share of a secret."""
    _copies(mine, theirs, copied)


def test_a_key_advertised_for_both_purposes() -> None:
    _copies("seal_key", "mask_key", 2)  # its own


def _copies(mine: str, theirs: str, copied: int) -> None:
    attempt = Consortium().attempt().run(until="share")
    value = getattr(Adverts.decode(attempt.requests[VICTIM]).adverts[copied], theirs)
    error = attempt.refused(VICTIM, replaced(attempt, 2, COLLUDER, **{mine: value}), Refusal.DUPLICATE_KEY)
    assert f"by {attempt.consortium.names[copied]} and by {COLLUDER}" in error.message


@provokes(Refusal.OWN_ADVERT)
def test_the_sites_own_keys_are_left_out() -> None:
    attempt = Consortium().attempt().run(until="share")
    attempt.refused(VICTIM, relay(attempt, lambda adverts: adverts[1:]), Refusal.OWN_ADVERT)


@pytest.mark.parametrize("part", ["mask_key", "seal_key"])
def test_the_sites_own_keys_are_altered_with_a_stolen_identity(part: str) -> None:
    attempt = Consortium().attempt().run(until="share")
    attempt.refused(VICTIM, replaced(attempt, 0, VICTIM, **{part: own_key()}), Refusal.OWN_ADVERT)


@provokes(Refusal.TOO_FEW_ADVERTS)
def test_too_few_keys() -> None:
    attempt = Consortium().attempt().run(until="share")
    assert attempt.spec.threshold == 4
    attempt.refused(VICTIM, relay(attempt, lambda adverts: adverts[:3]), Refusal.TOO_FEW_ADVERTS)


def _resigned(attempt: Attempt, envelope: Envelope, signer: str, adverts_digest: bytes) -> Envelope:
    identity, context = attempt.consortium.identities[signer], (attempt.spec.digest, adverts_digest)
    return message_base.signed(envelope, identity, labels.SIGN_ENVELOPE, *context)


def _adverts_digest(attempt: Attempt) -> bytes:
    return attempt.server._state.dealt.adverts_digest  # type: ignore[attr-defined,no-any-return]


@provokes(Refusal.ENVELOPE_SIGNATURE)
@pytest.mark.parametrize(
    "part", ["sealed_seed", "sealed_shares", "mask_secret_share_digest", "self_mask_share_digest"]
)
def test_an_envelope_altered_on_the_way(part: str) -> None:
    attempt = Consortium().attempt().run(until="confirm")

    def edit(envelopes: list[Envelope]) -> list[Envelope]:
        sealed = getattr(envelopes[0], part)
        return [replace(envelopes[0], **{part: bytes([sealed[0] ^ 1]) + sealed[1:]}), *envelopes[1:]]

    attempt.refused(VICTIM, relay_envelopes(attempt, edit), Refusal.ENVELOPE_SIGNATURE)


def test_an_envelope_forged_by_the_server_and_signed_by_a_colluder() -> None:
    attempt = Consortium().attempt().run(until="confirm")

    def edit(envelopes: list[Envelope]) -> list[Envelope]:
        return [_resigned(attempt, envelopes[0], COLLUDER, _adverts_digest(attempt)), *envelopes[1:]]

    attempt.refused(VICTIM, relay_envelopes(attempt, edit), Refusal.ENVELOPE_SIGNATURE)


def test_an_envelope_replayed_from_an_earlier_attempt() -> None:
    consortium = Consortium()
    earlier = consortium.attempt().run(until="confirm")
    old = Deliveries.decode(earlier.requests[VICTIM]).envelopes
    attempt = consortium.attempt(consortium.specification(attempt=1)).run(until="confirm")
    message = relay_envelopes(attempt, lambda envelopes: [old[0], *envelopes[1:]])
    attempt.refused(VICTIM, message, Refusal.ENVELOPE_SIGNATURE)


def test_two_groups_that_were_shown_different_advertised_sets_do_not_mix() -> None:
    """The server leaves one advert out for some sites: their envelopes are void for the others."""
    consortium = Consortium(6, threshold=5)

    def down(stage: str, site: str, message: bytes) -> bytes:
        if stage == "share" and site in consortium.names[3:]:
            return Adverts(Adverts.decode(message).adverts[1:]).encode()  # without the victim's keys
        return message

    attempt = consortium.attempt(down=down).run(until="share")
    envelopes = {}
    for site in consortium.names[1:]:
        message = down("share", site, bytes(attempt.requests[site]))
        envelopes[site] = Sharing.decode(attempt.deliver(site, message)).envelopes
    attempt.deliver(VICTIM, attempt.requests[VICTIM])
    to_peer = tuple(e for site in envelopes for e in envelopes[site] if e.recipient == PEER)
    assert [e.sender for e in to_peer] == ["hospital-2", "hospital-3", "hospital-4", "hospital-5"]
    attempt.refused(PEER, Deliveries(to_peer).encode(), Refusal.ENVELOPE_SIGNATURE)


@provokes(Refusal.ENVELOPE_STRAY)
@pytest.mark.parametrize("case", ["repeated", "reordered", "misaddressed", "unadvertised", "own"])
def test_a_stray_envelope(case: str) -> None:
    consortium = Consortium()
    attempt = consortium.attempt(silent={"hospital-4": "advertise"}).run(until="confirm")
    digest = _adverts_digest(attempt)
    to_peer = Deliveries.decode(attempt.requests[PEER]).envelopes

    def edit(envelopes: list[Envelope]) -> list[Envelope]:
        outsider = _resigned(attempt, replace(envelopes[0], sender="hospital-4"), "hospital-4", digest)
        own = _resigned(attempt, replace(envelopes[0], sender=VICTIM), VICTIM, digest)
        return {
            "repeated": [envelopes[0], envelopes[0], *envelopes[1:]],
            "reordered": envelopes[::-1],
            "misaddressed": [envelopes[0], to_peer[1], envelopes[2]],
            "unadvertised": [*envelopes, outsider],
            "own": [own, *envelopes],
        }[case]

    attempt.refused(VICTIM, relay_envelopes(attempt, edit), Refusal.ENVELOPE_STRAY)


@provokes(Refusal.ENVELOPE_SEALED)
@pytest.mark.parametrize(
    "case",
    [
        "garbage seed",
        "garbage shares",
        "swapped",
        "sealed for a peer",
        "one share",
        "another share of the mask secret",
        "another share of the self mask",
    ],
)
def test_a_colluders_envelope_that_does_not_hold_what_it_states(case: str) -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="confirm")
    digest = _adverts_digest(attempt)
    to_peer = next(e for e in Deliveries.decode(attempt.requests[PEER]).envelopes if e.sender == COLLUDER)
    keys = {a.site: a for a in Adverts.decode(_adverts_of(attempt)).adverts}
    context = (attempt.spec.digest, digest, COLLUDER.encode(), VICTIM.encode())
    short = FRESH.seal(keys[VICTIM].seal_key, bytes(33), labels.SEAL_SHARES, *context)
    shares = short + bytes(33)  # the right size on the wire, the wrong one inside

    def edit(envelopes: list[Envelope]) -> list[Envelope]:
        at = next(index for index, e in enumerate(envelopes) if e.sender == COLLUDER)
        good = envelopes[at]
        change = {
            "garbage seed": {"sealed_seed": bytes(len(good.sealed_seed))},
            "garbage shares": {"sealed_shares": bytes(len(good.sealed_shares))},
            "swapped": {"sealed_seed": good.sealed_shares[: len(good.sealed_seed)]},
            "sealed for a peer": {"sealed_shares": to_peer.sealed_shares},
            "one share": {"sealed_shares": shares},
            "another share of the mask secret": {"mask_secret_share_digest": good.self_mask_share_digest},
            "another share of the self mask": {"self_mask_share_digest": to_peer.self_mask_share_digest},
        }[case]
        bad = replace(good, **change)
        return [*envelopes[:at], _resigned(attempt, bad, COLLUDER, digest), *envelopes[at + 1 :]]

    answer = Confirmation.decode(attempt.deliver(VICTIM, relay_envelopes(attempt, edit)))
    assert answer.complaints == (COLLUDER,)
    state = attempt.sites[VICTIM].state
    assert {item.name for item in fields(state)} == {"accused"}  # no secret is left
    error = attempt.refused(VICTIM, SharingSet(consortium.names).encode(), Refusal.ENVELOPE_SEALED)
    assert COLLUDER in error.message
    assert not consortium.journals[VICTIM].left


def _adverts_of(attempt: Attempt) -> bytes:
    adverts = tuple(Advert.decode(reply) for stage, _, reply in attempt.replies if stage == "advertise")
    return Adverts(adverts).encode()


@provokes(Refusal.TOO_FEW_SHARING)
def test_too_few_envelopes() -> None:
    attempt = Consortium().attempt().run(until="confirm")
    assert attempt.spec.threshold == 4
    message = relay_envelopes(attempt, lambda envelopes: envelopes[:2])
    attempt.refused(VICTIM, message, Refusal.TOO_FEW_SHARING)


@pytest.mark.parametrize(
    "members", [(0, 1, 2, 3, 9), (1, 2, 3, 4), (1, 0, 2, 3), (0, 1, 1, 2)], ids=lambda m: str(m)
)
def test_a_sharing_set_that_does_not_follow_from_the_envelopes(members: tuple[int, ...]) -> None:
    """With a stranger, without the site itself, out of order, with one site twice."""
    attempt = Consortium().attempt().run(until="mask")
    message = SharingSet(tuple(f"hospital-{member}" for member in members)).encode()
    attempt.refused(VICTIM, message, Refusal.ENVELOPE_STRAY)


def test_a_sharing_set_with_a_site_whose_envelope_was_withheld() -> None:
    consortium = Consortium(6)
    attempt = consortium.attempt().run(until="confirm")
    attempt.deliver(VICTIM, relay_envelopes(attempt, lambda envelopes: envelopes[:-1]))
    attempt.refused(VICTIM, SharingSet(consortium.names).encode(), Refusal.ENVELOPE_STRAY)


def test_a_sharing_set_below_the_threshold() -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="mask")
    assert attempt.spec.threshold == 4
    attempt.refused(VICTIM, SharingSet(consortium.names[:3]).encode(), Refusal.TOO_FEW_SHARING)
