"""Exact noise: distributions by chi-square at a false-alarm rate of 1e-6, exactness of the comparison."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import special, stats

from secfed.dp.mechanisms import randomness
from secfed.dp.mechanisms import sampler as sampler_module
from secfed.dp.mechanisms.distributions import skellam_tail
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import DiscreteGaussian, NoiseSampler, RoundedNormal, SkellamTarget, Target
from secfed.errors import ConfigError
from tests.dp.oracles import FALSE_ALARM, chi_square_p, discrete_gaussian_pmf, rounded_normal_pmf, skellam_pmf

CASES: list[tuple[Target, np.ndarray]] = [
    (RoundedNormal(4.0), rounded_normal_pmf(4.0, 60)),
    (RoundedNormal(256.0), rounded_normal_pmf(256.0, 3000)),
    (DiscreteGaussian(0.4), discrete_gaussian_pmf(0.4, 10)),
    (DiscreteGaussian(37.3), discrete_gaussian_pmf(37.3, 500)),
    (SkellamTarget(0.3), skellam_pmf(0.3, 20)),
    (SkellamTarget(90.0), skellam_pmf(90.0, 200)),
    (SkellamTarget(5000.0), skellam_pmf(5000.0, 1000)),
]


def sampler(target: Target, seed: int = 1, **options: float) -> NoiseSampler:
    return NoiseSampler(target, SecureRandom.for_simulation(seed), **options)


@pytest.mark.parametrize(("target", "pmf"), CASES, ids=[repr(target) for target, _ in CASES])
def test_samples_have_the_distribution(target: Target, pmf: np.ndarray) -> None:
    assert chi_square_p(sampler(target).take(200_000), pmf) > FALSE_ALARM


@pytest.mark.parametrize(("target", "pmf"), CASES, ids=[repr(target) for target, _ in CASES])
def test_the_decimal_comparison_gives_the_same_distribution(
    target: Target, pmf: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A margin of 2 leaves every single decision to the arithmetic that is normally the fall-back."""
    monkeypatch.setattr(sampler_module, "_BLOCK", 512)
    assert chi_square_p(sampler(target, margin=2.0).take(1000), pmf) > FALSE_ALARM


