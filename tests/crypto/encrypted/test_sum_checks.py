"""Which sum a site decrypts: everything that a malicious aggregator can sign is refused before that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tenseal")

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits, SumRules
from secfed.crypto.encrypted.bfv import Parameters, fit
from secfed.crypto.encrypted.bfv_packing import pack_words
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.messages import Summed, totals_digest
from secfed.crypto.encrypted.server import HEADER_BYTES, SUM, FrameFormat
from secfed.crypto.encrypted.session import EncryptedServer, EncryptedSite
from secfed.crypto.encrypted.sum_checks import ExpectedSum, check_signed, check_sum
from secfed.crypto.encrypted.tags import NONCE_BYTES, add_tags, decode_tag, encode_tag
from secfed.crypto.lanes import Run
from secfed.crypto.masked import masks
from secfed.crypto.messages import Result, Specification, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import MalformedMessage, SecfedError
from tests.crypto.encrypted_case import added, keys_of, resigned, study_ring
from tests.ring import Integers
from tests.simulator import PROVOKED, Consortium, provokes

RUNS = (Run(20, 5), Run(64, 1))
RING = study_ring(20, 5, "symmetric")


class Scene:
    """Five hospitals that uploaded for one specification, and an aggregator that may present anything."""

    def __init__(self, **changes: Any) -> None:
        self.consortium = Consortium(5, runs=RUNS, threshold=3)
        self.names = self.consortium.names
        for number, name in enumerate(self.names, 1):  # small, so that no sum leaves its range
            self.consortium.updates[name] = tuple(np.full(run.count, number, run.dtype) for run in RUNS)
        self.parameters: Parameters = fit(RING, RUNS, 5)
        self.cipher = SiteCipher(keys_of(RING))
        self.spec, self.vectors = self.uploads(**changes)

    def uploads(self, **changes: Any) -> tuple[Specification, dict[str, bytes]]:
        """A specification, and the vectors of everybody's uploads for it."""
        consortium, vectors = self.consortium, {}
        consortium.forget(self.names)
        spec = consortium.specification(**changes)
        for name in spec.cohort:
            given = consortium.contribution(
                name, source=Integers(consortium.updates[name]), round=spec.round, limits=SiteLimits(2, 2)
            )
            reply = EncryptedSite(given, self.cipher, self.parameters).handle(spec.encode())
            vectors[name] = bytes(Upload.decode(bytes(reply)).vector)
        return spec, vectors

    def sum_of(self, names: Sequence[str], **changes: Any) -> Summed:
        """The sum of these sites' uploads as an aggregator presents it."""
        fields = added(self.parameters, {name: self.vectors[name] for name in names})
        empty = Result(self.spec.digest, tuple(names), bytes(32))
        summed = Summed(self.spec, empty, **fields)  # type: ignore[arg-type]
        return resigned(self.consortium.aggregator, summed, **changes)

    def forged(self, summed: Summed, **changes: Any) -> Summed:
        """A sum that the aggregator changed and signed."""
        return resigned(self.consortium.aggregator, summed, **changes)

    def take(self, summed: Summed, site: str | None = None, **changes: Any) -> list[list[int]]:
        """What a site does with a sum before it absorbs it."""
        consortium = self.consortium
        rules = {name: changes.pop(name) for name in ("limits", "planned", "contributors") if name in changes}
        expected = ExpectedSum(
            site=self.names[0] if site is None else site,
            rules=SumRules(roster=consortium.roster, **{"limits": consortium.limits, **rules}),
            exchange="update",
            layout_digest=consortium.shape.digest,
            state_tag=consortium.broadcast_digest,
            uploaded=self.spec.digest,
        )
        check_signed(summed, consortium.roster, "study")
        check_sum(summed, replace(expected, **changes))
        frames = list(FrameFormat(self.parameters, SUM).split(summed.ciphertext))
        self.cipher.verify(self.parameters, summed, frames)
        return [run.tolist() for run in self.cipher.decrypt(self.parameters, frames)]

    def refused(self, summed: Summed, refusal: Refusal, **changes: Any) -> None:
        with pytest.raises(SecfedError, match=rf"^refusal {refusal.number}: ") as caught:
            self.take(summed, **changes)
        assert type(caught.value) is refusal.error
        PROVOKED.add(refusal)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def test_an_honest_sum_is_taken_by_all_also_by_a_site_that_was_away(scene: Scene) -> None:
    names = scene.names
    whole = scene.sum_of(names)
    assert scene.take(whole) == scene.consortium.expected(names)
    without = scene.sum_of(names[1:])
    assert scene.take(without) == scene.consortium.expected(names[1:])  # it uploaded, too late
    assert scene.take(without, uploaded=None) == scene.consortium.expected(names[1:])  # it was silent


