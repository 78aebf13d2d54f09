"""Every epsilon of a ledger, computed again from its events, with the standard library only.

The rules are in docs/records.md, section 5. An accountant rounds upwards by a little, each in its own way, so
a recorded number must lie in a narrow interval around what is computed here.
"""

from __future__ import annotations

import cmath
import json
import math
from functools import cache
from statistics import NormalDist
from typing import Any

PROTECTS_SITE = ("zero-out-site", "replace-site")
DOUBLE = ("replace-record", "replace-patient", "replace-site")  # sensitivity 2C
WIDER = {
    "add-or-remove-record": ("replace-record",),
    "replace-record": (),
    "replace-patient": ("replace-record",),
    "zero-out-site": ("replace-site", "replace-record"),
    "replace-site": ("replace-record",),
}
FIELDS = {
    "poisson-sampled-gaussian/1": {"sampling_rate", "noise_multiplier", "steps"},
    "gaussian/1": {"noise_multiplier", "count"},
    "skellam/1": {"l2", "l1", "variance", "count"},
    "unit-skellam/1": {"l2", "l1", "variance", "count"},
    "distributed-discrete-gaussian/1": {"l2", "l1", "sigma", "shares", "dimension", "count"},
    "unit-discrete-gaussian/1": {"l2", "l1", "sigma", "shares", "dimension", "count"},
}
ORDERS = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64)] + [2**k for k in range(6, 12)]
POINTS = 1 << 15  # of a privacy loss distribution
normal = NormalDist().cdf


class Wrong(Exception):
    """What must not be so, in a sentence."""


def check_payments(entries: list[dict[str, Any]]) -> tuple[int, list[tuple[int, str]]]:
    """Dates, budgets and every epsilon of a ledger: how many were right, and each line where one is wrong."""
    in_force: list[Any] = []
    spent: list[dict[str, Any]] = []
    wrong: list[tuple[int, str]] = []
    before = checked = 0
    for entry in entries[1:]:
        line, body = entry["seq"] + 1, entry["body"]
        try:
            if type(body["time_s"]) is not int or body["time_s"] < before:
                raise Wrong("dated before the entry above it")
            before = body["time_s"]
            if entry["kind"] == "budgets":
                in_force = body["budgets"]
            if entry["kind"] == "spent":
                spent.append(body)
                if [{k: v for k, v in one.items() if k != "spent"} for one in body["after"]] != in_force:
                    raise Wrong("does not state the budgets that were in force")
                for one in body["after"]:
                    check_epsilon(one, spent)
                    checked += 1
        except Wrong as error:
            wrong.append((line, str(error)))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            wrong.append((line, "it cannot be read as what a ledger writes"))
    return checked, wrong


def check_epsilon(recorded: dict[str, Any], spent: list[dict[str, Any]]) -> None:
    """One recorded standing, from the events it counts."""
    span, record_budget = recorded["period_days"], recorded["protects"] == "record"
    start = -math.inf if span is None else spent[-1]["time_s"] - 86_400 * span
    counts: dict[str, int] = {}
    relations = set()
    for body in spent:
        event = dict(body["event"])
        of_site = event["adjacency"] in PROTECTS_SITE
        if body["time_s"] <= start or (not record_budget and not of_site):
            continue
        if record_budget and of_site:
            if body["record_private"]:
                continue
            event["adjacency"] = "replace-record"
        if set(event) != FIELDS[event["event"]] | {"event", "adjacency"}:
            raise Wrong("an event has the wrong fields")
        times = event.pop("steps" if "steps" in event else "count")
        if type(times) is not int or times < 1:
            raise Wrong("an event that happened less than once")
        relations.add(event.pop("adjacency"))
        counts[key] = counts.get(key := json.dumps(event, sort_keys=True), 0) + times
    if not counts:
        if recorded["spent"] is not None:
            raise Wrong("a recorded epsilon has no event")
        return
    known = (*relations, "replace-site", "replace-record")
    relation = next(c for c in known if all(r == c or c in WIDER[r] for r in relations))
    said = recorded["spent"]
    if said["adjacency"] != relation:
        raise Wrong(f"states its epsilon for {said['adjacency']}; the events give {relation}")
    if recorded["epsilon"] is not None and not said["epsilon"] <= recorded["epsilon"]:
        raise Wrong("more was spent than the budget allows")
    names = said["accountant"].removeprefix("basic composition of ").split(" and ")
    low, high = epsilons(tuple(sorted(counts.items())), relation in DOUBLE, recorded["delta"], tuple(names))
    if not low <= said["epsilon"] <= high:
        raise Wrong(f"recorded epsilon {said['epsilon']:.4g}; the events give {low:.4g} to {high:.4g}")


