"""Attacks on encrypted sums. The aggregator has no key; every hospital has it, and that is the limit."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from secfed.attack.attack import LANES, Attack, AttackSetting, numbers
from secfed.attack.evidence import Evidence
from secfed.attack.scene import Integers, RingVector, SimulatedConsortium
from secfed.crypto import labels
from secfed.crypto.encrypted.bfv import Ring, choose_ring, fit
from secfed.crypto.encrypted.bfv_tenseal import KeyPair, generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.messages import Summed, totals_digest
from secfed.crypto.encrypted.server import SUM, FrameFormat, RunningSum
from secfed.crypto.encrypted.session import EncryptedSite
from secfed.crypto.encrypted.sum_checks import ExpectedSum, check_signed, check_sum
from secfed.crypto.encrypted.tags import NONCE_BYTES, UPLOAD_TAG_BYTES
from secfed.crypto.lanes import Run
from secfed.crypto.messages import Result, Specification, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError

_RUNS: Final = (Run(24, LANES),)


class _Hospitals:
    """A consortium with a key of its study.

    Args:
        setting: its size.
    """

    def __init__(self, setting: AttackSetting) -> None:
        self.consortium: SimulatedConsortium = setting.consortium(runs=_RUNS)
        ring = _ring(setting.hospitals)
        self.keys, self.parameters = _keys(ring), fit(ring, _RUNS, setting.hospitals)
        self.victim = self.consortium.names[0]

    def session(self) -> EncryptedSite:
        """A new session of the victim, over its journal."""
        given = self.consortium.contribution(self.victim, source=Integers(self.truth))
        return EncryptedSite(given, SiteCipher(self.keys), self.parameters)

    @property
    def truth(self) -> RingVector:
        """The victim's update."""
        return self.consortium.updates[self.victim]

    def asked(self, *specifications: Specification) -> tuple[Upload | None, list[SecfedError]]:
        """Ask the victim for one upload after the other: the last one, and the refusals."""
        upload, refused = None, list[SecfedError]()
        for spec in specifications:
            try:
                upload = Upload.decode(bytes(self.session().handle(spec.encode())))
            except SecfedError as refusal:
                refused.append(refusal)
        return upload, refused

    def shown(
        self, spec: Specification, survivors: tuple[str, ...], nonces: bytes, tag: bytes, ciphertext: bytes
    ) -> tuple[RingVector, list[SecfedError]]:
        """Give a hospital this as the signed sum: what it decrypts (zeros if it refuses), and refusals."""
        consortium, taker = self.consortium, self.consortium.names[-1]
        totals = totals_digest(spec.layout_digest, nonces, tag, ciphertext)
        unsigned = Result(spec.digest, survivors, totals)
        signature = consortium.aggregator.sign(labels.SIGN_RESULT, unsigned.body())
        summed = Summed(spec, replace(unsigned, signature=signature), nonces, tag, ciphertext)
        given = consortium.contribution(taker)
        expected = ExpectedSum(
            taker, given, given.exchange, given.shape.digest, given.broadcast_digest, spec.digest
        )
        frames = list(FrameFormat(self.parameters, SUM).split(ciphertext))
        cipher = SiteCipher(self.keys)
        try:
            check_signed(summed, consortium.roster, given.study)
            check_sum(summed, expected)
            cipher.verify(self.parameters, summed, frames)
        except SecfedError as refusal:
            return (np.zeros(LANES, _RUNS[0].dtype),), [refusal]
        return cipher.decrypt(self.parameters, frames), []

    def evidence(self, upload: Upload | None, refused: list[SecfedError]) -> Evidence:
        """What the aggregator, who has no key, reads in an upload."""
        guess = np.zeros(LANES, _RUNS[0].dtype)
        if upload is not None:
            # The words after the header, reduced: an upload is longer than the vector by far.
            words = np.frombuffer(bytes(upload.vector)[-4 * LANES :], np.uint32)
            guess = (words & np.uint32((1 << _RUNS[0].bits) - 1)).astype(_RUNS[0].dtype)
        return Evidence(self.consortium.shape, self.truth, (guess,), refusals=numbers(refused))


@lru_cache
def _ring(hospitals: int) -> Ring:
    return choose_ring([(Run(_RUNS[0].bits, 10**6),)], hospitals, key_mode="public")


@lru_cache
def _keys(ring: Ring) -> KeyPair:
    return generate_keys(ring)


def _read_upload(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    return scene.evidence(*scene.asked(scene.consortium.specification()))


def _second_upload(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    make = scene.consortium.specification
    return scene.evidence(*scene.asked(make(), make(attempt=1)))


def _small_cohort(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    spec = scene.consortium.specification(cohort=scene.consortium.names[:2], threshold=2)
    return scene.evidence(*scene.asked(spec))


def _another_model(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    other = bytes(reversed(scene.consortium.broadcast_digest))
    return scene.evidence(*scene.asked(scene.consortium.specification(broadcast_digest=other)))


def _given_key(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    upload, refused = scene.asked(scene.consortium.specification())
    if upload is None:
        return scene.evidence(upload, refused)
    alone = RunningSum(scene.parameters)  # adding needs no key: a "sum" of one upload
    alone.add(scene.victim, upload.vector[:-UPLOAD_TAG_BYTES])
    opened = SiteCipher(scene.keys).decrypt(scene.parameters, alone.frames())
    return Evidence(scene.consortium.shape, scene.truth, tuple(opened))


def ghost_survivors(setting: AttackSetting) -> Evidence:
    """One upload, shown to a hospital as the sum of all."""
    scene = _Hospitals(setting)
    spec = scene.consortium.specification()
    upload, refused = scene.asked(spec)
    if upload is None:
        return scene.evidence(upload, refused)
    everybody = scene.consortium.names
    frames, tag = upload.vector[:-UPLOAD_TAG_BYTES], bytes(upload.vector[-UPLOAD_TAG_BYTES:])
    alone = RunningSum(scene.parameters)
    alone.add(scene.victim, frames)
    # The victim's nonce is real, and so is its tag; of the others, whom nobody asked, they are made up.
    nonces = tag[:NONCE_BYTES] * len(everybody)
    opened, more = scene.shown(spec, everybody, nonces, tag[NONCE_BYTES:], b"".join(alone.frames()))
    return Evidence(scene.consortium.shape, scene.truth, opened, refusals=numbers([*refused, *more]))


_AGGREGATOR: Final = "the aggregator"
_LIMIT: Final = "Encrypted protection"

ENCRYPTED: Final = (
    Attack(
        "read-upload",
        "encrypted",
        _AGGREGATOR,
        "keeps an upload and looks for the update in it",
        _read_upload,
        defence="the key",
    ),
    Attack(
        "second-upload",
        "encrypted",
        _AGGREGATOR,
        "asks for the same update in another attempt",
        _second_upload,
        refusals=(Refusal.ALREADY_SPENT,),
    ),
    Attack(
        "small-cohort",
        "encrypted",
        _AGGREGATOR,
        "asks for a sum over two hospitals",
        _small_cohort,
        refusals=(Refusal.COHORT_TOO_SMALL,),
    ),
    Attack(
        "another-model",
        "encrypted",
        _AGGREGATOR,
        "asks for an update of another model than the one that the hospital computed",
        _another_model,
        refusals=(Refusal.BROADCAST_UNKNOWN,),
    ),
    Attack(
        "given-key",
        "encrypted",
        "the aggregator and one hospital",
        "present one upload as the sum, and decrypt it with the key that every hospital has",
        _given_key,
        limit=_LIMIT,
    ),
)
