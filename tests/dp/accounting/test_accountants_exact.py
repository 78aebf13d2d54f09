"""Accountants against exact numbers, down to the smallest delta at which each may be used."""

from __future__ import annotations

import math

import pytest

from secfed.dp.accounting.budget import Budget, Spent, disagrees, standing
from secfed.dp.accounting.events import Gaussian, PoissonSampledGaussian, Skellam
from secfed.dp.accounting.interface import Accountant, Pld, Prv, Rdp, calibrate, statement
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError
from tests.dp.oracles import composed_gaussian_delta, gaussian_delta, sampled_gaussian_delta

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD
ALL: list[Accountant] = [Pld(), Prv(), Rdp()]
DELTAS = [1e-3, 1e-6, 1e-10]


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 9.0])
def test_the_oracle_of_compositions_agrees_with_closed_forms(epsilon: float) -> None:
    for rate, sigma in ((0.02, 1.0), (0.3, 0.8)):
        exact = sampled_gaussian_delta(epsilon, rate, sigma, replace=False)
        if exact > 1e-30:
            assert composed_gaussian_delta(epsilon, rate, sigma, 1) == pytest.approx(exact, rel=2e-3)
    exact = gaussian_delta(epsilon, math.sqrt(50) / 8.0)
    assert composed_gaussian_delta(epsilon, 1.0, 8.0, 50) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("which", ALL, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [
        *((rate, sigma, steps) for rate, sigma in ((0.1, 1.0), (0.5, 2.0)) for steps in (1, 2)),
        *((0.02, 1.0, 2), (0.02, 1.0, 1250), (0.0064, 0.8, 2500), (0.05, 0.8, 500)),
    ],
)
@pytest.mark.parametrize("delta", [DELTAS[0], DELTAS[-1]])
def test_sampled_steps_are_never_below_the_truth(
    which: Accountant, rate: float, sigma: float, steps: int, delta: float
) -> None:
    """One step too few, or a delta too small for a Fourier transform, would show here."""
    epsilon = which.epsilon([PoissonSampledGaussian(ADD, rate, sigma, steps)], delta)
    if epsilon > 0:
        assert composed_gaussian_delta(epsilon, rate, sigma, steps) <= delta * 1.002
    # And not far above either, but for RDP, whose bound is loose at few steps.
    if epsilon > 0.05 and which.name != "rdp":
        assert composed_gaussian_delta(epsilon - 0.05, rate, sigma, steps) > delta


@pytest.mark.parametrize("which", ALL, ids=lambda one: one.name)
@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (4.0, 25)])
@pytest.mark.parametrize("delta", DELTAS)
def test_gaussian_steps_are_never_below_the_truth(
    which: Accountant, sigma: float, count: int, delta: float
) -> None:
    """Balle and Wang 2018, theorem 8."""
    epsilon = which.epsilon([Gaussian(ADD, sigma, count)], delta)
    assert gaussian_delta(epsilon, math.sqrt(count) / sigma) <= delta * (1 + 1e-6)


def test_without_its_limit_an_accountant_would_claim_too_little() -> None:
    """Why there is one: at delta 1e-13 both numerical accountants are below the truth."""
    event = PoissonSampledGaussian(ADD, 0.02, 1.0, 1250)
    for which in (Pld(), Prv()):
        epsilon = which.epsilon([event], 1e-13)
        assert composed_gaussian_delta(epsilon, 0.02, 1.0, 1250) > 1.02e-13