@cache
def epsilons(
    counts: tuple[tuple[str, int], ...], double: bool, delta: float, names: tuple[str, ...]
) -> tuple[float, float]:
    """What a sound and careful accountant may state: from, to (docs/records.md, 5)."""
    events = [(json.loads(event), times) for event, times in counts]
    gaussian = [one for one in events if "noise_multiplier" in one[0]]
    low = high = 0.0
    for name in names:
        mine = (
            events
            if len(names) == 1
            else gaussian
            if name != "rdp"
            else [e for e in events if e not in gaussian]
        )
        share = delta / len(names)
        if name == "rdp":
            found = by_divergences(mine, double, share)
            low, high = low + 0.999 * found, high + 1.001 * found
        else:
            found = by_losses(mine, double, share)
            low, high = low + 0.99 * found - 1e-3, high + 1.06 * found + (0.03 if name == "prv" else 2e-3)
    return low, high


def by_divergences(events: list[tuple[dict[str, Any], int]], double: bool, delta: float) -> float:
    """Epsilon from Renyi divergences (Canonne, Kamath, Steinke 2020, proposition 12)."""
    best = math.inf
    for order in ORDERS:
        total = sum(
            times * divergence(order, json.dumps(event), 2 if double else 1) for event, times in events
        )
        if delta**2 + math.expm1(-total) > 0:
            return 0.0
        if order > 1.01:
            best = min(best, total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)


@cache
def divergence(order: float, event_json: str, factor: int) -> float:
    """Renyi divergence of one run of a mechanism."""
    event = json.loads(event_json)
    if "noise_multiplier" in event:
        sigma, rate = event["noise_multiplier"] / factor, event.get("sampling_rate", 1.0)
        return order / (2 * sigma**2) if rate == 1 else sampled_divergence(order, sigma, rate)
    l2, l1 = factor * event["l2"], factor * event["l1"]
    if "variance" in event:  # Agarwal, Kairouz, Liu 2021, theorem 3.5
        order, variance = math.ceil(order), event["variance"]
        small = ((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2)
        return float(order * l2**2 / (2 * variance) + min(small, 3 * l1 / (2 * variance)))
    sigma, shares, dimension = event["sigma"], event["shares"], event["dimension"]
    gap = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, shares))
    l2, l1 = l2 / (sigma * math.sqrt(shares)), l1 / (sigma * math.sqrt(shares))
    return (
        order
        / 2
        * min(  # Kairouz, Liu, Steinke 2021, proposition 14
            l2**2 + 2 / order * gap * dimension,
            l2**2 + 2 * l1 * gap + gap**2 * dimension,
            (l2 + math.sqrt(dimension) * gap) ** 2,
        )
    )


def sampled_divergence(order: float, sigma: float, rate: float) -> float:
    """Of the Poisson-sampled Gaussian, by the trapezoidal rule (Mironov, Talwar, Zhang 2019)."""
    low, high, count = -12 * sigma, order + 12 * sigma, 4000
    step = (high - low) / count
    logs = []
    for index in range(count + 1):
        x = low + index * step
        logs.append(order * ratio(x, sigma, rate) - x**2 / (2 * sigma**2))
    top = max(logs)
    area = step * math.fsum(math.exp(value - top) for value in logs) / (sigma * math.sqrt(2 * math.pi))
    return max(0.0, (top + math.log(area)) / (order - 1))


def by_losses(events: list[tuple[dict[str, Any], int]], double: bool, delta: float) -> float:
    """Epsilon from the distribution of the privacy loss, in both directions (Koskela et al. 2020)."""
    whole = [(e["noise_multiplier"] / (1 + double), n) for e, n in events if e.get("sampling_rate", 1) == 1]
    sampled = [
        (e["noise_multiplier"], e["sampling_rate"], n) for e, n in events if e.get("sampling_rate", 1) < 1
    ]
    if not all(sigma for sigma, *_ in (*whole, *sampled)):
        return math.inf
    mu = math.sqrt(sum(n / sigma**2 for sigma, n in whole))  # Gaussians compose to a Gaussian
    if not sampled:  # exactly: Balle, Wang 2018
        return smallest(lambda eps: normal(mu / 2 - eps / mu) - exp_normal(eps, -mu / 2 - eps / mu), delta)
    directions = (True,) if double else (True, False)
    return max(smallest(composed(tuple(sampled), mu, double, one), delta) for one in directions)


