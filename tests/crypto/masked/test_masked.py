"""A masked attempt from end to end: what it gives, what it hides, and what one bad site can do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from secfed.attack.harvest import Harvest, unmask_alone
from secfed.crypto import labels, shamir
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.lanes import CHUNK_ELEMENTS, Run
from secfed.crypto.masked import masks
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Confirmation,
    Deliveries,
    MaskSecretShare,
    Result,
    SelfMaskShare,
    Shares,
    Sharing,
    SharingSet,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
)
from secfed.crypto.record import Record
from secfed.crypto.refusals import Refusal
from secfed.errors import BadSignature, InconsistentView, MalformedMessage, ProtocolError, WrongState
from tests.ring import as_integers
from tests.simulator import STAGES, TINY, Attempt, Consortium

BAD = "hospital-2"


@pytest.mark.parametrize("silent", [None, *STAGES])
def test_the_sum_is_exact_whenever_one_site_drops(silent: str | None) -> None:
    consortium = Consortium()
    attempt = consortium.attempt(silent={BAD: silent} if silent else {}).run()
    uploaded = silent is None or STAGES.index(silent) > STAGES.index("mask")
    survivors = tuple(name for name in consortium.names if name != BAD or uploaded)
    assert attempt.server.survivors == survivors
    assert as_integers(attempt.server.sums) == consortium.expected(survivors)
    assert not attempt.refusals
    finished = {name for name, site in attempt.sites.items() if site.result is not None}
    assert finished == set(consortium.names) - ({BAD} if silent else set())


@pytest.mark.parametrize("bits", [11, 32, 64])
def test_a_vector_longer_than_a_chunk(bits: int) -> None:
    runs = [Run(bits, 2 * CHUNK_ELEMENTS + 13), Run(9, 5)]
    consortium = Consortium(3, runs=runs)
    sums = consortium.attempt().run().server.sums
    for index, run in enumerate(runs):
        true = np.zeros(run.count, np.uint64)
        for update in consortium.updates.values():
            true += update[index].astype(np.uint64)
        mask = np.uint64((1 << run.bits) - 1)
        np.testing.assert_array_equal(sums[index].astype(np.uint64), true & mask)


def test_an_upload_hides_the_update_even_of_zeros() -> None:
    consortium = Consortium(3, runs=[Run(32, 4096)])
    for name in consortium.names:
        consortium.updates[name] = (np.zeros(4096, np.uint32),)
    attempt = consortium.attempt().run()
    uploads = [np.frombuffer(attempt.uploaded(name).vector, np.uint32) for name in consortium.names]
    for lanes in (*uploads, uploads[0] + uploads[1], uploads[0] - uploads[1]):
        ones = np.unpackbits(np.ascontiguousarray(lanes).view(np.uint8)).mean()
        assert abs(float(ones) - 0.5) < 0.01  # seven standard deviations
    assert not attempt.server.sums[0].any()


def test_every_attempt_has_fresh_secrets() -> None:
    consortium = Consortium(3)
    first = consortium.attempt().run(until="consistency")
    second = consortium.attempt(consortium.specification(round=2)).run(until="consistency")
    seen: set[bytes] = set()
    for attempt in (first, second):
        for stage, _, reply in attempt.replies:
            if stage == "advertise":
                advert = Advert.decode(reply)
                seen |= set(advert.fresh)
            if stage == "mask":
                seen.add(bytes(Upload.decode(reply).vector))
    assert len(seen) == 2 * 3 * 4


def test_a_site_asks_its_journal_before_anything_is_revealed() -> None:
    """A journal that cannot note the unmasking keeps the shares in."""
    consortium = Consortium()
    attempt = consortium.attempt().run(until="unmask")

    def broken(*_: object) -> None:
        raise Refusal.ALREADY_SPENT.refuse()

    consortium.journals[BAD].unmasked = broken  # type: ignore[method-assign]
    attempt.refused(BAD, attempt.requests[BAD], Refusal.ALREADY_SPENT)


def test_no_secret_shows_in_a_repr() -> None:
    attempt = Consortium().attempt().run()
    secrets = set()
    for states in attempt.states.values():
        for state in states:
            found = getattr(state, "secrets", None)
            if found is not None:
                secrets |= {found.mask_secret, found.self_seed}
            for pair in getattr(state, "held", {}).values():
                secrets |= set(pair)
    assert len(secrets) == 5 * 2 + 5 * 4 * 2
    shown = "".join(repr(state) for states in attempt.states.values() for state in states)
    shown += "".join(repr(Shares.decode(reply)) for stage, _, reply in attempt.replies if stage == "unmask")
    assert "AwaitResult" in shown
    for secret in secrets:
        assert repr(secret)[2:-1] not in shown


def test_a_share_of_one_kind_per_peer_leaves_a_site() -> None:
    attempt = Consortium().attempt(silent={BAD: "mask"}).run()
    for stage, site, reply in attempt.replies:
        if stage == "unmask":
            kinds = {share.peer: type(share) for share in Shares.decode(reply).shares}
            assert kinds.pop(BAD) is MaskSecretShare
            assert set(kinds.values()) == {SelfMaskShare}
            assert site in kinds
    harvest = Harvest.of(attempt, colluding=["hospital-0"])
    assert not any(harvest.exposed(name) for name in attempt.consortium.names)


def test_one_share_fewer_than_the_threshold_gives_neither_secret() -> None:
    attempt = Consortium().attempt().run(until="mask")
    threshold, position = attempt.spec.threshold, attempt.consortium.roster.position
    for dealer in attempt.consortium.names:
        secrets = attempt.states[dealer][1].secrets  # type: ignore[attr-defined]
        for kind, secret in enumerate((secrets.mask_secret, secrets.self_seed)):
            held = {
                position(peer) + 1: states[-1].opened[dealer].shares[kind]  # type: ignore[attr-defined]
                for peer, states in attempt.states.items()
                if peer != dealer
            }
            assert len(held) == threshold
            assert shamir.combine(held, threshold) == secret
            del held[min(held)]
            assert shamir.combine(held, threshold - 1) != secret


# What one bad site can do: be dropped, or make the sum fail. Never more, and never crash the server.


def _up(stage: str, edit: Callable[[Attempt, bytes], bytes]) -> tuple[Attempt, Consortium]:
    consortium = Consortium()
    holder: list[Attempt] = []

    def up(at: str, site: str, reply: Buffer) -> Buffer:
        return edit(holder[0], bytes(reply)) if (at, site) == (stage, BAD) else reply

    attempt = consortium.attempt(up=up)
    holder.append(attempt)
    return attempt, consortium


def _sign(attempt: Attempt, label: bytes, *parts: Buffer) -> bytes:
    return attempt.consortium.identities[BAD].sign(label, attempt.spec.digest, *parts)


def _signed(attempt: Attempt, record: Record, label: bytes, *context: bytes) -> bytes:
    return signed(record, attempt.consortium.identities[BAD], label, attempt.spec.digest, *context).encode()


def _in_another_name(attempt: Attempt, reply: bytes) -> bytes:
    return replace(Advert.decode(reply), site="hospital-1").encode()


def _invalid_mask_key(attempt: Attempt, reply: bytes) -> bytes:
    advert = replace(Advert.decode(reply), mask_key=b"\xff" * 1216)
    return _signed(attempt, advert, labels.SIGN_ADVERT)


def _small_order_seal_key(attempt: Attempt, reply: bytes) -> bytes:
    advert = Advert.decode(reply)
    advert = replace(advert, seal_key=advert.seal_key[:-32] + bytes(32))
    return _signed(attempt, advert, labels.SIGN_ADVERT)


def _one_key_twice(attempt: Attempt, reply: bytes) -> bytes:
    advert = Advert.decode(reply)
    advert = replace(advert, seal_key=advert.mask_key)
    return _signed(attempt, advert, labels.SIGN_ADVERT)


def _confirms_for_another(_: Attempt, reply: bytes) -> bytes:
    return replace(Confirmation.decode(reply), site="hospital-1").encode()


def _complains_of_itself(attempt: Attempt, reply: bytes) -> bytes:
    adverts_digest = attempt.states[BAD][-1].before.dealer.adverts_digest  # type: ignore[attr-defined]
    answer = replace(Confirmation.decode(reply), complaints=(BAD,))
    return _signed(attempt, answer, labels.SIGN_CONFIRMATION, adverts_digest)


def _wrong_share(attempt: Attempt, reply: bytes) -> bytes:
    """One share is another number; the rest are as they were dealt."""
    first, *others = Shares.decode(reply).shares
    unsigned = Shares((type(first)(first.peer, bytes(32) + first.share[-1:]), *others))
    return _signed(attempt, unsigned, labels.SIGN_UNMASK)


def _one_envelope_less(_: Attempt, reply: bytes) -> bytes:
    return Sharing(Sharing.decode(reply).envelopes[:-1]).encode()


def _anothers_envelope(attempt: Attempt, reply: bytes) -> bytes:
    other = next(r for stage, site, r in attempt.replies if (stage, site) == ("share", "hospital-0"))
    stolen = {e.recipient: e for e in Sharing.decode(other).envelopes}
    envelopes = Sharing.decode(reply).envelopes
    return Sharing(tuple(stolen.get(e.recipient, e) for e in envelopes)).encode()


def _flip_a_lane(_: Attempt, reply: bytes) -> bytes:
    return reply[:20] + bytes([reply[20] ^ 1]) + reply[21:]


def _shorter_vector(attempt: Attempt, reply: bytes) -> bytes:
    upload = Upload.decode(reply)
    vector = upload.vector[:-1]
    adverts_digest = attempt.states[BAD][-1].adverts_digest  # type: ignore[attr-defined]
    digest = masks.vector_digest(vector)
    signature = _sign(attempt, labels.SIGN_UPLOAD, adverts_digest, upload.sharing_digest, digest)
    return replace(upload, vector=vector, vector_digest=digest, signature=signature).encode()


def _other_sharing_set(_: Attempt, reply: bytes) -> bytes:
    return replace(Upload.decode(reply), sharing_digest=bytes(32)).encode()


def _anothers_view(_: Attempt, reply: bytes) -> bytes:
    return replace(View.decode(reply), site="hospital-1").encode()


def _both_kinds(attempt: Attempt, reply: bytes) -> bytes:
    shares = list(Shares.decode(reply).shares)
    shares[0] = MaskSecretShare(shares[0].peer, shares[0].share)
    unsigned = Shares(tuple(shares))
    return _signed(attempt, unsigned, labels.SIGN_UNMASK)


def _share_missing(attempt: Attempt, reply: bytes) -> bytes:
    unsigned = Shares(Shares.decode(reply).shares[:-1])
    return _signed(attempt, unsigned, labels.SIGN_UNMASK)


def _other_signature(_: Attempt, reply: bytes) -> bytes:
    return reply[:-1] + bytes([reply[-1] ^ 1])


@pytest.mark.parametrize(
    ("stage", "edit", "error"),
    [
        ("advertise", _in_another_name, InconsistentView),
        ("advertise", _invalid_mask_key, MalformedMessage),
        ("advertise", _small_order_seal_key, MalformedMessage),
        ("share", _one_envelope_less, InconsistentView),
        ("share", _anothers_envelope, InconsistentView),
        ("mask", _flip_a_lane, MalformedMessage),
        ("mask", _shorter_vector, MalformedMessage),
        ("mask", _other_sharing_set, InconsistentView),
        ("consistency", _anothers_view, InconsistentView),
        ("unmask", _both_kinds, InconsistentView),
        ("unmask", _share_missing, InconsistentView),
        ("unmask", _wrong_share, InconsistentView),
        ("advertise", _one_key_twice, InconsistentView),
        ("confirm", _confirms_for_another, InconsistentView),
        ("confirm", _complains_of_itself, InconsistentView),
        *((stage, _other_signature, BadSignature) for stage in STAGES if stage != "result"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_bad_reply_costs_its_site_the_attempt_and_nobody_else(
    stage: str, edit: Callable[[Attempt, bytes], bytes], error: type[ProtocolError]
) -> None:
    attempt, consortium = _up(stage, edit)
    attempt.run()
    assert type(attempt.refusals[f"server about {BAD}"]) is error
    uploaded = STAGES.index(stage) > STAGES.index("mask")
    survivors = tuple(name for name in consortium.names if name != BAD or uploaded)
    assert attempt.server.survivors == survivors
    assert as_integers(attempt.server.sums) == consortium.expected(survivors)


def test_the_server_takes_replies_only_from_sites_it_asked() -> None:
    attempt = Consortium().attempt(silent={BAD: "advertise"}).run(until="mask")
    with pytest.raises(WrongState, match="not asked"):
        attempt.server.receive(BAD, b"")
    with pytest.raises(WrongState, match="not complete"):
        _ = attempt.server.sums
    with pytest.raises(WrongState, match="not complete"):
        _ = attempt.server.survivors


def test_a_vector_that_arrives_twice_counts_once() -> None:
    attempt = Consortium().attempt().run(until="mask")
    upload = attempt.deliver(BAD, attempt.requests[BAD])
    attempt.server.receive(BAD, upload)
    with pytest.raises(WrongState, match="answered twice"):
        attempt.server.receive(BAD, upload)


# Why the threshold must satisfy 2t > n + c: with equality, one site can be stripped of every mask.


def _isolate(threshold: int, limits: SiteLimits) -> tuple[Attempt, Harvest, tuple[str, ...]]:
    """Show the victim a sharing set of one colluder and sites that are then declared dropped."""
    consortium = Consortium(5, threshold=threshold, limits=limits, runs=TINY)
    victim, colluder, *others, last = consortium.names
    attempt = consortium.attempt().run(until="confirm")
    shown = (victim, colluder, last) if threshold == 3 else (victim, colluder, others[-1], last)
    envelopes = Deliveries.decode(attempt.requests[victim]).envelopes
    kept = tuple(envelope for envelope in envelopes if envelope.sender in shown)
    attempt.deliver(victim, Deliveries(kept).encode())
    attempt.deliver(victim, SharingSet(shown).encode())
    rest = (colluder, *others)
    for site in rest:
        attempt.deliver(site, attempt.requests[site])
        attempt.deliver(site, SharingSet(consortium.names).encode())
    survivors = Survivors((victim, *rest)).encode()
    views = tuple(View.decode(attempt.deliver(site, survivors)) for site in rest)
    request = UnmaskRequest((last,), views).encode()
    for site in rest:
        if threshold == 3:
            attempt.deliver(site, request)
        else:
            attempt.refused(site, request, Refusal.TOO_FEW_VIEWS)
    return attempt, Harvest.of(attempt, [colluder]), shown


def test_sites_that_tolerate_nobody_lose_one_update_to_one_colluder() -> None:
    """n = 5, c = 1, t = 3: 2t = n + c. The sites were told to tolerate no colluder, and there is one."""
    attempt, harvest, shown = _isolate(3, SiteLimits(colluders=0))
    victim, colluder = shown[:2]
    stripped = unmask_alone(attempt, victim, harvest, [colluder], shown)
    assert stripped is not None
    assert as_integers(stripped) == as_integers(attempt.consortium.updates[victim])


def test_with_the_default_threshold_the_same_colluder_gains_nothing() -> None:
    """n = 5, c = 1, t = 4: one matching signature is missing, whatever the victim is shown."""
    attempt, harvest, shown = _isolate(4, SiteLimits())
    assert unmask_alone(attempt, shown[0], harvest, [shown[1]], shown) is None
    assert not any(harvest.exposed(name) for name in attempt.consortium.names)


def test_a_late_upload_of_a_site_declared_dropped_stays_masked() -> None:
    """Its mask secret is out, its self mask is not: the reason for double masking."""
    consortium = Consortium()
    late = "hospital-4"
    held_back: dict[str, Buffer] = {}

    def up(stage: str, site: str, reply: Buffer) -> Buffer | None:
        if (stage, site) == ("mask", late):
            held_back[site] = reply
            return None
        return reply

    attempt = consortium.attempt(up=up).run()
    assert attempt.server.survivors == consortium.names[:4]
    harvest = Harvest.of(attempt)
    assert harvest.rebuild(harvest.mask_secret, late) is not None
    assert unmask_alone(attempt, late, harvest, [], consortium.names) is None
    assert Upload.decode(held_back[late]).vector == attempt.uploaded(late).vector


def test_the_result_is_kept_by_every_site() -> None:
    attempt = Consortium().attempt().run()
    results = {site.result for site in attempt.sites.values()}
    assert len(results) == 1
    assert isinstance(results.pop(), Result)
