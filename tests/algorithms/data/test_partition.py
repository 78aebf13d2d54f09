from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.algorithms.data.image_text.partition import by_combination
from secfed.algorithms.data.partition import dirichlet, iid
from secfed.algorithms.data.prepare import split
from secfed.algorithms.data.transfer import flickr
from secfed.errors import ConfigError


def labels(n: int, classes: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, classes, n)


def check(partition: list[np.ndarray], n: int, sites: int, least: int) -> None:
    assert len(partition) == sites
    assert np.array_equal(np.sort(np.concatenate(partition)), np.arange(n))  # disjoint and complete
    assert min(map(len, partition)) >= least


def in_two_parts(divide):
    """A division of training and of held-out records, as one of training records."""
    return lambda y, *rules: divide(y, y, *rules)[0]


capped_dirichlet = partial(dirichlet, capped=True)
EVERY_DIVISION = [dirichlet, capped_dirichlet, in_two_parts(by_combination), in_two_parts(flickr.divide)]


@given(
    n=st.integers(40, 300), sites=st.integers(1, 8), alpha=st.floats(0.05, 100.0), seed=st.integers(0, 2**32)
)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("divide", EVERY_DIVISION)
def test_dirichlet_is_disjoint_complete_and_reproducible(divide, n, sites, alpha, seed):
    y = labels(n, 6)
    try:
        first = divide(y, sites, alpha, 2, np.random.default_rng(seed))
    except ConfigError:
        return  # so skewed that no draw gave everybody two records; tested below
    check(first, n, sites, 2)
    again = divide(y, sites, alpha, 2, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@given(n=st.integers(8, 300), sites=st.integers(1, 8), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_iid_is_disjoint_complete_even_and_reproducible(n, sites, seed):
    first = iid(n, sites, 1, np.random.default_rng(seed))
    check(first, n, sites, n // sites)
    again = iid(n, sites, 1, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(ConfigError, match=r"data\.min_records"):
        iid(n, sites, n // sites + 1, np.random.default_rng(seed))


def test_a_smaller_alpha_is_more_skewed():
    y = labels(3000, 3)

    def largest_share(alpha: float) -> float:
        parts = dirichlet(y, 5, alpha, 1, np.random.default_rng(0))
        return float(np.mean([np.bincount(y[part], minlength=3).max() / len(part) for part in parts]))

    assert largest_share(0.1) > largest_share(1.0) + 0.1 > largest_share(100.0) + 0.2


@pytest.mark.parametrize("divide", EVERY_DIVISION)
@pytest.mark.parametrize(
    ("records", "alpha", "says"),
    [
        (100, 1e-300, r"data\.alpha.*Remedy"),
        (100, 0.01, r"data\.alpha.*Remedy: raise"),
        (79, 1.0, r"data\.min_records"),
    ],
)
def test_a_division_that_cannot_be_made_names_the_key(divide, records, alpha, says):
    with pytest.raises(ConfigError, match=says):
        divide(labels(records, 2), 10, alpha, 8, np.random.default_rng(0))


@given(
    n=st.integers(1, 200), classes=st.integers(1, 5), fraction=st.floats(0, 0.9), seed=st.integers(0, 2**32)
)
@settings(max_examples=50, deadline=None)
def test_split_is_disjoint_complete_stratified_and_reproducible(n, classes, fraction, seed):
    y = labels(n, classes)
    train, test = split(y, fraction, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
    assert abs(len(test) - fraction * n) <= 1
    for label in range(classes):
        assert abs(np.sum(y[test] == label) - fraction * np.sum(y == label)) <= 1
    assert np.array_equal(test, split(y, fraction, np.random.default_rng(seed))[1])
    if n >= 50 and fraction >= 0.2:
        assert not np.array_equal(test, split(y, fraction, np.random.default_rng(seed + 1))[1])
