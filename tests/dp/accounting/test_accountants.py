"""Epsilons against the specification, published values and independent integration."""

from __future__ import annotations

import math

import pytest
from scipy import optimize

from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian, Skellam, bounded_mean
from secfed.dp.accounting.interface import Accountant, Pld, Prv, Rdp, accountant, calibrate, statement
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError
from tests.dp.oracles import gaussian_delta, gaussian_epsilon, sampled_gaussian_delta

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD
ZERO, SWAP = Adjacency.ZERO_OUT_SITE, Adjacency.REPLACE_SITE
DELTA = 1e-5
FAST = Pld(1e-3)


def sampled(rate: float, sigma: float, steps: int, adjacency: Adjacency = ADD) -> PoissonSampledGaussian:
    return PoissonSampledGaussian(adjacency, rate, sigma, steps)


def pld_delta(event: Event, epsilon: float) -> float:
    return float(FAST.composed((event,)).get_delta_for_epsilon(epsilon))


# Specification, section 2: (q, sigma, T) -> replace, add or remove.
TABLE = [
    (0.02, 1.0, 1250, 7.11, 4.37),
    (0.02, 2.0, 1250, 2.95, 1.50),
    (0.05, 2.0, 1250, 8.58, 4.19),
    (0.05, 4.0, 1250, 3.79, 1.79),
    (0.0064, 1.0, 2500, 2.87, 1.77),
    (0.0064, 0.8, 2500, 4.22, 2.98),
    (0.0192, 1.0, 2500, 10.3, 6.06),
    (0.0192, 2.0, 2500, 4.19, 2.09),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "replace", "add"), TABLE)
def test_the_table_of_the_specification(
    rate: float, sigma: float, steps: int, replace: float, add: float
) -> None:
    assert FAST.epsilon([sampled(rate, sigma, steps, REPLACE)], DELTA) == pytest.approx(replace, rel=5e-3)
    assert FAST.epsilon([sampled(rate, sigma, steps, ADD)], DELTA) == pytest.approx(add, rel=5e-3)


def test_three_accountants_on_one_mechanism() -> None:
    """Specification, section 9; prv may be up to 0.05 sharper than printed there."""
    event = sampled(0.0192, 1.0, 2500)
    assert Rdp().epsilon([event], DELTA) == pytest.approx(6.61, abs=0.01)
    assert Prv().epsilon([event], DELTA) == pytest.approx(6.11, abs=0.05)
    assert Pld().epsilon([event], DELTA) == pytest.approx(6.06, abs=0.01)


def test_noise_for_epsilon_8() -> None:
    sigma = calibrate(8.0, DELTA, lambda s: sampled(0.0192, s, 2500), preferred=FAST, tolerance=2e-3)
    assert sigma == pytest.approx(0.876, abs=0.002)


@pytest.mark.parametrize(
    ("releases", "epsilon", "sigma"),
    [(25, 1, 18.7), (25, 8, 3.00), (25, 16, 1.72), (50, 1, 26.4), (50, 4, 7.65), (50, 8, 4.24)],
)
def test_site_level_noise_of_section_8(releases: int, epsilon: float, sigma: float) -> None:
    zero = FAST.epsilon([Gaussian(ZERO, sigma, releases)], DELTA)
    assert zero == pytest.approx(epsilon, rel=5e-3)
    assert FAST.epsilon([Gaussian(SWAP, 2 * sigma, releases)], DELTA) == pytest.approx(zero, rel=1e-3)


@pytest.mark.parametrize(("sigma", "epsilon"), [(2, 13.2), (5, 4.4), (10, 2.0)])
def test_private_losses_of_section_6(sigma: float, epsilon: float) -> None:
    assert FAST.epsilon([bounded_mean(sigma, 25)], DELTA) == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (4.0, 25), (20.0, 10)])