def test_a_site_outside_the_cohort_takes_the_sum() -> None:
    scene = Scene(cohort=Consortium(5, runs=RUNS).names[1:])
    assert scene.take(scene.sum_of(scene.names[1:]), uploaded=None) == scene.consortium.expected(
        scene.names[1:]
    )


@provokes(Refusal.SUM_TAG)
def test_one_upload_with_invented_survivors_is_no_sum(scene: Scene) -> None:
    """Every hospital of six once took this, and held another hospital's update."""
    victim, everybody = scene.names[1], scene.names
    nonces = scene.sum_of(everybody).nonces
    for tag in (scene.sum_of([victim]).tag, scene.sum_of(everybody).tag):
        forged = scene.sum_of([victim], survivors=everybody, nonces=nonces, tag=tag)
        scene.refused(forged, Refusal.SUM_TAG)


def test_a_sum_that_leaves_out_doubles_or_scales_an_upload_is_no_sum(scene: Scene) -> None:
    names, whole = scene.names, scene.sum_of(scene.names)
    for kept in (names[1:], names[:-1], names[:3]):
        scene.refused(
            scene.sum_of(kept, survivors=names, nonces=whole.nonces), Refusal.SUM_TAG, limits=SiteLimits(2, 2)
        )
    # The words of all, and one site's once more; its tag added once more, too.
    scene.refused(_combined(scene, whole, scene.sum_of([names[1]])), Refusal.SUM_TAG)
    scene.refused(_combined(scene, whole, whole), Refusal.SUM_TAG)


def _combined(scene: Scene, one: Summed, other: Summed) -> Summed:
    """Words and tags of two sums added, under the name of the first."""
    form, modulus = FrameFormat(scene.parameters, SUM), RING.modulus
    frames = []
    pairs = zip(form.split(one.ciphertext), form.split(other.ciphertext), strict=True)
    for index, (first, second) in enumerate(pairs):
        words = (form.words(first, index)[0] + form.words(second, index)[0]) % np.uint64(modulus)
        frames.append(form.header(index) + pack_words(words.reshape(-1), RING.modulus_bits))
    tag = encode_tag(add_tags(modulus, decode_tag(one.tag, modulus), decode_tag(other.tag, modulus)))
    return scene.forged(one, ciphertext=b"".join(frames), tag=tag)


def test_uploads_for_another_specification_do_not_count(scene: Scene) -> None:
    other = Scene(attempt=1)
    assert other.spec.digest != scene.spec.digest
    foreign = other.sum_of(scene.names)
    scene.refused(foreign, Refusal.RESULT_MISMATCH)  # this site signed its upload for the first one
    # Under the first one's name: words and tags are of the second.
    scene.refused(scene.forged(foreign, spec=scene.spec), Refusal.SUM_TAG)
    # A site that took part in neither can tell, too.
    scene.refused(
        resigned(
            scene.consortium.aggregator,
            foreign,
            spec=scene.spec,
            survivors=scene.names[1:],
            nonces=foreign.nonces[NONCE_BYTES:],
        ),
        Refusal.SUM_TAG,
        uploaded=None,
    )


def test_any_bit_of_tag_nonces_or_words_that_is_flipped_is_noticed(scene: Scene) -> None:
    whole = scene.sum_of(scene.names)
    for part, places in (("tag", range(0, 256, 17)), ("nonces", (0, 127, 128, 639))):
        for bit in places:
            changed = _flipped(getattr(whole, part), bit)
            scene.refused(scene.forged(whole, **{part: changed}), Refusal.SUM_TAG)
    for at in (HEADER_BYTES, HEADER_BYTES + 8 * 100):  # lowest bits of words: they stay reduced
        changed = _flipped(whole.ciphertext, 8 * at)
        scene.refused(scene.forged(whole, ciphertext=changed), Refusal.SUM_TAG)