def composed(sampled: tuple[tuple[float, float, int], ...], mu: float, double: bool, removed: bool) -> Any:
    """Delta as a function of epsilon: losses of all steps, added up by Fourier transforms."""
    steps = [(losses(sigma, rate, double, removed), n) for sigma, rate, n in sampled]
    mean = mu**2 / 2 + sum(n * math.fsum(p * loss for p, loss in one) for one, n in steps)
    square = mu**2 + sum(n * math.fsum(p * loss**2 for p, loss in one) for one, n in steps)
    widest = max(abs(loss) for one, _ in steps for _, loss in one)
    width = 2.0 ** math.ceil(math.log2(24 * math.sqrt(square) + 2 * widest))
    grid = width / POINTS
    total = [1 + 0j] * POINTS
    for sigma, rate, n in sampled:
        step = transformed(sigma, rate, double, removed, grid)
        total = [value * factor**n for value, factor in zip(total, step, strict=True)]
    for index in range(POINTS if mu else 0):
        turn = 2 * math.pi * (index - POINTS * (index > POINTS // 2)) / width
        total[index] *= cmath.exp(complex(-((turn * mu) ** 2) / 2, -turn * mu**2 / 2))
    masses = [value.real / POINTS for value in fourier([value.conjugate() for value in total])]
    first = round(mean / grid) - POINTS // 2
    found = [((first + k) * grid, masses[(first + k) % POINTS]) for k in range(POINTS)]
    return lambda eps: math.fsum(-mass * math.expm1(eps - loss) for loss, mass in found if loss > eps)


@cache
def losses(sigma: float, rate: float, double: bool, removed: bool) -> list[tuple[float, float]]:
    """Probability and privacy loss of one Poisson-sampled step, over small intervals of its outcome."""
    low, high, count = -9 * sigma - 1, 9 * sigma + 1, 12_000
    edges = [low + (high - low) * index / count for index in range(count + 1)]
    mixed, plain = [], []
    for x in edges:
        plain.append(normal(x / sigma))
        mixed.append((1 - rate) * plain[-1] + rate * normal((x - 1) / sigma))
    found = []
    for index in range(count):
        x = (edges[index] + edges[index + 1]) / 2
        loss = ratio(x, sigma, rate) - (ratio(-x, sigma, rate) if double else 0)
        masses = mixed if double or removed else plain
        found.append((masses[index + 1] - masses[index], loss if double or removed else -loss))
    return found


@cache
def transformed(sigma: float, rate: float, double: bool, removed: bool, grid: float) -> list[complex]:
    """The Fourier transform of one step's losses on a grid; shares of a mass keep its mean."""
    masses = [0j] * POINTS
    for mass, loss in losses(sigma, rate, double, removed):
        below = math.floor(loss / grid)
        above = loss / grid - below
        masses[below % POINTS] += mass * (1 - above)
        masses[(below + 1) % POINTS] += mass * above
    return fourier(masses)


def fourier(values: list[complex]) -> list[complex]:
    """The discrete Fourier transform of 2^k numbers (Cooley, Tukey 1965)."""
    size = len(values)
    if size == 1:
        return values
    even, odd = fourier(values[::2]), fourier(values[1::2])
    turned = [cmath.exp(-2j * math.pi * k / size) * odd[k] for k in range(size // 2)]
    pairs = list(zip(even, turned, strict=True))
    return [a + b for a, b in pairs] + [a - b for a, b in pairs]


def ratio(x: float, sigma: float, rate: float) -> float:
    """log of ((1 - rate) N(0) + rate N(1)) / N(0) at x."""
    one, other = math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2)
    return max(one, other) + math.log1p(math.exp(-abs(one - other)))


def exp_normal(eps: float, x: float) -> float:
    """e^eps times the normal distribution function at x, which may be too small for a float."""
    tail = math.erfc(-x / math.sqrt(2)) / 2
    log = math.log(tail) if tail > 1e-300 else -(x**2) / 2 - math.log(-x * math.sqrt(2 * math.pi))
    return math.exp(min(700.0, eps + log))


def smallest(delta_of: Any, delta: float) -> float:
    """The smallest epsilon at which delta is met."""
    if delta_of(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high) > delta:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high