def test_pld_equals_the_exact_gaussian_mechanism_from_above(
    sigma: float, count: int, adjacency: Adjacency
) -> None:
    """Balle and Wang 2018: both directions of the conversion."""
    mu = adjacency.factor * math.sqrt(count) / sigma
    event = Gaussian(adjacency, sigma, count)
    exact = gaussian_epsilon(DELTA, mu)
    assert exact <= FAST.epsilon([event], DELTA) <= exact * 1.005 + 1e-3
    exact_delta = gaussian_delta(1.5, mu)
    assert exact_delta <= pld_delta(event, 1.5) <= exact_delta * 1.01 + 1e-9


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.1, 1.0, 0.5), (0.5, 2.0, 0.2), (0.01, 0.7, 1.0)])
def test_pld_is_exact_for_one_sampled_step(
    rate: float, sigma: float, epsilon: float, adjacency: Adjacency
) -> None:
    exact = sampled_gaussian_delta(epsilon, rate, sigma, replace=adjacency is REPLACE)
    found = pld_delta(sampled(rate, sigma, 1, adjacency), epsilon)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001


def test_published_abadi_2016() -> None:
    """Section 5.2: q = 0.01, sigma = 4, 10000 steps, delta 1e-5: 1.26 by the moments accountant."""
    event = sampled(0.01, 4.0, 10000)
    assert 1.0 < Rdp().epsilon([event], DELTA) <= 1.26
    assert 0.9 < FAST.epsilon([event], DELTA) <= Rdp().epsilon([event], DELTA)


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.02, 1.0, 500), (0.1, 4.0, 300), (1.0, 5.0, 20)])
def test_prv_and_pld_agree_within_5_percent_and_rdp_is_above(rate: float, sigma: float, steps: int) -> None:
    event = sampled(rate, sigma, steps)
    pld, prv, rdp = (one.epsilon([event], DELTA) for one in (FAST, Prv(), Rdp()))
    assert prv == pytest.approx(pld, rel=0.05)
    assert pld <= rdp * 1.001
    assert rdp <= 1.3 * pld


@pytest.mark.parametrize("which", [Rdp(), FAST], ids=lambda one: one.name)
def test_epsilon_is_monotone(which: Accountant) -> None:
    def of(rate: float = 0.05, sigma: float = 1.5, steps: int = 100, delta: float = DELTA) -> float:
        return which.epsilon([sampled(rate, sigma, steps)], delta)

    base = of()
    assert of(steps=150) > base > of(steps=50)
    assert of(rate=0.08) > base > of(rate=0.03)
    assert of(sigma=1.0) > base > of(sigma=2.5)
    assert of(delta=1e-7) > base > of(delta=1e-3)


def test_delta_of_epsilon_comes_back() -> None:
    event = sampled(0.05, 1.5, 100)
    epsilon = FAST.epsilon([event], DELTA)
    assert pld_delta(event, epsilon) <= DELTA * (1 + 1e-6)
    assert pld_delta(event, epsilon * 0.9) > DELTA


def test_two_half_runs_are_the_whole_run() -> None:
    half = sampled(0.05, 1.5, 50)
    assert FAST.epsilon([half, half], DELTA) == FAST.epsilon([half.repeated(100)], DELTA)


def test_composition_is_one_guarantee_and_not_a_sum() -> None:
    first, second = sampled(0.05, 1.5, 100), bounded_mean(5.0, 25)
    alone = [statement([one], DELTA, FAST).epsilon for one in (first, second)]
    together = statement([first, second], DELTA, FAST)
    assert max(alone) < together.epsilon < sum(alone)
    assert together.adjacency is REPLACE


