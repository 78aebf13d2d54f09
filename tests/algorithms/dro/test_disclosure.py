"""What the published sums give away: everything for two or three sites, a whole family for three unknowns."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from secfed.algorithms.dro import kl
from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.loss import BLUR
from secfed.algorithms.dro.options import DroOptions
from secfed.algorithms.dro.rule import WEIGHT_FLOOR, DroRule
from secfed.crypto import thresholds
from secfed.errors import ConfigError
from tests.algorithms.dro_case import a_rule, names, plain, totals


def sums_of(rule: DroRule, losses: list[float]) -> tuple[float, float]:
    """What everybody learns in the first round, when every weight is known to be 1/N."""
    answer = rule.answer(1, totals(rule, [rule.initial] * len(losses), losses))
    assert answer is not None
    first, second = answer.sums
    return first, second


def pair(first: float, second: float) -> tuple[float, float]:
    """Two numbers from their sum and their sum of squares."""
    root = math.sqrt(max(2.0 * second - first**2, 0.0))
    return (first - root) / 2.0, (first + root) / 2.0


def loss_of(rule: DroRule, own: float) -> float:
    """The loss behind a number of the first round."""
    return rule.cap + math.log(own) / rule.options.gamma


# --- what is refused, and why


def test_of_two_sites_the_server_gets_both_losses_and_each_site_the_other_ones():
    rule = a_rule(2, noised=False, allow_two_site_weight_disclosure=True)
    losses = [1.25, 3.5]
    first, second = sums_of(rule, losses)
    assert [loss_of(rule, one) for one in pair(first, second)] == pytest.approx(losses, abs=1e-6)
    assert loss_of(rule, first - rule.own(0.5, losses[0])) == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("colluding", [[2.0], [2.0, 2.5]])
def test_two_sites_are_solved_for_whoever_colludes_against_them(colluding):
    losses = [*colluding, 1.25, 3.5]
    rule = a_rule(len(losses))
    first, second = sums_of(rule, losses)
    known = [rule.own(rule.initial, loss) for loss in colluding]
    others = pair(first - sum(known), second - sum(one**2 for one in known))
    assert [loss_of(rule, one) for one in others] == pytest.approx([1.25, 3.5], abs=1e-6)


def test_as_many_power_sums_as_unknowns_are_solved_too():
    """KL with 4 sums: four numbers come out of them, without any of their own."""
    rule = a_rule(4, divergence="kl", kl_nodes=4, noised=True)
    losses = [0.5, 1.5, 3.0, 4.5]
    answer = rule.answer(1, totals(rule, [0.25] * 4, losses))
    assert answer is not None
    powers = np.array(kl.powers(4))
    wanted = np.log(answer.sums)

    def miss(logs: np.ndarray) -> np.ndarray:
        return np.log(np.exp(np.outer(powers, np.sort(logs))).sum(axis=1)) - wanted

    own = [math.log(rule.own(0.25, loss) / 4) for loss in losses]
    found = least_squares(miss, np.linspace(min(own) - 0.5, max(own) + 0.5, 4), xtol=1e-15, ftol=1e-15).x
    assert np.sort(found) == pytest.approx(own, abs=1e-3)


@pytest.mark.parametrize(
    ("sites", "colluders", "least"), [(2, 0, 4), (3, 0, 4), (4, 1, 4), (4, 2, 5), (5, 2, 5), (9, 3, 6)]
)
def test_the_counting_rule(sites, colluders, least):
    rule = a_rule(sites, colluders=colluders, noised=False)
    assert rule.minimum == least
    if sites >= least:
        rule.check_cohort(sites, threshold=least)
        with pytest.raises(ConfigError, match=rf"protection\.threshold.*= {least}"):
            rule.check_cohort(sites, threshold=least - 1)
    else:
        with pytest.raises(ConfigError, match=r"algorithm\.rho") as caught:
            rule.check_cohort(sites)
        assert ("allow_two_site_weight_disclosure" in str(caught.value)) == (sites == 2)


def test_kl_needs_more_sites_than_it_has_powers():
    rule = a_rule(12, divergence="kl", noised=False)
    assert rule.minimum == 10
    rule.check_cohort(12)
    with pytest.raises(ConfigError):
        rule.check_cohort(9)
    assert a_rule(12, divergence="kl", kl_nodes=4).minimum == 6


def test_two_sites_go_on_only_if_they_say_so_and_three_never():
    told = DroOptions(allow_two_site_weight_disclosure=True)
    DroRule.make(told, sites=names(2), colluders=0, batch=64).check_cohort(2)
    for options, sites in ((DroOptions(), 2), (told, 3)):
        with pytest.raises(ConfigError):
            DroRule.make(options, sites=names(sites), colluders=0, batch=64).check_cohort(sites)
    # Of three sites one of which stays away, the flag says nothing either.
    assert DroRule.make(told, sites=names(3), colluders=0, batch=64).minimum == 4


def test_losses_with_the_noise_of_a_guarantee_need_no_counting():
    for sites in (2, 3):
        DroRule.make(DroOptions(), sites=names(sites), colluders=0, batch=64, noised=True).check_cohort(sites)


def test_the_default_number_of_colluders_lets_five_sites_start():
    rule = a_rule(5, colluders=thresholds.default_colluders(5), noised=False)
    rule.check_cohort(5, thresholds.default_threshold(5))


# --- what stays open with three unknowns


def circle(first: float, second: float, angle: float) -> np.ndarray:
    """All triples with this sum and this sum of squares, by angle."""
    radius = math.sqrt(second - first**2 / 3.0)
    across = np.array([1.0, -1.0, 0.0]) / math.sqrt(2.0)
    upwards = np.array([1.0, 1.0, -2.0]) / math.sqrt(6.0)
    return first / 3.0 + radius * (math.cos(angle) * across + math.sin(angle) * upwards)


@pytest.mark.parametrize(("sites", "colluding"), [(4, 1), (5, 1), (5, 2)])
def test_with_three_unknowns_whole_families_of_losses_have_the_same_sums(sites, colluding):
    rule = a_rule(sites, colluders=colluding)
    losses = [2.0, 2.2, 2.6, 3.0, 2.4][:sites]
    truth = sums_of(rule, losses)
    unknown = [rule.own(rule.initial, loss) for loss in losses[-3:]]
    first, second = sum(unknown), sum(one**2 for one in unknown)
    seen = []
    for angle in np.linspace(0.0, 2.0 * math.pi, 25):
        triple = circle(first, second, angle)
        if triple.min() <= 0.0 or triple.max() >= sites * rule.initial:
            continue
        other = [*losses[:-3], *(loss_of(rule, float(one)) for one in triple)]
        # The same to the last digits: each site's own rounding is about as large.
        assert sums_of(rule, other) == pytest.approx(truth, rel=1e-11)
        seen.append(other[-1])
    assert len(seen) >= 12
    assert max(seen) - min(seen) > 0.5  # the sums leave the last site's loss open that far


def test_equal_sites_are_not_hidden():
    """A limit: without any spread there is nothing to be uncertain about."""
    rule = a_rule(5)
    first, second = sums_of(rule, [2.5] * 5)
    assert 5 * second / first**2 - 1 == pytest.approx(0.0, abs=1e-9)
    assert loss_of(rule, first / 5) == pytest.approx(2.5, abs=1e-6)


# --- numbers with few digits


def fitting(rule: DroRule, first: float, second: float, near: float, grid: float, slack: float) -> int:
    """How many float32 values near the first of three losses leave float32 values for the other two."""
    tries = near + grid * np.arange(-3000, 3001)
    own = np.exp(rule.options.gamma * (tries - rule.cap))
    rest, squares = first - own, second - own**2
    root = np.sqrt(np.maximum(2.0 * squares - rest**2, 0.0))
    with np.errstate(invalid="ignore"):
        others = rule.cap + np.log(np.stack([(rest - root) / 2.0, (rest + root) / 2.0])) / rule.options.gamma
    return int(np.all(np.abs(others - np.round(others / grid) * grid) <= slack, axis=0).sum())


def test_without_the_blur_float32_losses_of_three_sites_can_be_searched_for():
    rule = a_rule(4)
    grid = 2.0**-22  # float32 between 2 and 4
    parts = [torch.tensor([2.0 + 0.1234567 * (site + 1)], dtype=torch.float32) for site in range(4)]
    bare = [float(part) for part in parts]
    blurred = [rule.loss(part) for part in parts]
    assert all(0.0 <= with_blur - without < BLUR for with_blur, without in zip(blurred, bare, strict=True))
    found = []
    for losses, slack in ((bare, 2.0**-34), (blurred, BLUR)):
        first, second = sums_of(rule, losses)
        own = rule.own(0.25, losses[0])  # the colluder's
        found.append(fitting(rule, first - own, second - own**2, bare[1], grid, slack))
    assert found == [1, 6001]  # one try fits, the true one; with the blur, all of them


# --- lies


@pytest.mark.parametrize("lie", [0.0, 1e-3, 16.0])
def test_a_lie_about_the_square_moves_weights_inside_their_bounds_only(lie):
    rule = a_rule(5, rho=0.1)
    losses = [1.0, 2.0, 3.0, 1.5, 2.5]
    first, second = sums_of(rule, losses)
    false = DroAnswer(1, (first, second - rule.own(0.2, losses[4]) ** 2 + lie), (True,) * 5)
    for site, loss in zip(rule.sites, losses, strict=True):
        assert WEIGHT_FLOOR <= rule.weight(site, 0.2, loss, false) <= rule.largest(5)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("count", [5, 8, 20])
def test_false_sums_do_not_leave_one_loss_alone_in_the_next_sum(count, divergence):
    """The aggregator lets all weights fall but the target's; the next sum would be the target's number."""
    rule = a_rule(count, rho=1.0, cap=4.0, divergence=divergence, noised=True)
    rest = rule.smallest(count)
    assert rest >= rule.options.least_step_scale / count
    numbers = [rule.own(rule.initial if site == 0 else rest, 2.0) for site in range(count)]
    read = rule.cap + math.log(math.fsum(numbers)) / rule.options.gamma
    assert read - 2.0 > math.log(1.0 + 0.25 * (count - 1)) / rule.options.gamma - 1e-9


def test_not_prevented_false_sums_and_a_model_of_zeros_give_the_largest_loss():
    """All sites are asked in every round; sums so large that all weights but one are the floor are told."""
    rule, losses = a_rule(5, rho=0.1), [2.1, 2.4, 1.9, 3.2, 2.6]
    first, _ = sums_of(rule, losses)
    told = DroAnswer(1, (4.5 * first, (4.5 * first) ** 2 / 5), (True,) * 5)
    weights = [rule.weight(site, 0.2, loss, told) for site, loss in zip(rule.sites, losses, strict=True)]
    assert sorted(weights)[:4] == [rule.smallest(5)] * 4 < [sorted(weights)[4]]
    known = math.log(16)  # what a model that knows nothing costs each of them
    following = rule.answer(2, totals(rule, weights, [known] * 5))
    assert following is not None
    largest = following.sums[0] / rule.own(1.0, known) - 4 * rule.smallest(5)
    assert loss_of(rule, 4.5 * first * largest) == pytest.approx(3.2, abs=1e-6)


def test_a_site_that_claims_the_largest_loss_gets_no_more_than_the_largest_weight():
    rule = a_rule(5, rho=0.1)
    first, _ = sums_of(rule, [1e6, 1.0, 1.0, 1.0, 1.0])
    assert first == pytest.approx(sums_of(rule, [rule.cap, 1.0, 1.0, 1.0, 1.0])[0], rel=1e-9)
    answer = rule.answer(1, totals(rule, [0.2] * 5, [1e6, 1.0, 1.0, 1.0, 1.0]))
    weight = rule.weight("site-00", 0.2, 1e6, answer)
    assert weight == pytest.approx(rule.largest(5), rel=1e-9)
    assert rule.step_scale(weight, 5) == pytest.approx(1.0 + math.sqrt(0.2 * 4))


def test_messages_name_no_value():
    with pytest.raises(ConfigError) as caught:
        a_rule(3, noised=False).check_cohort(3)
    assert not re.search(r"\d\.\d", str(caught.value))


@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("largest", [2e3, 1.0, 1e-4])  # further out, sites refuse them
def test_false_sums_cannot_make_all_updates_but_one_vanish(rho, largest):
    """The server claims sums of its choice, from which its victim is missing: the victim keeps its weight."""
    rule, losses = a_rule(5, rho=rho), [2.1, 2.4, 1.9, 3.2, 2.6]
    for victim in range(5):
        members = tuple(at != victim for at in range(5))
        for spread in (0.0, 1e-6, 0.5, 3.0):
            false = DroAnswer(1, (largest, (1.0 + spread) * largest**2 / 4), members)
            weights = [
                rule.weight(site, 0.2, loss, false) for site, loss in zip(rule.sites, losses, strict=True)
            ]
            scales = [rule.step_scale(weight, 4) for weight in weights]
            assert min(scales) >= rule.options.least_step_scale == 0.25
            others = [scale for at, scale in enumerate(scales) if at != victim]
            assert scales[victim] <= max(others) or scales[victim] == pytest.approx(0.8)


def test_honest_weights_are_never_below_the_smallest():
    rng = np.random.default_rng(4)
    for count in (4, 5, 9):
        rule = a_rule(count, rho=0.05)
        assert 0.1 / count < rule.smallest(count) < 1.0 / count < rule.largest(count)
        for _ in range(50):
            losses = rng.uniform(0, 6, count)
            wanted = plain(rule, [rule.initial] * count, losses.tolist())
            assert float(wanted.min()) >= rule.smallest(count) - 1e-12


def test_the_least_step_scale_can_be_left_out_or_make_all_steps_equal():
    free, equal = a_rule(5, rho=1.0, least_step_scale=0.0), a_rule(5, rho=1.0, least_step_scale=1.0)
    assert free.step_scale(1e-9, 5) == pytest.approx(5e-9)
    assert equal.step_scale(1e-9, 5) == equal.step_scale(0.2, 5) == 1.0
    assert a_rule(5, weight_convention="simplex").step_scale(1e-9, 5) == pytest.approx(0.25 / 5)