def _flipped(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << (bit % 8)
    return bytes(out)


def test_a_missing_or_additional_nonce_is_malformed(scene: Scene) -> None:
    whole = scene.sum_of(scene.names)
    for nonces in (whole.nonces[:-NONCE_BYTES], whole.nonces + bytes(NONCE_BYTES), whole.nonces[:-1]):
        with pytest.raises(MalformedMessage, match="nonce"):
            scene.take(scene.forged(whole, nonces=nonces))


def test_too_few_survivors_are_refused_though_the_sum_is_theirs(scene: Scene) -> None:
    names = scene.names
    for kept in (names[:1], names[:2]):
        scene.refused(scene.sum_of(kept), Refusal.TOO_FEW_SURVIVORS)
    four = SiteLimits(min_cohort=3, min_threshold=4)
    scene.refused(scene.sum_of(names[:3]), Refusal.TOO_FEW_SURVIVORS, limits=four)
    assert scene.take(scene.sum_of(names[:4]), limits=four) == scene.consortium.expected(names[:4])
    few = SiteLimits(min_cohort=1, min_threshold=1)
    wanted = Scene(threshold=4)  # the specification asks for four
    wanted.refused(wanted.sum_of(names[:3]), Refusal.TOO_FEW_SURVIVORS, limits=few)
    alone = Scene(threshold=1)
    alone.refused(alone.sum_of(names[:1]), Refusal.TOO_FEW_SURVIVORS, limits=few)  # one upload, whoever asks


def test_a_protection_may_want_larger_sums_than_anybody_asks_for() -> None:
    """Closed sums want three, of cohort and survivors, as masked ones do."""
    few, names = SiteLimits(min_cohort=1, min_threshold=1), Consortium(5, runs=RUNS).names
    scene = Scene(threshold=1)
    pair = scene.sum_of(names[:2])
    assert scene.take(pair, limits=few) == scene.consortium.expected(names[:2])
    scene.refused(pair, Refusal.TOO_FEW_SURVIVORS, limits=few, floor=3)
    cohort = replace(pair.spec, cohort=names[:2])
    small = scene.forged(pair, spec=cohort)
    scene.refused(small, Refusal.COHORT_TOO_SMALL, limits=few, floor=3, uploaded=cohort.digest)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"limits": SiteLimits(min_cohort=6)}, Refusal.COHORT_TOO_SMALL),
        ({"planned": frozenset({"hospital-0", "hospital-1", "hospital-2"})}, Refusal.NOT_PLANNED),
        ({"contributors": ((frozenset({"hospital-0"}), 2),)}, Refusal.TOO_FEW_CONTRIBUTORS),
        ({"exchange": "other"}, Refusal.OTHER_EXCHANGE),
        ({"layout_digest": bytes(32)}, Refusal.LAYOUT_CHANGED),
        ({"state_tag": bytes(32)}, Refusal.RESULT_MISMATCH),
        ({"uploaded": bytes(32)}, Refusal.RESULT_MISMATCH),
        ({"uploaded": None}, Refusal.RESULT_MISMATCH),  # named as a survivor, and it uploaded nothing
    ],
    ids=lambda value: value.name if isinstance(value, Refusal) else "",
)
def test_a_sum_is_checked_as_a_specification_is(
    scene: Scene, change: dict[str, Any], refusal: Refusal
) -> None:
    scene.refused(scene.sum_of(scene.names), refusal, **change)


def test_survivors_of_whom_too_few_add_more_than_zeros_are_refused(scene: Scene) -> None:
    owners = ((frozenset({"hospital-0", "hospital-1", "hospital-2"}), 3),)
    assert scene.take(scene.sum_of(scene.names), contributors=owners)
    scene.refused(scene.sum_of(scene.names[1:]), Refusal.TOO_FEW_CONTRIBUTORS, contributors=owners)


