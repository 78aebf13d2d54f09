"""How many holders a site draws: the bounds in exact arithmetic, and that every set is drawn alike."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest

from secfed.crypto import thresholds
from secfed.crypto.masked.graph import (
    ATTEMPTS,
    LOST_SUMS,
    SECURITY_BITS,
    Holders,
    SparseGraph,
    draw,
    log2_lost,
    log2_part,
    log2_tail,
)
from tests.simulator import SeededEntropy


def tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Pr[at least ``least`` of ``drawn`` members are marked], exactly."""
    ways = sum(
        math.comb(marked, hits) * math.comb(population - marked, drawn - hits)
        for hits in range(max(0, least), min(marked, drawn) + 1)
        if drawn - hits <= population - marked
    )
    return Fraction(ways, math.comb(population, drawn))


@pytest.mark.parametrize("least", range(8))
def test_a_tail_is_rounded_up_and_hardly(least: int) -> None:
    exact = tail(30, 11, 7, least)
    found = log2_tail(30, 11, 7, least)
    assert Fraction(2) ** 0 >= Fraction(2.0**found) >= exact
    assert 2.0**found <= float(exact) * 1.00001


CASES = [(40, 40), (100, 100), (100, 91), (150, 140)]


@pytest.mark.parametrize(("sites", "advertised"), CASES)
def test_the_holders_keep_both_promises_in_exact_arithmetic(sites: int, advertised: int) -> None:
    colluders, least = thresholds.default_colluders(sites), thresholds.default_threshold(sites)
    rate = 0.1
    wanted = SparseGraph(rate).holders(sites, least, colluders, advertised)
    assert wanted.count < advertised - 1
    # Whoever colludes, as long as there are no more of them: every size of a part that could be a sum.
    for fewer in (0, colluders // 2, colluders - 1, colluders):
        total = Fraction(0)
        for size in range(1, least - fewer):
            chance = tail(advertised - 1, size - 1 + fewer, wanted.count, wanted.threshold)
            total += math.comb(sites - fewer, size) * chance**size
        assert total * ATTEMPTS <= Fraction(1, 2**SECURITY_BITS)
    dropped = math.ceil(rate * (advertised - 1))
    lost = advertised * tail(advertised - 1, dropped, wanted.count, wanted.count - wanted.threshold + 1)
    assert lost <= LOST_SUMS


def test_one_holder_less_would_break_a_promise() -> None:
    sites, colluders, least = 100, 33, 67
    wanted = SparseGraph(0.1).holders(sites, least, colluders, sites)
    for threshold in range(1, wanted.count):
        fewer = Holders(wanted.count - 1, threshold)
        bound = max(
            log2_part(sites, colluders, sites, fewer, size) + size for size in range(1, least - colluders)
        )
        hidden = bound <= -(SECURITY_BITS + math.log2(ATTEMPTS))
        assert not hidden or log2_lost(sites, 0.1, fewer) > math.log2(LOST_SUMS)


@pytest.mark.parametrize(("sites", "advertised"), [(3, 3), (4, 4), (5, 4), (10, 7), (100, 67)])
def test_where_nothing_less_will_do_everybody_is_a_holder(sites: int, advertised: int) -> None:
    colluders, least = thresholds.default_colluders(sites), thresholds.default_threshold(sites)
    wanted = SparseGraph(0.1).holders(sites, least, colluders, advertised)
    assert wanted == Holders(advertised - 1, least - 1)
    assert wanted.threshold > colluders


@pytest.mark.parametrize(
    ("asked", "rate", "count", "threshold"),
    [
        ((100, 67, 10, 95), 0.1, 44, 34),
        ((50, 34, 2, 47), 0.02, 12, 11),
        ((80, 54, 0, 80), 0.15, 45, 33),
        ((100, 67, 33, 99), 0.02, 30, 28),  # here single sites decide, of which any of the 100 may be one
        ((100, 67, 33, 95), 0.0, 26, 26),
    ],
)
def test_how_many_holders_at_the_edge_of_what_is_allowed(
    asked: tuple[int, int, int, int], rate: float, count: int, threshold: int
) -> None:
    """With one term of the bound left out there would be fewer."""
    assert SparseGraph(rate).holders(*asked) == Holders(count, threshold)


@pytest.mark.parametrize(("sites", "advertised"), CASES)
def test_a_bound_that_holds_holds_for_fewer_colluders(sites: int, advertised: int) -> None:
    """Of the same number of sites in all: one colluder less at least halves the bound."""
    colluders, least = thresholds.default_colluders(sites), thresholds.default_threshold(sites)
    wanted = SparseGraph(0.1).holders(sites, least, colluders, advertised)
    for size in range(1, least - colluders):
        chance = tail(advertised - 1, size - 1 + colluders, wanted.count, wanted.threshold)
        assert chance * Fraction(sites - colluders + 1, size + 1) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("holders", "rate", "lives"),
    [
        (Holders(3, 2), 0.1, True),
        (Holders(3, 3), 0.1, False),
        (Holders(8, 8), 0.1, False),
        (Holders(8, 5), 0.5, True),  # all others, as many as a sum needs: what sites fall back to
        (Holders(8, 6), 0.5, False),
        (Holders(7, 5), 0.5, False),
    ],
)
def test_a_threshold_leaves_room_for_the_dropouts_that_the_study_expects(
    holders: Holders, rate: float, lives: bool
) -> None:
    assert SparseGraph(rate).survives(holders, 6, 9) == lives


def test_a_site_that_insists_on_more_gets_more() -> None:
    """More colluders, or more sites that may drop, take more holders; a larger share of them rebuilds."""
    usual = SparseGraph(0.1).holders(200, 134, 30, 200)
    assert SparseGraph(0.1).holders(200, 134, 66, 200).count > usual.count
    assert SparseGraph(0.15).holders(200, 134, 30, 200).count > usual.count
    assert SparseGraph(0.1).holders(200, 160, 30, 200).count > usual.count


def test_every_set_of_holders_is_drawn_alike() -> None:
    below, others = SeededEntropy("draw").below, tuple("abcde")
    drawn = Counter(draw(others, 2, below) for _ in range(5000))
    assert set(drawn) == {frozenset(pair) for pair in combinations(others, 2)}
    assert all(abs(count - 500) < 5 * math.sqrt(500) for count in drawn.values())
    assert draw(others, 5, below) == frozenset(others)
