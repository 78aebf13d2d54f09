"""A sum to a part of which too few hospitals add more than zeros is given up before anybody is asked."""

from __future__ import annotations

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.errors import RoundAborted
from secfed.protection.registry import MASKED
from secfed.server.round import Rules, check_contributors
from secfed.wire.layout import Exchange, Field, Layout

SITES = [f"hospital-{number}" for number in range(9)]
EXCHANGE = Exchange("update", "all", Layout((Field("x", (2,), 1.0, 32),), sites=9))


@pytest.mark.parametrize(("sparse", "contributors"), [(False, 4), (True, 7)])
def test_strangers_to_the_sum_are_counted_off(sparse: bool, contributors: int) -> None:
    """Nine may take part, a sum has six at least, and three of them may be in none of a sparse graph."""
    aggregator = Identity.generate("aggregator")
    roster = Roster.of(aggregator, [Identity.generate(site) for site in SITES])
    rules = Rules("study", aggregator, roster, MASKED, lambda _: 6, 3, sparse=sparse)
    strangers = rules.strangers(len(SITES))
    for owners in (SITES[:contributors], []):
        check_contributors(1, EXCHANGE, [(owners, 4)], SITES, strangers)
    with pytest.raises(RoundAborted, match=f"{contributors} are needed") as caught:
        check_contributors(1, EXCHANGE, [(SITES[: contributors - 1], 4)], SITES, strangers)
    assert ("protection.graph" in caught.value.remedy) == sparse
    assert rules.strangers(5) == 0