@pytest.mark.parametrize("which", [Pld(), Prv()], ids=lambda one: one.name)
def test_a_guarantee_below_the_limit_comes_from_rdp_or_not_at_all(which: Accountant) -> None:
    event = PoissonSampledGaussian(ADD, 0.02, 1.0, 1250)
    found = statement([event], 1e-13, which)
    assert (found.accountant, found.epsilon) == ("rdp", Rdp().epsilon([event], 1e-13))
    with pytest.raises(ConfigError, match=r"privacy\.delta: 1e-13 is below 1e-10.*'pld'") as caught:
        statement([PoissonSampledGaussian(REPLACE, 0.02, 1.0, 1250)], 1e-13, which)
    assert "raise delta to 1e-10 or more" in caught.value.remedy
    noise = calibrate(2.0, 1e-13, lambda s: PoissonSampledGaussian(ADD, 0.02, s, 100), preferred=which)
    assert statement([PoissonSampledGaussian(ADD, 0.02, noise, 100)], 1e-13, which).epsilon <= 2.0


def test_shares_of_delta_have_the_limit_too() -> None:
    events = [PoissonSampledGaussian(REPLACE, 0.02, 2.0, 100), Skellam(REPLACE, 1000.0, 1e5, 1e8, 10)]
    assert statement(events, 3e-10).accountant == "basic composition of pld and rdp"
    with pytest.raises(ConfigError, match=r"privacy\.delta: 5e-11 is below 1e-10"):
        statement(events, 1e-10)


def test_the_smaller_of_two_bounds_is_stated_under_its_own_name() -> None:
    event = PoissonSampledGaussian(ADD, 0.0002, 0.7, 100_000)
    found = {delta: statement([event], delta) for delta in (1e-5, 1e-10)}
    for delta, one in found.items():
        bounds = {which.name: which.epsilon([event], delta) for which in (Pld(), Rdp())}
        assert one.epsilon == min(bounds.values()) == bounds[one.accountant]
    event = PoissonSampledGaussian(ADD, 0.0002, 1.5, 200_000)
    assert statement([event], 1e-6).accountant == "rdp"
    assert statement([event], 1e-6, Rdp()).epsilon < 0.8 * Pld().epsilon([event], 1e-6)


def test_records_of_either_bound_verify_and_lower_ones_do_not() -> None:
    """A ledger of an earlier version states pld where rdp is smaller by now, at any delta."""
    budget = Budget(100.0, 1e-6)
    paid = [Spent(PoissonSampledGaussian(ADD, 0.0002, 1.5, 200_000), 10)]
    new = standing(budget, paid, 10, Pld()).to_value()
    old = standing(budget, paid, 10, Pld(), exactly=True).to_value()
    assert (new["spent"]["accountant"], old["spent"]["accountant"]) == ("rdp", "pld")
    assert new["spent"]["epsilon"] < old["spent"]["epsilon"]
    assert disagrees(old, paid, Pld()) is None
    assert disagrees(new, paid, Rdp()) is None
    lower = {**old, "spent": {**old["spent"], "epsilon": new["spent"]["epsilon"]}}
    assert "recorded epsilon" in str(disagrees(lower, paid, Pld()))
    tiny = standing(Budget(100.0, 1e-13), paid, 10, Pld(), exactly=True).to_value()
    assert disagrees(tiny, paid, Pld()) is None


def section(**given: object) -> PrivacySection:
    return PrivacySection.model_validate({"unit": "record", "epsilon": 1.0, **given})


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"delta": 9e-11}, 'privacy.accountant = "rdp"'),
        ({"delta": 1e-13, "accountant": "prv"}, 'privacy.accountant = "rdp"'),
        ({"delta": 1e-14, "unit": "group", "group_size": 4}, "raise delta to 1e-10 or more"),
        ({"delta": 1e-13, "adjacency": "replace-record", "accountant": "rdp"}, "raise delta"),
    ],
)
def test_a_study_below_the_limit_is_refused_with_the_right_remedy(
    given: dict[str, object], remedy: str
) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.delta: .* is below 1e-10") as caught:
        section(**given)
    assert remedy in caught.value.remedy


def test_studies_that_formulas_account_for_have_no_limit() -> None:
    assert section(delta=1e-14, accountant="rdp").delta == 1e-14
    assert section(delta=1e-14, unit="site").delta == 1e-14
    assert section(delta=1e-10).delta == 1e-10