@pytest.mark.parametrize(
    ("cohort", "refusal"),
    [
        (("hospital-1", "hospital-0", "hospital-2"), Refusal.COHORT_ORDER),
        (("hospital-0", "hospital-0", "hospital-1"), Refusal.COHORT_ORDER),
        (("hospital-0", "hospital-1", "hospital-9"), Refusal.UNKNOWN_MEMBER),
        (("hospital-0", "hospital-1"), Refusal.COHORT_TOO_SMALL),
    ],
)
def test_the_cohort_is_a_list_of_pinned_sites(
    scene: Scene, cohort: tuple[str, ...], refusal: Refusal
) -> None:
    whole = scene.sum_of(scene.names)
    spec = replace(whole.spec, cohort=cohort)
    scene.refused(scene.forged(whole, spec=spec), refusal)


@pytest.mark.parametrize(
    "survivors",
    [
        ("hospital-1", "hospital-0", "hospital-2"),
        ("hospital-0", "hospital-1", "hospital-1"),
        ("hospital-0", "hospital-1", "hospital-9"),
    ],
)
def test_survivors_are_an_ordered_part_of_the_cohort(scene: Scene, survivors: tuple[str, ...]) -> None:
    whole = scene.sum_of(scene.names)
    scene.refused(scene.forged(whole, survivors=survivors), Refusal.RESULT_MISMATCH)


def test_what_the_aggregator_did_not_sign_or_signed_for_another_roster_or_study(scene: Scene) -> None:
    whole, stranger = scene.sum_of(scene.names), scene.consortium.person("stranger")
    result = replace(whole.result, signature=stranger.sign(b"x", b"y"))
    scene.refused(replace(whole, result=result), Refusal.RESULT_SIGNATURE)
    scene.refused(resigned(stranger, whole), Refusal.SPEC_SIGNATURE)
    for change, refusal in (
        ({"roster_digest": bytes(32)}, Refusal.ROSTER_CHANGED),
        ({"study": "another"}, Refusal.OTHER_EXCHANGE),
    ):
        spec = replace(whole.spec, **change)  # type: ignore[arg-type]
        changed = scene.forged(whole, spec=spec)
        scene.refused(changed, refusal)
        with pytest.raises(refusal.error, match=f"refusal {refusal.number}:"):
            check_signed(changed, scene.consortium.roster, "study")  # by itself, before any other rule


def test_tag_and_nonces_are_what_the_aggregator_signed(scene: Scene) -> None:
    """Otherwise one signed result would let it try many tags."""
    whole = scene.sum_of(scene.names)
    for part in ("tag", "nonces", "ciphertext"):
        other = _flipped(getattr(whole, part), 5)
        scene.refused(replace(whole, **{part: other}), Refusal.RESULT_MISMATCH)  # type: ignore[arg-type]
    assert totals_digest(b"a", b"b", b"c", b"d") != totals_digest(b"a", b"bc", b"", b"d")


def test_the_aggregator_adds_what_sites_verify() -> None:
    scene = Scene()
    server = EncryptedServer(scene.spec, scene.consortium.roster, scene.parameters)
    consortium = scene.consortium
    consortium.forget(scene.names)
    for name in scene.names[::-1]:
        given = consortium.contribution(name, source=Integers(consortium.updates[name]))
        server.receive(name, EncryptedSite(given, scene.cipher, scene.parameters).handle(scene.spec.encode()))
    server.advance()
    summed = Summed(
        scene.spec,
        Result(scene.spec.digest, server.survivors, bytes(32)),
        server.nonces,
        server.tag,
        server.ciphertext(),
    )
    assert scene.take(scene.forged(summed)) == consortium.expected(scene.names)


def test_an_upload_whose_tag_is_not_reduced_is_not_added() -> None:
    scene = Scene()
    name = scene.names[0]
    server = EncryptedServer(scene.spec, scene.consortium.roster, scene.parameters)
    vector = memoryview(scene.vectors[name][:-8] + b"\xff" * 8)
    digest_of_it, parameters = masks.vector_digest(vector), scene.parameters.digest
    parts = scene.spec.digest, parameters, digest_of_it
    signature = scene.consortium.identities[name].sign(labels.SIGN_UPLOAD, *parts)
    with pytest.raises(MalformedMessage, match="tag is not reduced"):
        server.receive(name, Upload(parameters, digest_of_it, signature, vector).encode())
    assert server.survivors == ()
    assert not any(server._total._total.ravel())
