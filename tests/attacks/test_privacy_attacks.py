"""Attacks on differential privacy: they find what is there, and accuse a mechanism with a bug.

Randomness is real. With 2000 trials a sound mechanism is accused, or an attack is weaker than asked for
here, less than once in a million runs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from secfed.attack.privacy import PRIVACY_ATTACKS, PrivacyAttack, PrivacyOutcome, run_privacy_attacks
from secfed.dp.accounting.events import PoissonSampledGaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.mechanisms.unit_noise import UnitNoise
from secfed.dp.training import private_loop as training_module
from secfed.dp.training.engines import ClippedSum
from secfed.dp.training.mechanism import GaussianNoise, Mechanism
from secfed.errors import ConfigError

TRIALS = 2000
BY_NAME = {attack.name: attack for attack in PRIVACY_ATTACKS}


def outcome(name: str, trials: int = TRIALS) -> PrivacyOutcome:
    (found,) = run_privacy_attacks(8.0, trials=trials, attacks=[BY_NAME[name]])
    return found


def test_every_attack_is_strong_and_no_claim_is_refuted() -> None:
    told: list[PrivacyAttack] = []
    outcomes = run_privacy_attacks(8.0, trials=TRIALS, progress=told.append)
    assert told == list(PRIVACY_ATTACKS) == [one.attack for one in outcomes]
    assert [one.name for one in told] == ["record", "group", "record-in-sum", "group-in-sum", "site"]
    for one in outcomes:
        assert (one.claimed, one.delta, one.trials) == (8.0, 1e-5, TRIALS)
        assert one.claimed / 2 < one.shown <= one.claimed, one.attack.name
        assert 0 < one.shown_of_any <= one.shown
        assert one.sound


@pytest.mark.parametrize("name", ["record-in-sum", "group-in-sum"])
def test_noise_in_the_sum_is_no_larger_than_it_must_be(name: str) -> None:
    """Its bound by divergences is close: many trials show most of what is claimed."""
    (one,) = run_privacy_attacks(4.0, trials=1_000_000, attacks=[BY_NAME[name]])
    assert 0.85 * one.claimed < one.shown <= one.claimed


@pytest.mark.parametrize("name", ["record", "site"])
def test_a_small_epsilon_is_shown_too(name: str) -> None:
    (one,) = run_privacy_attacks(1.0, trials=50_000, attacks=[BY_NAME[name]])
    assert 0.5 < one.shown <= 1.0


@pytest.mark.parametrize("name", ["record", "group"])
def test_noise_at_half_scale_in_local_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = GaussianNoise.of
    monkeypatch.setattr(
        training_module.GaussianNoise,
        "of",
        lambda mechanism, *rest: real(
            replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2), *rest
        ),
    )
    found = outcome(name)
    assert not found.sound
    assert found.shown > 12.0


def test_a_group_accounted_as_if_it_moved_by_one_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(self: Mechanism, steps: int) -> PoissonSampledGaussian:
        add_or_remove = Adjacency.ADD_OR_REMOVE_RECORD
        return PoissonSampledGaussian(add_or_remove, self.sampling_rate, self.noise_multiplier, steps)

    monkeypatch.setattr(Mechanism, "event", event)
    assert outcome("record").sound  # right for records
    assert not outcome("group").sound


real_variance, real_event = SiteNoise.share_variance, SiteNoise.event
ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_RECORD


@pytest.mark.parametrize(
    ("attack", "owner", "name", "careless"),
    [
        ("record", ClippedSum, "factors", lambda self, norms: torch.ones_like(norms)),
        ("site", SiteNoise, "share_variance", lambda self, item: real_variance(self, item) / 4),
        ("record-in-sum", SiteNoise, "share_variance", lambda self, item: real_variance(self, item) / 4),
        ("group-in-sum", UnitNoise, "event", lambda self, times, _: real_event(self, times, ADD_OR_REMOVE)),
        ("site", SiteNoise, "clip", lambda self, summands: dict(summands)),
    ],
    ids=[
        "clipping switched off",
        "noise at half scale in the sum",
        "the same for records",
        "groups that move by one clip",
        "a contribution that is not clipped",
    ],
)
def test_a_mechanism_with_a_bug_is_accused(
    monkeypatch: pytest.MonkeyPatch, attack: str, owner: type, name: str, careless: object
) -> None:
    monkeypatch.setattr(owner, name, careless)
    assert not outcome(attack).sound


def test_the_noise_of_helpers_counted_as_if_it_hid_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the variance is missing: seen with more trials, of which lanes cost little."""
    trials = 400_000
    assert outcome("site", trials).sound
    real = SiteNoise.share_variance

    def counted(self: SiteNoise, item: object) -> float:
        return real(self, item) * (self.min_survivors - self.colluders) / self.min_survivors  # type: ignore[arg-type]

    monkeypatch.setattr(SiteNoise, "share_variance", counted)
    assert not outcome("site", trials).sound


def test_trials_are_whole_releases() -> None:
    assert outcome("record", trials=251).trials == 500
    assert outcome("site", trials=251).trials == 251


def test_none_of_a_sound_mechanism_with_too_few_trials() -> None:
    (one,) = run_privacy_attacks(0.01, trials=250, attacks=[BY_NAME["site"]])
    assert (one.shown, one.shown_of_any, one.sound) == (0.0, 0.0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -1.0}, "epsilon = -1.0 is not a finite number"),
        ({"epsilon": 0.0}, "too small to compute with"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta = 0.0 is not between 0 and 1"),
        ({"epsilon": 1.0, "trials": 0}, "trials = 0: an attack needs at least one guess"),
    ],
)
def test_settings_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_privacy_attacks(**options)  # type: ignore[arg-type]


def test_an_outcome_above_the_claim_is_not_sound() -> None:
    one = PrivacyOutcome(BY_NAME["site"], 1.0, 1e-5, 1.01, 0.2, 100)
    assert not one.sound
    assert replace(one, shown=1.0).sound
