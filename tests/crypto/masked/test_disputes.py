"""Who is left out after complaints: never an honest site alone, and never more than two sites a liar."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.masked.disputes import Verdict, settle


@pytest.mark.parametrize(
    ("disputes", "colluders", "at_fault", "separated"),
    [
        ([], 1, (), ()),
        ([("a", "b")], 1, (), (("a", "b"),)),
        ([("a", "b"), ("b", "a")], 1, (), (("a", "b"),)),  # one dispute, whoever began
        ([("a", "x"), ("b", "x")], 1, ("x",), ()),
        ([("x", "a"), ("x", "b")], 1, ("x",), ()),  # of too many, or by too many: the same
        ([("a", "x"), ("b", "x")], 2, (), (("a", "x"),)),  # b may take part
        ([("a", "x"), ("b", "x"), ("c", "x"), ("a", "y"), ("b", "y")], 2, ("x", "y"), ()),
        ([("a", "b")], 0, (), (("a", "b"),)),  # more liars than expected: nobody is named
        ([("a", "x"), ("b", "x"), ("c", "d")], 1, ("x",), (("c", "d"),)),
    ],
)
def test_a_verdict(
    disputes: list[tuple[str, str]],
    colluders: int,
    at_fault: tuple[str, ...],
    separated: tuple[tuple[str, str], ...],
) -> None:
    verdict = settle(disputes, colluders)
    assert verdict == Verdict(at_fault, separated)
    assert verdict.excluded == {*at_fault, *(site for pair in separated for site in pair)}


@given(data=st.data(), sites=st.integers(3, 12), colluders=st.integers(0, 4))
def test_honest_sites_are_never_named_and_liars_cost_one_each(
    data: st.DataObject, sites: int, colluders: int
) -> None:
    names = [f"site-{index:02d}" for index in range(sites)]
    liars = set(data.draw(st.lists(st.sampled_from(names), max_size=colluders, unique=True)))
    possible = [pair for pair in combinations(names, 2) if set(pair) & liars]
    chosen = data.draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    disputes = [pair[::-1] if data.draw(st.booleans()) else pair for pair in chosen]
    verdict = settle(disputes, colluders)
    assert set(verdict.at_fault) <= liars
    assert all(set(pair) & liars for pair in verdict.separated)
    assert len(verdict.excluded - liars) <= len(liars & verdict.excluded)
    assert not any(set(pair).isdisjoint(verdict.excluded) for pair in disputes)  # none is left standing
