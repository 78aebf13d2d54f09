from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secfed.algorithms.data.multiview.options import drawn_views, single_view_count
from secfed.algorithms.data.partition import dirichlet, first_per_class

SITES = tuple(f"hospital-{number}" for number in range(1, 25))


@pytest.mark.parametrize(
    ("sites", "two_to_one", "even", "one_to_two"),
    [(24, (17, 7), (12, 12), (8, 16)), (12, (9, 3), (6, 6), (4, 8)), (48, (33, 15), (24, 24), (16, 32))],
)
def test_the_published_numbers_of_multi_and_single_view_sites(sites, two_to_one, even, one_to_two):
    for ratio, (multi, single) in (("2:1", two_to_one), ("1:1", even), ("1:2", one_to_two)):
        assert single_view_count(sites, ratio) == single
        assert sites - single_view_count(sites, ratio) == multi


capped_dirichlet = partial(dirichlet, capped=True)


def test_the_last_sites_hold_one_view_each_and_the_seed_alone_says_which():
    view_of = drawn_views(SITES, 7, 3, seed=1)
    assert tuple(view_of) == SITES
    assert [view is None for view in view_of.values()] == [True] * 17 + [False] * 7
    assert view_of == drawn_views(SITES, 7, 3, seed=1)
    drawn = [tuple(drawn_views(SITES, 7, 3, seed).values()) for seed in range(200)]
    assert len(set(drawn)) > 150
    views = [view for views in drawn for view in views if view is not None]
    assert set(views) == {0, 1, 2}
    assert max(map(views.count, (0, 1, 2))) < 1.2 * min(map(views.count, (0, 1, 2)))


def test_a_share_is_in_random_order_because_its_order_is_that_of_the_batches():
    labels = np.repeat(np.arange(5), 40)
    for share in capped_dirichlet(labels, 4, 9999.0, 10, np.random.default_rng(1)):
        assert not np.array_equal(share, np.sort(share))
        assert len(set(labels[share[:15]])) >= 3


def test_the_default_concentration_is_even_and_a_small_one_is_not():
    labels = np.repeat(np.arange(10), 240)

    def largest_share(alpha: float) -> float:
        shares = capped_dirichlet(labels, 12, alpha, 10, np.random.default_rng(2))
        return float(np.mean([np.bincount(labels[share]).max() / len(share) for share in shares]))

    even = capped_dirichlet(labels, 12, 9999.0, 10, np.random.default_rng(2))
    assert all(190 <= len(share) <= 210 for share in even)
    assert largest_share(9999.0) < 0.12
    assert largest_share(0.5) > 0.25


@given(seed=st.integers(0, 2**32))
@example(seed=953)
@settings(max_examples=40, deadline=None)
def test_a_site_with_twice_its_even_share_gets_nothing_of_the_next_class(seed):
    labels = np.repeat(np.arange(4), 50)
    # With a share this skewed one site takes nearly all of a class (a quarter of the records).
    shares = capped_dirichlet(labels, 4, 0.2, 1, np.random.default_rng(seed))
    for share in shares:
        by_class = np.bincount(labels[share], minlength=4)
        before = np.concatenate([[0], np.cumsum(by_class)[:-1]])
        # Proportions that add up to less than 1 by an ulp leave one record of a class to the last site.
        assert (by_class[before >= 100] <= 1).all()


@given(n=st.integers(1, 200), limit=st.integers(1, 40), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_at_most_so_many_records_of_each_class_are_used(n, limit, seed):
    labels = np.random.default_rng(n).integers(0, 4, n)
    kept = first_per_class(labels, limit, np.random.default_rng(seed))
    assert np.array_equal(kept, np.unique(kept))
    assert np.array_equal(
        np.bincount(labels[kept], minlength=4), np.bincount(labels, minlength=4).clip(max=limit)
    )
    assert np.array_equal(kept, first_per_class(labels, limit, np.random.default_rng(seed)))


def test_which_records_of_a_class_are_used_depends_on_the_seed():
    one, other = (
        first_per_class(np.zeros(100, np.int64), 10, np.random.default_rng(seed)) for seed in (1, 2)
    )
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, np.arange(10))
