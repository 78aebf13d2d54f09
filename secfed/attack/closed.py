"""Attacks on closed sums. The aggregator has no group key; every hospital has it, and masks stay under it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from secfed.attack.attack import AttackSetting, attack, attacks_of, numbers
from secfed.attack.evidence import Evidence
from secfed.attack.scene import Attempt, RingVector
from secfed.crypto import labels
from secfed.crypto.encrypted.messages import ClosedSum, closed_digest
from secfed.crypto.encrypted.sum_checks import ExpectedSum, check_signed, check_sum
from secfed.crypto.lanes import pack_into
from secfed.crypto.masked.closing import GROUP_KEY_BYTES, Closing, closed_shape
from secfed.crypto.masked.masks import Accumulator, MaskContext
from secfed.crypto.messages import Result
from secfed.crypto.refusals import Refusal
from secfed.crypto.thresholds import FLOOR
from secfed.errors import SecfedError


class _OfTheSum(Evidence):
    """What was learned of the sum, which here nobody but the hospitals may know."""

    @property
    def measured(self) -> str:
        """For a table."""
        return super().measured.replace("update", "sum")


class _Unmasked:
    """A consortium with a group key, and an attempt whose closed sum the aggregator has unmasked."""

    def __init__(self, setting: AttackSetting, attempt: int = 0) -> None:
        self.consortium = setting.consortium()
        self.victim, self.shape = self.consortium.names[0], closed_shape(self.consortium.shape)
        self.refused: list[SecfedError] = []
        self._group_key = secrets.token_bytes(GROUP_KEY_BYTES)
        closed = {name: {"group_key": self._group_key} for name in self.consortium.names}
        self.attempt = Attempt(
            self.consortium,
            self.consortium.specification(attempt=attempt),
            contributions=closed,
            shape=self.shape,
        ).run(until="result")
        self.spec, server = self.attempt.spec, self.attempt.server
        self.survivors, self.adverts_digest, self.sums = server.survivors, server.adverts_digest, server.sums

    @property
    def closing(self) -> Closing:
        """Of a hospital, and of an aggregator whom one helps."""
        return Closing(self._group_key, self.spec.digest, self.adverts_digest)

    @property
    def total(self) -> RingVector:
        """The true sum."""
        zeros, updates = self.consortium.zeros(), self.consortium.updates
        return self.consortium.minus(
            zeros, self.consortium.minus(zeros, *(updates[name] for name in self.survivors))
        )

    def vector(self, sums: RingVector) -> bytearray:
        """A sum on the wire."""
        data, at = bytearray(self.shape.wire_bytes), 0
        for run, lanes in zip(self.shape.runs, sums, strict=True):
            pack_into(lanes, run, memoryview(data)[at : at + run.wire_bytes])
            at += run.wire_bytes
        return data

    def give(self, vector: bytes | bytearray, survivors: Sequence[str]) -> None:
        """Relay this as the signed sum to a hospital that took part, and to one that was away."""
        consortium, survivors = self.consortium, tuple(survivors)
        said = closed_digest(self.spec.layout_digest, self.adverts_digest, vector)
        unsigned = Result(self.spec.digest, survivors, said)
        signature = consortium.aggregator.sign(labels.SIGN_RESULT, unsigned.body())
        relayed = ClosedSum(
            self.spec, replace(unsigned, signature=signature), self.adverts_digest, bytes(vector)
        )
        taker = consortium.names[-1]
        own, view = consortium.contribution(taker), self.attempt.sites[taker].view
        site, uploaded = taker, self.spec.digest
        for known in (view, None):
            expected = ExpectedSum(
                site, own, own.exchange, own.shape.digest, own.broadcast_digest, uploaded, FLOOR, known
            )
            try:
                check_signed(relayed, consortium.roster, own.study)
                check_sum(relayed, expected)
                broadcast = self.spec.broadcast_digest
                self.closing.opened(relayed.vector, survivors, broadcast, consortium.shape)
            except SecfedError as refusal:
                self.refused.append(refusal)

    def moved(self) -> Evidence:
        """Whether a hospital took what it was given: then the aggregator knows by how much models moved."""
        truth = self.consortium.updates[self.victim]
        guess = self.consortium.zeros() if self.refused else truth
        return Evidence(self.consortium.shape, truth, guess, refusals=numbers(self.refused))


@attack("read-sum", "unmasks the sum and looks for the totals in it", on="closed", defence="the group key")
def _read_sum(setting: AttackSetting) -> Evidence:
    scene = _Unmasked(setting)
    return _OfTheSum(scene.consortium.shape, scene.total, scene.consortium.minus(scene.sums[:-1]))


@attack(
    "shift-sum",
    "adds a constant to one element of a closed sum before it relays it",
    on="closed",
    refusals=(Refusal.SUM_TAG,),
)
def _shift_sum(setting: AttackSetting) -> Evidence:
    scene = _Unmasked(setting)
    vector = scene.vector(scene.sums)
    vector[0] ^= 4
    scene.give(vector, scene.survivors)
    return scene.moved()


@attack(
    "old-sum", "relays the closed sum of an earlier attempt again", on="closed", refusals=(Refusal.SUM_TAG,)
)
def _old_sum(setting: AttackSetting) -> Evidence:
    earlier, scene = _Unmasked(setting), _Unmasked(setting, attempt=1)
    scene.give(earlier.vector(earlier.sums), scene.survivors)
    return scene.moved()


@attack(
    "other-survivors",
    "names other survivors of the sum than the hospitals signed",
    on="closed",
    refusals=(Refusal.RESULT_MISMATCH, Refusal.SUM_TAG),
)
def _other_survivors(setting: AttackSetting) -> Evidence:
    setting.between(4, 100)  # fewer survivors than three are refused whatever they are
    scene = _Unmasked(setting)
    scene.give(scene.vector(scene.sums), scene.survivors[1:])
    return scene.moved()


@attack(
    "given-key-upload",
    "takes a hospital's stream and tags off its upload",
    who="the aggregator, and one hospital that gives the key away,",
    on="closed",
)
def _given_key_upload(setting: AttackSetting) -> Evidence:
    scene = _Unmasked(setting)
    whole = Accumulator(scene.shape)
    whole.add(scene.attempt.uploaded(scene.victim).vector)
    context = MaskContext(scene.spec.digest, scene.spec.broadcast_digest, scene.shape)
    whole.apply([scene.closing.stream(scene.victim, -1)], context)
    *guess, _tags = whole.reduced()
    truth = scene.consortium.updates[scene.victim]
    return Evidence(scene.consortium.shape, truth, tuple(guess), allowed=(scene.total,))


@attack(
    "given-key-sum",
    "opens the sum",
    who="the aggregator, and one hospital that gives the key away,",
    on="closed",
    limit="Closed sums",
)
def _given_key_sum(setting: AttackSetting) -> Evidence:
    scene = _Unmasked(setting)
    vector, broadcast = scene.vector(scene.sums), scene.spec.broadcast_digest
    found = scene.closing.opened(vector, scene.survivors, broadcast, scene.consortium.shape)
    return _OfTheSum(scene.consortium.shape, scene.total, found)


CLOSED: Final = attacks_of(vars())