@pytest.mark.parametrize(
    ("which", "event", "why"),
    [
        (Rdp(), sampled(0.1, 1.0, 10, REPLACE), "add-or-remove only"),
        (Rdp(), Gaussian(REPLACE, 4.0, 25), "add-or-remove only"),
        (Rdp(), Gaussian(SWAP, 4.0, 25), "add-or-remove only"),
        (Prv(), Gaussian(REPLACE, 4.0, 25), "add-or-remove only"),
        (Prv(), Skellam(ZERO, 1.0, 1.0, 10.0, 1), "cannot express"),
        (Pld(), Skellam(ZERO, 1.0, 1.0, 10.0, 1), "cannot express"),
    ],
)
def test_unsound_combinations_are_refused(which: Accountant, event: Event, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        which.epsilon([event], DELTA)


def test_different_relations_are_never_composed_silently() -> None:
    with pytest.raises(ConfigError, match="one neighbouring relation"):
        Pld().epsilon([Gaussian(ADD, 4.0, 1), Gaussian(REPLACE, 4.0, 1)], DELTA)


def test_a_statement_names_its_relation_and_accountant() -> None:
    found = statement([Gaussian(ADD, 4.0, 25)], DELTA, Rdp())
    assert (found.adjacency, found.accountant) == (ADD, "rdp")
    assert found.version.startswith("dp-accounting 0.")
    # rdp cannot account for replace: the statement falls back on pld, and says so.
    assert statement([Gaussian(REPLACE, 4.0, 25)], DELTA, Rdp()).accountant == "pld"


def test_what_no_single_accountant_covers_is_basic_composition_at_half_delta() -> None:
    records, site = sampled(0.02, 2.0, 100, REPLACE), Skellam(ZERO, 1000.0, 1e5, 1e8, 10)
    found = statement([records, site], DELTA, FAST)
    assert found.accountant == "basic composition of pld and rdp"
    assert found.adjacency is REPLACE
    parts = FAST.epsilon([records], DELTA / 2) + Rdp().epsilon([site.restated(REPLACE)], DELTA / 2)
    assert found.epsilon == pytest.approx(parts, rel=1e-12)


@pytest.mark.parametrize(
    ("which", "event"),
    [*((one, sampled(0.1, 0.0, 1)) for one in (Rdp(), Prv(), Pld())), (Rdp(), Skellam(ZERO, 1, 1, 0.0, 1))],
)
def test_no_noise_is_no_guarantee(which: Accountant, event: Event) -> None:
    assert which.epsilon([event], DELTA) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_must_be_a_probability_inside(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        statement([Gaussian(ADD, 1.0, 1)], delta)


def test_calibrated_noise_satisfies_the_budget_and_a_little_less_does_not() -> None:
    spent = [bounded_mean(10.0, 10)]

    def mechanism(sigma: float) -> Event:
        return sampled(0.1, sigma, 50, REPLACE)

    sigma = calibrate(3.0, DELTA, mechanism, already=spent, preferred=FAST)
    assert statement([*spent, mechanism(sigma)], DELTA, FAST).epsilon <= 3.0
    assert statement([*spent, mechanism(sigma * 0.99)], DELTA, FAST).epsilon > 3.0


def test_a_search_that_ends_below_the_budget_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back was itself checked, wherever the root finder stopped."""
    real = optimize.brentq
    monkeypatch.setattr(optimize, "brentq", lambda *given, **options: real(*given, **options) - 0.05)
    sigma = calibrate(3.0, DELTA, lambda sigma: Gaussian(ADD, sigma, 4), preferred=FAST)
    assert FAST.epsilon([Gaussian(ADD, sigma, 4)], DELTA) <= 3.0


def test_accountants_by_name() -> None:
    assert [accountant(name).name for name in ("rdp", "prv", "pld")] == ["rdp", "prv", "pld"]
    with pytest.raises(ConfigError, match="unknown accountant 'gdp'") as error:
        accountant("gdp")
    assert "pld, prv, rdp" in error.value.remedy


def test_an_epsilon_that_no_noise_reaches_is_one_error() -> None:
    with pytest.raises(ConfigError, match="no noise reaches"):
        calibrate(1.0, DELTA, lambda s: Gaussian(ADD, s, 1), already=[Gaussian(ADD, 1.0, 1)], preferred=Rdp())
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: 4\.94066e-324") as caught:
        calibrate(5e-324, DELTA, lambda s: Gaussian(ADD, s, 1), preferred=Rdp())
    assert caught.value.remedy
    assert calibrate(1e-6, DELTA, lambda s: Gaussian(ADD, s, 1), preferred=Rdp()) > 1
