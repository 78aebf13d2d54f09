"""Independent ways to compute what the tests compare with. Nothing here calls secfed."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special, stats

FALSE_ALARM = 1e-6  # of every test on a distribution below: one red run in a million without a bug


def gaussian_delta(epsilon: float, sensitivity_over_deviation: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle and Wang 2018, theorem 8)."""
    mu = sensitivity_over_deviation
    second = math.exp(epsilon + float(stats.norm.logcdf(-mu / 2 - epsilon / mu)))
    return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - second


def gaussian_epsilon(delta: float, sensitivity_over_deviation: float) -> float:
    """Exact epsilon of the Gaussian mechanism."""
    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(middle, sensitivity_over_deviation) > delta:
            low = middle
        else:
            high = middle
    return high


def sampled_gaussian_delta(epsilon: float, rate: float, sigma: float, *, replace: bool) -> float:
    """Exact delta of one Poisson sampled Gaussian release: the worst pair in both directions.

    Each pair is a mixture of normals whose likelihood ratio is monotone, so its hockey-stick divergence
    is a difference of tail masses beyond one threshold.
    """

    def tail(x: float, mean: float, side: int) -> float:
        normal = stats.norm.sf if side > 0 else stats.norm.cdf
        return float((1 - rate) * normal(x / sigma) + rate * normal((x - mean) / sigma))

    def log_ratio(x: float, above: float, below: float) -> float:
        logs = [
            np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x * mean - mean**2) / (2 * sigma**2))
            for mean in (above, below)
        ]
        return float(logs[0] - logs[1]) - epsilon

    def divergence(above: float, below: float) -> float:
        side = 1 if above > below else -1
        edge = 200.0 * sigma * side
        if log_ratio(edge, above, below) <= 0:
            return 0.0
        x = optimize.brentq(log_ratio, -edge, edge, args=(above, below), xtol=1e-14)
        return tail(x, above, side) - math.exp(epsilon) * tail(x, below, side)

    pairs = [(1.0, -1.0)] if replace else [(1.0, 0.0), (0.0, 1.0)]
    return max(divergence(*pair) for pair in pairs)


def skellam_pmf(variance: float, reach: int) -> np.ndarray:
    """P(-reach..reach)."""
    return special.ive(np.abs(np.arange(-reach, reach + 1)).astype(float), variance)


def discrete_gaussian_pmf(sigma: float, reach: int) -> np.ndarray:
    """P(-reach..reach)."""
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def rounded_normal_pmf(sigma: float, reach: int) -> np.ndarray:
    """P(-reach..reach)."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(stats.norm.cdf(edges / sigma))


def renyi(pmf: np.ndarray, shift: int, order: float) -> float:
    """Renyi divergence of a distribution from itself shifted."""
    p, q = pmf[shift:], pmf[: len(pmf) - shift]
    both = (p > 1e-280) & (q > 1e-280)
    return float(special.logsumexp(order * np.log(p[both]) + (1 - order) * np.log(q[both])) / (order - 1))


def chi_square_p(sample: np.ndarray, pmf: np.ndarray) -> float:
    """p-value that integers come from a symmetric pmf over -reach..reach, cells pooled to >= 25 expected."""
    reach = len(pmf) // 2
    counts = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=len(pmf)).astype(float)
    expected = pmf * len(sample)
    expected[0] += len(sample) * max(0.0, 1 - pmf.sum())
    cells: list[tuple[float, float]] = []
    have = want = 0.0
    for count, mean in zip(counts, expected, strict=True):
        have, want = have + count, want + mean
        if want >= 25:
            cells.append((have, want))
            have = want = 0.0
    if cells:
        cells[-1] = (cells[-1][0] + have, cells[-1][1] + want)
    observed, mean = np.array(cells).T
    return float(stats.chi2.sf(((observed - mean) ** 2 / mean).sum(), len(cells) - 1))


def deviation_p(sample: np.ndarray, deviation: float) -> float:
    """Two-sided p-value that a normal sample of mean 0 has this standard deviation."""
    statistic = float((np.asarray(sample, dtype=float) ** 2).sum()) / deviation**2
    return 2 * min(stats.chi2.cdf(statistic, len(sample)), stats.chi2.sf(statistic, len(sample)))


def composed_gaussian_delta(epsilon: float, rate: float, sigma: float, steps: int) -> float:
    """Delta of ``steps`` Poisson sampled Gaussian releases, a record removed; correct to about 0.1 %.

    The privacy loss of one step is rounded to the nearest of many points, tilted exponentially so that the
    composed loss is about epsilon on average, and convolved with itself: the error of the Fourier transform
    is then relative to delta, not to 1 (the saddle point of large deviations).
    """
    scale = 2 * sigma**2
    low, high = (math.log1p(rate * math.expm1((2 * x - 1) / scale)) for x in (-11 * sigma, 1 + 11 * sigma))
    step = (high - low) / (1 << 15)
    points = np.arange(math.floor(low / step), math.floor(high / step) + 1)
    inner = np.expm1((points[:-1] + 0.5) * step) / rate
    edges = np.full(len(points) + 1, -np.inf)
    reached = inner > -1  # a loss below log(1 - rate) does not occur
    edges[1:-1][reached] = scale / 2 * np.log1p(inner[reached]) + 0.5
    edges[-1] = np.inf

    def mass(mean: float) -> np.ndarray:
        left, right = (edges[:-1] - mean) / sigma, (edges[1:] - mean) / sigma
        above = stats.norm.sf(left) - stats.norm.sf(right)
        return np.where(left > 0, above, stats.norm.cdf(right) - stats.norm.cdf(left))

    logs = np.log(np.maximum((1 - rate) * mass(0.0) + rate * mass(1.0), 1e-300))
    losses = points * step

    def tilted(tilt: float) -> tuple[float, np.ndarray]:
        total = float(special.logsumexp(logs + tilt * losses))
        return total, np.exp(logs + tilt * losses - total)

    def excess(tilt: float) -> float:
        return steps * float(tilted(tilt)[1] @ losses) - epsilon

    tilt = float(optimize.brentq(excess, -1.0, 500.0, xtol=1e-6))
    log_total, weights = tilted(tilt)
    variance = steps * float(weights @ (losses - weights @ losses) ** 2)
    size = 1 << math.ceil(math.log2(max(len(points), 30 * math.sqrt(variance) / step)))
    circle = np.zeros(size)
    np.add.at(circle, points % size, weights)
    composed = np.fft.irfft(np.fft.rfft(circle) ** steps, size)
    middle = round(epsilon / step)
    places = np.arange(middle + 1, middle + size // 2)
    beyond = places * step - epsilon
    summed = float((composed[places % size] * np.exp(-tilt * beyond) * -np.expm1(-beyond)).sum())
    return summed * math.exp(steps * log_total - tilt * epsilon)
