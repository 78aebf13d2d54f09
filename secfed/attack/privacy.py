"""Attacks on differential privacy: how much of the epsilon that is claimed an attacker can show.

Each runs a mechanism as studies run it, calibrated for one release, against the worst that the guarantee
allows: a clipped canary, in a direction where nothing else moves the sum, and an attacker who knows all else.
A threshold half-way between the two worlds says whether it is there;
:mod:`secfed.dp.accounting.empirical_bounds` turns guesses into a lower bound on epsilon. One above the claim
refutes it; one below does not prove it. The noise of every coordinate is independent, so many canaries, each
with a coin of its own, share one release.

Source: Nasr et al. 2023 (worst-case canaries, epsilon by way of Gaussian differential privacy); Steinke,
Nasr, Jagielski 2023 (many canaries with independent coins in one run).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secfed.attack.scene import Integers
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.lanes import Run, VectorSource
from secfed.dp.accounting.accountants import check_delta, check_epsilon
from secfed.dp.accounting.empirical_bounds import Guesses, epsilon_shown, gaussian_epsilon_shown
from secfed.dp.accounting.interface import calibrate
from secfed.dp.accounting.unit import Adjacency, GroupPartition, PrivacyUnit, Unit
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.unit_noise import UnitNoise
from secfed.dp.training.losses import DeclaredLoss
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from secfed.wire.layout import Field, Layout

CONFIDENCE: Final = 0.999
"""Of every bound: a sound mechanism is accused less than once in a thousand attacks."""

_CLIP: Final = 0.5  # not 1, so that a forgotten factor shows
_FAR: Final = 20.0 * _CLIP  # length of a canary before it is clipped
_CANARIES: Final = 250  # in one release of local steps
_SITES, _SURVIVORS, _COLLUDERS = 5, 4, 1
_IN_SUM: Final[dict[str, Any]] = {"clip_norm": _CLIP, "min_survivors": _SURVIVORS, "colluders": _COLLUDERS}


@dataclass(frozen=True)
class PrivacyAttack:
    """One attempt to tell whether somebody took part."""

    name: str
    who: str
    what: str
    relation: Adjacency  # between the two worlds that it tells apart
    # the guesses, given epsilon, delta and the least number of trials
    run: Callable[[float, float, int], Guesses]


@dataclass(frozen=True)
class PrivacyOutcome:
    """What an attack showed."""

    attack: PrivacyAttack
    claimed: float  # the epsilon that the noise was calibrated for
    delta: float  # of both epsilons
    shown: float  # lower bound on epsilon at a confidence of 99.9 %, given that the noise is Gaussian
    shown_of_any: float  # the same bound without that knowledge; never above ``shown``
    trials: int  # how many guesses these rest on

    @property
    def sound(self) -> bool:
        """Whether the claim stands: nothing larger was shown."""
        return self.shown <= self.claimed


def run_privacy_attacks(
    epsilon: float,
    *,
    delta: float = 1e-5,
    trials: int = 20_000,
    attacks: Sequence[PrivacyAttack] | None = None,
    progress: Callable[[PrivacyAttack], None] = lambda _: None,
) -> list[PrivacyOutcome]:
    """Run attacks, all by default, each on noise calibrated for this epsilon of one release.

    ``trials`` are the guesses of each, rounded up to whole releases; ``progress`` hears of each first.
    ``ConfigError``: epsilon, delta or trials out of range.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    if trials < 1:
        raise ConfigError(f"trials = {trials}: an attack needs at least one guess", remedy="use 20000")
    outcomes = []
    for attack in PRIVACY_ATTACKS if attacks is None else attacks:
        progress(attack)
        guesses = attack.run(epsilon, delta, trials)
        shown = gaussian_epsilon_shown(guesses, delta, confidence=CONFIDENCE)
        of_any = epsilon_shown(guesses, delta, confidence=CONFIDENCE)
        outcomes.append(PrivacyOutcome(attack, epsilon, delta, shown, of_any, guesses.trials))
    return outcomes


