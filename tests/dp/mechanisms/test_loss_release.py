"""Losses that leave with noise: sensitivity, noise, payment (specification dp.md, section 6)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Pld
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.mechanisms.loss_release import PlannedLosses, PrivateMean
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_privacy import LocalPrivacy, LossRelease
from secfed.errors import BudgetExceeded, ConfigError, WrongState
from tests.dp.local_case import DELTA, RECORDS, ledger, local, paid, settings
from tests.dp.oracles import FALSE_ALARM, deviation_p, gaussian_epsilon
from tests.dp.toys import GROUP, RECORD, info_nce, mlp

CAP = 6.0


def wanted(**changes: object) -> LossRelease:
    given = {"records": RECORDS, "size": 16, "releases": 2, "cap": CAP}
    return LossRelease(**{**given, **changes})  # type: ignore[arg-type]


def planned(sigma: float = 5.0, **changes: object) -> PlannedLosses:
    """With noise of ``sigma`` sensitivities."""
    return PlannedLosses(wanted(**changes), GROUP, seed=0, multiplier=lambda _: 2 * sigma)


def site(folder: Path, epsilon: float = 8.0, budget: float = 50.0, **changes: object) -> LocalPrivacy:
    privacy = local(ledger(folder, budget), settings(epsilon=epsilon))
    privacy.plan(losses=wanted(**changes))
    return privacy


def clean(losses: PlannedLosses, evaluate) -> float:  # type: ignore[no-untyped-def]
    """The released number without noise, in units of the loss, to 2^-30 of the window."""
    mean = losses._mean
    return mean.clean(losses.values(evaluate)) * mean.bound * 2.0**-30 / len(losses.groups)


class TestSensitivity:
    @pytest.mark.parametrize("floor", [0.0, 2.0])
    def test_the_worst_record_moves_the_mean_by_exactly_the_sensitivity(self, floor: float) -> None:
        """One record takes its group from the best loss to the worst, far beyond both ends."""
        losses = planned(groups=8, floor=floor)
        assert losses.sensitivity == (CAP - floor) / 8
        content = np.full(RECORDS, -1e9)

        def evaluate(rows: np.ndarray) -> float:
            return float(content[rows].max())

        before = clean(losses, evaluate)
        moves = []
        for record in range(RECORDS):
            content[record] = 1e9
            moves.append(clean(losses, evaluate) - before)
            content[record] = -1e9
        assert max(moves) == losses.sensitivity
        assert sorted(set(moves)) == [0.0, losses.sensitivity]  # one group, or none
        assert moves.count(losses.sensitivity) == 8 * 16

    @given(record=st.integers(0, 63), scale=st.floats(-1e4, 1e4))
    def test_one_record_of_a_contrastive_loss(self, record: int, scale: float) -> None:
        """Every row of InfoNCE sees every record of its group; the mean of groups moves by V/K at most."""
        losses, model = planned(records=64, size=4, cap=3.0), mlp()
        torch.manual_seed(0)
        images = torch.randn(64, 6)
        texts = images + 0.5 * torch.randn(64, 6)

        def evaluate(rows: np.ndarray) -> float:
            with torch.no_grad():
                return float(info_nce(model, (images[rows], texts[rows])).mean())

        before = clean(losses, evaluate)
        images[record], texts[record] = scale, -scale
        assert abs(clean(losses, evaluate) - before) <= losses.sensitivity

    def test_a_group_whose_loss_fails_counts_as_the_cap_and_the_others_as_ever(self) -> None:
        for bad in (math.nan, math.inf):
            assert clean(planned(), lambda _, bad=bad: bad) == CAP
        losses = planned(groups=8)
        bad = set(losses.groups[2].tolist())

        def evaluate(rows: np.ndarray) -> float:
            if bad & set(rows.tolist()):
                raise ValueError("a record of this group")
            return 1.5

        assert clean(losses, evaluate) == pytest.approx((7 * 1.5 + CAP) / 8, abs=1e-8)
        random = SecureRandom.for_simulation(1)
        assert math.isfinite(losses.release(evaluate, random))

    def test_groups_are_fixed_before_any_record_is_read(self) -> None:
        one, other = planned(), planned()
        assert len(one.groups) == RECORDS // 16
        for group, again in zip(one.groups, other.groups, strict=True):
            assert np.array_equal(group, again)
        everything = np.concatenate(one.groups)
        assert len(everything) == len(set(everything.tolist())) == RECORDS
        assert len(planned(groups=3).groups) == 3
        assert len(planned(groups=300).groups) == RECORDS // 16
        assert len(planned(records=16).groups) == 1
        with pytest.raises(ConfigError, match="15 records do not fill one batch of 16"):
            planned(records=15)

    def test_the_relation_must_be_the_replacement_of_a_record(self, tmp_path: Path) -> None:
        """Adding a record would change the groups of all others."""
        with pytest.raises(ConfigError, match=r"privacy\.adjacency") as refused:
            PlannedLosses(wanted(), RECORD, seed=0, multiplier=lambda _: 1.0)
        assert 'unit = "group"' in refused.value.remedy
        replaced = local(ledger(tmp_path), settings("record", adjacency="replace-record"))
        replaced.plan(losses=wanted())
        assert replaced.losses is not None


class TestNoise:
    def test_the_event_is_that_of_the_specification(self) -> None:
        event = planned(5.0, releases=25).all_events
        assert event == Gaussian(Adjacency.REPLACE_RECORD, 10.0, 25)
        assert gaussian_epsilon(1e-5, math.sqrt(25) / 5.0) == pytest.approx(4.4, rel=0.01)

    def test_the_noise_has_sigma_times_the_sensitivity(self) -> None:
        """V = 6, K = 50, sigma = 5: 0.6."""
        losses, random = planned(records=800, groups=50), SecureRandom.for_simulation(1)
        noise = [losses.release(lambda _: CAP / 2, random) - CAP / 2 for _ in range(400)]
        assert max(np.abs(noise)) < CAP / 2  # nothing was cut off, so the deviation can be measured
        assert deviation_p(noise, 0.6) > FALSE_ALARM  # type: ignore[arg-type]
        assert deviation_p(noise, 0.5) < 1e-3  # type: ignore[arg-type]

    def test_releases_alone_take_their_share_of_epsilon(self, tmp_path: Path) -> None:
        losses = site(tmp_path, epsilon=8.0, share=0.25).losses
        assert losses is not None
        assert 0.98 * 2.0 < Pld().epsilon([losses.all_events], DELTA) <= 2.0

    def test_what_leaves_is_within_floor_and_cap(self) -> None:
        losses, random = planned(sigma=50.0, floor=1.0), SecureRandom.for_simulation(1)
        got = {losses.release(lambda _: 1.5, random) for _ in range(50)}
        assert min(got) == 1.0
        assert max(got) == CAP
        assert len(got) > 2

    def test_a_place_in_the_study_has_its_own_noise_and_repeats_it(self, tmp_path: Path) -> None:
        privacy, got = site(tmp_path, releases=3), {}
        for place in ((1, "weights"), (2, "weights"), (2, "other"), (2, "weights")):
            privacy.enter(*place)
            value = privacy.release_loss(lambda _: 3.0)
            assert got.setdefault(place, value) == value
        assert len(set(got.values())) == 3


class TestPayment:
    def test_every_release_is_paid_before_a_record_is_touched(self, tmp_path: Path) -> None:
        book = ledger(tmp_path)
        privacy = local(book)
        privacy.plan(losses=wanted(releases=2))
        assert privacy.losses is not None
        for number in (1, 2):
            privacy.enter(number, "weights")

            def evaluate(_: np.ndarray, number: int = number) -> float:
                assert len(paid(book)) == number
                return 1.0

            privacy.release_loss(evaluate)
        assert paid(book) == [privacy.losses.event] * 2

    def test_a_budget_that_is_too_small_refuses_before_any_record_is_touched(self, tmp_path: Path) -> None:
        privacy = site(tmp_path, budget=0.01)
        privacy.enter(1, "weights")
        with pytest.raises(BudgetExceeded):
            privacy.release_loss(_untouched)
        assert privacy.save() == {}

    def test_what_was_not_planned_and_what_is_outside_a_round_are_refused(self, tmp_path: Path) -> None:
        for losses in (None, wanted(releases=0)):
            privacy = local(ledger(tmp_path))
            privacy.plan(losses=losses)
            assert privacy.losses is None
            privacy.enter(1, "weights")
            with pytest.raises(WrongState, match="plans no release of losses"):
                privacy.release_loss(_untouched)
        with pytest.raises(WrongState, match="outside a round"):
            site(tmp_path).release_loss(_untouched)

    def test_more_releases_than_planned_are_refused_but_a_repeated_one_is_not_more(
        self, tmp_path: Path
    ) -> None:
        privacy = site(tmp_path)
        for number in (1, 2, 2, 1):
            privacy.enter(number, "round/weights")
            privacy.release_loss(lambda _: 1.0)
        with pytest.raises(WrongState, match="plans 2 releases"):
            privacy.release_loss(_untouched)
        next_process = site(tmp_path)
        next_process.load(privacy.save())
        assert next_process.save() == privacy.save()
        for one in (privacy, next_process):
            one.enter(3, "round/weights")
            with pytest.raises(WrongState, match="plans 2 releases"):
                one.release_loss(_untouched)

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"size": 1}, "size"),
            ({"releases": -1}, "releases"),
            ({"groups": 0}, "groups"),
            ({"share": 0.0}, "share"),
            ({"share": 1.0}, "share"),
            ({"cap": 1.0, "floor": 1.0}, "cap"),
            ({"cap": math.inf}, "cap"),
            ({"cap": math.nan}, "cap"),
        ],
    )
    def test_impossible_plans(self, changes: dict[str, object], key: str) -> None:
        with pytest.raises(ConfigError, match=f"release of losses: {key} =") as refused:
            wanted(**changes)
        assert refused.value.remedy


def _untouched(_: np.ndarray) -> float:
    raise AssertionError("a record was touched")


class TestLargeNoise:
    def test_what_is_planned_can_be_released(self, tmp_path: Path) -> None:
        """Noise of 200 sensitivities: the usual grid of the noise would be too fine for it."""
        privacy = site(tmp_path, epsilon=1.0, share=0.1, releases=50)
        assert privacy.losses is not None
        assert privacy.losses._mean.noise_over_sensitivity > 119
        privacy.enter(1, "weights")
        assert 0.0 <= privacy.release_loss(lambda rows: 1.0) <= CAP

    def test_what_cannot_be_drawn_is_refused_when_it_is_planned(self) -> None:
        with pytest.raises(ConfigError, match="cannot be drawn"):
            planned(sigma=5e5)


# --- the mean of bounded numbers (specification dp.md, section 6, invariant 10)

ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(values=st.lists(ANY, min_size=1, max_size=20), other=ANY, data=st.data())
def test_replacing_one_unit_moves_the_mean_by_at_most_its_share(
    values: list[float], other: float, data: st.DataObject
) -> None:
    mean = PrivateMean(bound=6.0, noise_over_sensitivity=5.0)
    changed = list(values)
    changed[data.draw(st.integers(0, len(values) - 1))] = other
    assert abs(mean.clean(values) - mean.clean(changed)) <= 2**30


@given(values=st.lists(st.floats(-2, 9), min_size=1, max_size=20))
def test_the_clean_value_is_the_clipped_mean(values: list[float]) -> None:
    mean = PrivateMean(bound=6.0, noise_over_sensitivity=5.0)
    wanted = sum(min(max(value, 0.0), 6.0) for value in values)
    assert mean.clean(values) * 6.0 / 2**30 == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(("bound", "sigma"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_impossible_settings_and_no_values_are_refused(bound: float, sigma: float) -> None:
    with pytest.raises(ConfigError, match="positive bound and noise"):
        PrivateMean(bound, sigma)
    with pytest.raises(ConfigError, match="at least one value"):
        PrivateMean(1.0, 1.0).clean([])


@pytest.mark.parametrize("sigma", [5.0, 118.0, 120.0, 400.0, 4e5])
def test_noise_of_any_size_is_drawn_with_the_deviation_that_was_paid_for(sigma: float) -> None:
    """V = 6, K = 50. Above 119 the noise's grid is coarser than usual; up to 489178 it is fine enough."""
    mean, random = PrivateMean(6.0, sigma), SecureRandom.for_simulation(2)
    noise = [mean.release([1.0] * 50, random) - 1.0 for _ in range(300)]
    wanted = sigma * 6.0 / 50
    assert deviation_p(noise, wanted) > FALSE_ALARM  # type: ignore[arg-type]
    assert deviation_p(noise, wanted / 1.5) < 1e-3  # type: ignore[arg-type]


def test_the_noise_of_usual_settings_has_not_changed_its_grid() -> None:
    assert {PrivateMean(6.0, sigma)._extra_bits for sigma in (0.1, 5.0, 118.0)} == {12}
    assert PrivateMean(6.0, 4e5)._extra_bits == 0


@pytest.mark.parametrize("power", range(19))
def test_the_grid_fits_at_every_power_of_two(power: int) -> None:
    for sigma in (2.0**power, 2.0 ** (power + 0.9), math.nextafter(2.0 ** (power + 0.9), math.inf)):
        PrivateMean(1.0, min(sigma, 4.89e5)).release([0.5], SecureRandom.for_simulation(3))


def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_paid() -> None:
    with pytest.raises(ConfigError, match=r"cannot be drawn.*Remedy.*fewer releases"):
        PrivateMean(6.0, 4.9e5)
