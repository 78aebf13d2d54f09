"""Shapley values: of the definition's axioms, and read from a sweep's table."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import fedcola_shapley as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.sweep.file import SweepFile
from tests.layout import ROOT

GROUPS = frozenset("abc")
WORTHS = st.lists(st.integers(-100, 100), min_size=8, max_size=8).map(
    lambda found: dict(zip(made.coalitions(GROUPS), map(float, found), strict=True))
)


@given(WORTHS)
def test_a_value_is_the_mean_gain_over_all_orders(worth: dict[frozenset[str], float]) -> None:
    for group, value in made.shapley(worth).items():
        gains = []
        for order in permutations("abc"):
            before = frozenset(order[: order.index(group)])
            gains.append(worth[before | {group}] - worth[before])
        assert value == pytest.approx(sum(gains) / len(gains))


@given(WORTHS)
def test_values_add_up_to_what_all_gain(worth: dict[frozenset[str], float]) -> None:
    assert sum(made.shapley(worth).values()) == pytest.approx(worth[GROUPS] - worth[frozenset()])


def test_a_coalition_that_was_not_run_is_named_as_missing() -> None:
    with pytest.raises(ValueError, match="1 of the 4 coalitions of a, b are missing"):
        made.shapley({frozenset(): 0.0, frozenset("a"): 1.0, frozenset("ab"): 2.0})


def test_worths_are_of_runs_that_are_done(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text(
        "panel,variant,seed,status,r,s\n"
        "p,nobody,1,done,0.1,0.2\np,images,1,done,0.2,0.2\np,texts,1,done,0.3,0.3\n"
        "p,images-texts,1,done,0.5,0.4\np,nobody,2,failed,,\n",
        encoding="utf-8",
    )
    (seeds,) = made.read(table, ("r", "s")).values()
    assert made.rows(seeds)[-2:] == [["value of images", "", "20.0"], ["value of texts", "", "40.0"]]
    assert [row[1] for row in made.rows(seeds)[:4]] == ["30.0", "40.0", "60.0", "90.0"]


def test_the_example_has_every_coalition() -> None:
    sweep = SweepFile.load(ROOT / "examples" / "fedcola-shapley.toml")
    names = {variant.name for variant in sweep.variants}
    wanted = {"-".join(sorted(one)) or made.NOBODY for one in made.coalitions(frozenset(("images", "texts")))}
    assert names == wanted