def _guesses(present: NDArray[np.bool_], guessed: NDArray[np.bool_]) -> Guesses:
    return Guesses(
        hits=int((guessed & present).sum()),
        present=int(present.sum()),
        false_alarms=int((guessed & ~present).sum()),
        absent=int((~present).sum()),
    )


def _one_step(unit: PrivacyUnit, epsilon: float, delta: float) -> Mechanism:
    def mechanism(noise: float) -> Mechanism:
        return Mechanism(unit, _CLIP, noise, 1.0)

    return mechanism(calibrate(epsilon, delta, lambda noise: mechanism(noise).event(1)))


def _local_steps(
    private: PrivateTraining,
    loss: DeclaredLoss,
    place: Callable[[NDArray[np.bool_]], torch.Tensor],
    records: int,
    trials: int,
    threshold: float,
) -> Guesses:
    """Guess after every step from how far it moved each parameter.

    The model is linear without a bias, so a record's gradient is its input wherever the model stands.
    """
    model = nn.Linear(_CANARIES, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    coins, steps = SecureRandom(), math.ceil(trials / _CANARIES)
    coin_flips, guesses = [], []
    with private.session(model, optimiser, loss, records=records, steps=steps) as session:
        for _ in range(steps):
            present = coins.bernoulli(0.5, _CANARIES)
            before = model.weight.detach().clone()
            session.step(TensorRecords((place(present),)))
            moved = (before.double() - model.weight.detach().double()).reshape(-1).numpy()
            coin_flips.append(present)
            guesses.append(moved * session.expected_units > threshold * _CLIP)
    return _guesses(np.concatenate(coin_flips), np.concatenate(guesses))


def _record(epsilon: float, delta: float, trials: int) -> Guesses:
    """Add-or-remove: a canary that is there moves the sum by C, one that is not leaves it alone.

    The place of an absent one holds a record without a gradient: the number of records is public.
    """
    mechanism = _one_step(PrivacyUnit(Unit.RECORD, Adjacency.ADD_OR_REMOVE_RECORD), epsilon, delta)

    def place(present: NDArray[np.bool_]) -> torch.Tensor:
        return torch.diag(torch.from_numpy(np.where(present, _FAR, 0.0).astype(np.float32)))

    output = DeclaredLoss("output", True, lambda model, batch: model(batch[0])[:, 0])
    return _local_steps(PrivateTraining(mechanism, engine="hooks"), output, place, _CANARIES, trials, 0.5)


def _group(epsilon: float, delta: float, trials: int) -> Guesses:
    """Replacement: one record of a group is one of two opposite canaries, 2C apart when clipped.

    The group's other record is the same in both worlds, and has no gradient.
    """
    mechanism = _one_step(PrivacyUnit(Unit.GROUP, Adjacency.REPLACE_RECORD), epsilon, delta)
    partition = GroupPartition.of(2 * _CANARIES, 2, seed=0)
    slots = [int(group[0]) for group in partition.groups]

    def place(present: NDArray[np.bool_]) -> torch.Tensor:
        records = torch.zeros(2 * _CANARIES, _CANARIES)
        signed = torch.from_numpy(np.where(present, _FAR, -_FAR).astype(np.float32))
        records[slots, torch.arange(_CANARIES)] = signed
        return records

    output = DeclaredLoss("mean output", False, lambda model, batch: model(batch[0]).mean())
    private = PrivateTraining(mechanism, engine="loop", partition=partition)
    return _local_steps(private, output, place, partition.records, trials, 0.0)


def _site(epsilon: float, delta: float, trials: int) -> Guesses:
    """Zero-out: one hospital contributes C in one lane, or nothing."""

    def plan(layout: Layout, multiplier: float) -> SiteNoise:
        return SiteNoise.plan(layout, noise_multiplier=multiplier, **_IN_SUM)

    return _in_the_sum(plan, Adjacency.ZERO_OUT_SITE, epsilon, delta, trials)


def _record_in_sum(epsilon: float, delta: float, trials: int) -> Guesses:
    """Add-or-remove: one record adds C to its hospital's sum in one lane, or is not there."""
    return _in_the_sum(_unit_noise, Adjacency.ADD_OR_REMOVE_RECORD, epsilon, delta, trials)


def _group_in_sum(epsilon: float, delta: float, trials: int) -> Guesses:
    """Replacement: one record turns what its group adds from -C to C."""
    return _in_the_sum(_unit_noise, Adjacency.REPLACE_RECORD, epsilon, delta, trials)


def _unit_noise(layout: Layout, multiplier: float) -> SiteNoise:
    bounds = {field.name: 100.0 * _CLIP for field in layout.fields}  # a hospital's sum over its other records
    return UnitNoise.plan(layout, noise_multiplier=multiplier, bounds=bounds, **_IN_SUM)


def _in_the_sum(
    plan: Callable[[Layout, float], SiteNoise], relation: Adjacency, epsilon: float, delta: float, trials: int
) -> Guesses:
    """As few hospitals survive as may be summed, and the helper's noise is known.

    Every lane is one trial: clipping lets a canary put C into a single lane, and noise is added to a lane
    independently of the others, so the lanes stand for as many exchanges. (Skellam noise on lanes of 32 bits
    has a standard deviation of millions of steps; its distance from Gaussian noise cannot be seen.)
    """
    layout = Layout((Field("update", (trials,), 1.0),), sites=_SITES)
    found = calibrate(epsilon, delta, lambda multiplier: plan(layout, multiplier).event(1, relation))
    noise = plan(layout, found)
    (run,) = noise.layout.shape.runs
    random = SecureRandom()
    rounding = random.words(4).tobytes()

    def encoded(value: float) -> int:
        canary = torch.zeros(trials, dtype=torch.float64)
        canary[0] = value
        clipped = noise.clip({"update": canary})
        return int(_read(noise.layout.encoder(clipped, RoundingStream(rounding)), run)[0])

    # A site's contribution is clipped here, a unit's was by whoever summed it.
    there = _FAR if noise.protects is Unit.SITE else _CLIP
    absent = -there if relation.factor == 2 else 0.0
    present = random.bernoulli(0.5, trials)
    total = np.zeros(run.count, run.dtype)
    for honest in range(_SURVIVORS - _COLLUDERS):
        values = np.where(present, encoded(there), encoded(absent)) if honest == 0 else np.zeros(run.count)
        source = Integers((values.astype(run.dtype),))
        total += _read(noise.noised(source, random.words(4).tobytes()), run)
    survivors = tuple(f"hospital-{number}" for number in range(_SURVIVORS))
    decoded = noise.layout.decode((total,), survivors)["update"].numpy()
    return _guesses(present, decoded > (0.0 if absent else 0.5 * _CLIP))


def _read(source: VectorSource, run: Run) -> NDArray[np.uint32 | np.uint64]:
    lanes = np.empty(run.count, run.dtype)
    source.fill(run, lanes)
    return lanes


_INSIDER: Final = "somebody who sees the model after every step and knows all other records"
_HELPED: Final = "the aggregator and as many hospitals as the noise allows for"
_TRAINED_ON: Final = "says whether one record was trained on"
_WHICH: Final = "says which of two opposite records a group contains"
_ONE_RECORD: Final = "say from the sum whether one hospital has one record"
_ONE_OF_TWO: Final = "say from the sum which of two opposite records a group of one hospital contains"
_ANYTHING: Final = "say from the sum whether one hospital contributed anything"

PRIVACY_ATTACKS: Final = (
    PrivacyAttack("record", _INSIDER, _TRAINED_ON, Adjacency.ADD_OR_REMOVE_RECORD, _record),
    PrivacyAttack("group", _INSIDER, _WHICH, Adjacency.REPLACE_RECORD, _group),
    PrivacyAttack("record-in-sum", _HELPED, _ONE_RECORD, Adjacency.ADD_OR_REMOVE_RECORD, _record_in_sum),
    PrivacyAttack("group-in-sum", _HELPED, _ONE_OF_TWO, Adjacency.REPLACE_RECORD, _group_in_sum),
    PrivacyAttack("site", _HELPED, _ANYTHING, Adjacency.ZERO_OUT_SITE, _site),
)
