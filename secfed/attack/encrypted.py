"""Attacks on encrypted sums. The aggregator has no key; every hospital has it, and that is the limit."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from secfed.attack.attack import LANES, AttackSetting, attack, attacks_of, numbers
from secfed.attack.evidence import Evidence
from secfed.attack.scene import RingVector, SimulatedConsortium
from secfed.crypto import labels
from secfed.crypto.encrypted.bfv import Ring, choose_ring, fit
from secfed.crypto.encrypted.bfv_tenseal import generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.messages import Summed, totals_digest
from secfed.crypto.encrypted.server import SUM, FrameFormat, RunningSum
from secfed.crypto.encrypted.session import EncryptedSite
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.encrypted.sum_checks import ExpectedSum, check_signed, check_sum
from secfed.crypto.encrypted.tags import NONCE_BYTES, UPLOAD_TAG_BYTES
from secfed.crypto.lanes import Run
from secfed.crypto.messages import Result, Specification, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError

_RUNS: Final = (Run(24, LANES),)


class _Hospitals:
    """A consortium with a key of its study, and one of its hospitals as the victim."""

    def __init__(self, setting: AttackSetting) -> None:
        self.consortium: SimulatedConsortium = setting.consortium(runs=_RUNS)
        self.keys, ring = _keys(setting.hospitals)
        self.parameters = fit(ring, _RUNS, setting.hospitals)
        self.victim = self.consortium.names[0]
        self.refused: list[SecfedError] = []

    def ask(self, *specifications: Specification) -> Upload | None:
        """Ask the victim for one upload after the other, each in a new session over its journal; the last."""
        upload = None
        for spec in specifications:
            contribution = self.consortium.contribution(self.victim)
            session = EncryptedSite(contribution, SiteCipher(self.keys), self.parameters)
            try:
                upload = Upload.decode(bytes(session.handle(spec.encode())))
            except SecfedError as refusal:
                self.refused.append(refusal)
        return upload

    def decrypt_sum(
        self, spec: Specification, survivors: tuple[str, ...], nonces: bytes, tag: bytes, ciphertext: bytes
    ) -> RingVector:
        """Give a hospital this as the signed sum: what it decrypts; zeros if it refuses."""
        consortium, taker = self.consortium, self.consortium.names[-1]
        totals = totals_digest(spec.layout_digest, nonces, tag, ciphertext)
        unsigned = Result(spec.digest, survivors, totals)
        signature = consortium.aggregator.sign(labels.SIGN_RESULT, unsigned.body())
        summed = Summed(spec, replace(unsigned, signature=signature), nonces, tag, ciphertext)
        own = consortium.contribution(taker)
        expected = ExpectedSum(taker, own, own.exchange, own.shape.digest, own.broadcast_digest, spec.digest)
        frames = list(FrameFormat(self.parameters, SUM).split(ciphertext))
        cipher = SiteCipher(self.keys)
        try:
            check_signed(summed, consortium.roster, own.study)
            check_sum(summed, expected)
            cipher.verify(self.parameters, summed, frames)
        except SecfedError as refusal:
            self.refused.append(refusal)
            return consortium.zeros()
        return cipher.decrypt(self.parameters, frames)

    def as_sum(self, upload: Upload) -> list[bytes]:
        """The victim's ciphertext as a "sum" of one upload: adding needs no key."""
        alone = RunningSum(self.parameters)
        alone.add(self.victim, upload.vector[:-UPLOAD_TAG_BYTES])
        return list(alone.frames())

    def learned(self, guess: RingVector) -> Evidence:
        """What it came to."""
        truth = self.consortium.updates[self.victim]
        return Evidence(self.consortium.shape, truth, tuple(guess), refusals=numbers(self.refused))

    def learned_from(self, upload: Upload | None) -> Evidence:
        """What the aggregator, who has no key, reads in an upload."""
        if upload is None:
            return self.learned(self.consortium.zeros())
        # The words after the header, reduced: an upload is longer than the vector by far.
        words = np.frombuffer(bytes(upload.vector)[-4 * LANES :], np.uint32)
        return self.learned(((words & np.uint32((1 << _RUNS[0].bits) - 1)).astype(_RUNS[0].dtype),))


@lru_cache
def _keys(hospitals: int) -> tuple[KeyPair, Ring]:
    ring = choose_ring([(Run(_RUNS[0].bits, 10**6),)], hospitals, key_mode="public")
    return generate_keys(ring), ring


@attack("read-upload", "keeps an upload and looks for the update in it", on="encrypted", defence="the key")
def _read_upload(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    return scene.learned_from(scene.ask(scene.consortium.specification()))


@attack(
    "second-upload",
    "asks for the same update in another attempt",
    on="encrypted",
    refusals=(Refusal.ALREADY_SPENT,),
)
def _second_upload(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    specification = scene.consortium.specification
    return scene.learned_from(scene.ask(specification(), specification(attempt=1)))


@attack(
    "small-cohort", "asks for a sum over two hospitals", on="encrypted", refusals=(Refusal.COHORT_TOO_SMALL,)
)
def _small_cohort(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    spec = scene.consortium.specification(cohort=scene.consortium.names[:2], threshold=2)
    return scene.learned_from(scene.ask(spec))


@attack(
    "another-model",
    "asks for an update of another model than the one that the hospital computed",
    on="encrypted",
    refusals=(Refusal.BROADCAST_UNKNOWN,),
)
def _another_model(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    other = bytes(reversed(scene.consortium.broadcast_digest))
    return scene.learned_from(scene.ask(scene.consortium.specification(broadcast_digest=other)))


@attack(
    "given-key",
    "present one upload as the sum, and decrypt it with the key that every hospital has",
    who="the aggregator and one hospital",
    on="encrypted",
    limit="Encrypted protection",
)
def _given_key(setting: AttackSetting) -> Evidence:
    scene = _Hospitals(setting)
    upload = scene.ask(scene.consortium.specification())
    if upload is None:
        return scene.learned_from(upload)
    return scene.learned(SiteCipher(scene.keys).decrypt(scene.parameters, scene.as_sum(upload)))


def ghost_survivors(setting: AttackSetting) -> Evidence:
    """One upload, shown to a hospital as the sum of all."""
    scene = _Hospitals(setting)
    spec = scene.consortium.specification()
    upload = scene.ask(spec)
    if upload is None:
        return scene.learned_from(upload)
    everybody = scene.consortium.names
    tag = bytes(upload.vector[-UPLOAD_TAG_BYTES:])
    # The victim's nonce is real, and so is its tag; of the others, whom nobody asked, they are made up.
    nonces = tag[:NONCE_BYTES] * len(everybody)
    total = b"".join(scene.as_sum(upload))
    return scene.learned(scene.decrypt_sum(spec, everybody, nonces, tag[NONCE_BYTES:], total))


ENCRYPTED: Final = attacks_of(vars())