@pytest.mark.parametrize("target", [RoundedNormal(1024.0), DiscreteGaussian(50.0), SkellamTarget(1e8)])
def test_both_comparisons_decide_alike(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same words: the double-precision decision is never contradicted by the exact one."""
    monkeypatch.setattr(sampler_module, "_BLOCK", 1500)
    fast, exact = sampler(target), sampler(target, margin=2.0)
    decided: list[bool] = []
    original = exact._decide

    def spy(*arguments: int) -> bool:
        # The refinement draws words; give the fast sampler's stream back its own order.
        kept, exact._random = exact._random, SecureRandom.for_simulation(99)
        decided.append(original(*arguments))
        exact._random = kept
        return decided[-1]

    exact._decide = spy  # type: ignore[method-assign]
    assert np.array_equal(exact._block(), fast._block())
    assert len(decided) > 1000
    assert any(decided)
    assert not all(decided)


@pytest.mark.parametrize("real", [0.97, 1.03])
def test_the_test_notices_three_percent_of_noise(real: float) -> None:
    pmf = skellam_pmf(5000.0, 1000)
    assert chi_square_p(sampler(SkellamTarget(5000.0 * real**2)).take(200_000), pmf) < FALSE_ALARM


def test_large_scales_pass_a_kolmogorov_smirnov_test() -> None:
    """At 2^30 steps per deviation a rounded normal is a normal as far as 10^5 samples can tell."""
    for target in (RoundedNormal(2.0**30), DiscreteGaussian(2.0**40), SkellamTarget(2.0**60)):
        sample = sampler(target).take(100_000) / target.deviation
        assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
        low_bits = sampler(target, 2).take(100_000) & 0xFF
        assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("target", [RoundedNormal(64.0), SkellamTarget(9.0)])
def test_chunks_do_not_matter(target: Target) -> None:
    whole, parts = sampler(target).take(30_000), sampler(target)
    sizes = [1, 9999, 0, 7, 12_000, 7993]
    assert np.array_equal(whole, np.concatenate([parts.take(size) for size in sizes]))


@pytest.mark.parametrize("variance", [0.7, 500.0, 4095.0, 4096.0, 1e5, 1e9])
def test_skellam_log_ratio_against_bessel_functions(variance: float) -> None:
    """Checks the recurrence, the Debye expansion, and the seam between them at variance 4096."""
    target = SkellamTarget(variance)
    orders = np.unique(np.linspace(0, min(target.reach - 1, 8 * variance**0.5 + 20), 50).astype(int))
    found = target.log_ratio(orders.astype(float))
    wanted = np.log(special.ive(orders.astype(float), variance) / special.ive(0.0, variance))
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-10)
    with localcontext() as context:
        context.prec = 60
        exact = [float(target.exact_log_ratio(Decimal(int(order)))) for order in orders]
    # The bound that the sampler's margin relies on.
    assert np.abs(np.array(exact) - found).max() < 2.0**-38


def test_the_expansion_is_continued_correctly_to_many_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    target = SkellamTarget(5000.0)
    with mpmath.workdps(90), localcontext() as context:
        context.prec = 90
        for order in (1, 77, 900):
            bessel = mpmath.besseli(order, mpmath.mpf(5000), maxterms=10**6)
            wanted = mpmath.log(bessel / mpmath.besseli(0, mpmath.mpf(5000), maxterms=10**6))
            found = mpmath.mpf(str(target.exact_log_ratio(Decimal(order))))
            assert abs(found - wanted) < mpmath.mpf(10) ** -75


@pytest.mark.parametrize("variance", [0.5, 20.0, 3000.0])
def test_the_tail_bound_holds(variance: float) -> None:
    for bits in (4, 10, 30):
        edge = int(skellam_tail(variance, bits))
        pmf = skellam_pmf(variance, edge + 400)
        outside = 2 * pmf[: len(pmf) // 2 - edge + 1].sum()
        assert outside <= 2.0**-bits


@pytest.mark.parametrize(
    ("kind", "scale"), [(RoundedNormal, 0.0), (SkellamTarget, 0.0), (DiscreteGaussian, 2.0**50)]
)
def test_scales_that_cannot_be_drawn_are_refused(kind: type, scale: float) -> None:
    with pytest.raises(ConfigError, match="cannot be drawn"):
        kind(scale)


def test_a_fresh_stream_never_repeats_and_a_seeded_one_does() -> None:
    assert not np.array_equal(SecureRandom().words(4), SecureRandom().words(4))
    first, again, other = (
        SecureRandom.for_simulation(*seed).words(4) for seed in ((1, "a"), (1, "a"), (1, "b"))
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_stream_changes_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SecureRandom(bytes(32)).words(1000)
    monkeypatch.setattr(randomness, "_REKEY_BYTES", 800)
    monkeypatch.setattr(randomness, "_BLOCK_BYTES", 400)
    rekeyed = SecureRandom(bytes(32)).words(1000)
    assert np.array_equal(plain[:100], rekeyed[:100])
    assert not np.any(plain[100:] == rekeyed[100:])
    assert len(set(rekeyed.tolist())) == 1000


@pytest.mark.parametrize("rate", [0.001, 0.07, 0.5, 0.999])
def test_poisson_sampling_includes_each_unit_at_its_rate(rate: float) -> None:
    """Specification, invariant 4, as a binomial test at the false-alarm rate."""
    random = SecureRandom.for_simulation(5)
    drawn = [random.poisson_sample(rate, 500) for _ in range(200)]
    total = sum(len(one) for one in drawn)
    assert stats.binomtest(total, 500 * 200, rate).pvalue > FALSE_ALARM
    assert abs(total - 1e5 * rate) < 5 * (1e5 * rate * (1 - rate)) ** 0.5
    sizes = np.array([len(one) for one in drawn])
    assert sizes.std() > 0.5 * (500 * rate * (1 - rate)) ** 0.5, "a fixed batch size is not Poisson sampling"


def test_the_ends_of_bernoulli_are_exact() -> None:
    random = SecureRandom.for_simulation(5)
    assert not random.bernoulli(0.0, 1000).any()
    assert random.bernoulli(1.0, 1000).all()
    with pytest.raises(ConfigError, match="not a probability"):
        random.bernoulli(1.5, 1)
