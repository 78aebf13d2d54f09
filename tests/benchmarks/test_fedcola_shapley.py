"""Shapley values: of the definition's axioms, and read from a sweep's table."""

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path

import fedcola_shapley as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.sweep.file import SweepFile
from secfed.sweep.plan import make_plan
from tests.layout import ROOT

GROUPS = frozenset("abc")
NAMES = ("nobody", "images", "texts", "images-texts")
WORTHS = st.lists(st.integers(-100, 100), min_size=8, max_size=8).map(
    lambda found: dict(zip(made.coalitions(GROUPS), map(float, found), strict=True))
)


@given(WORTHS)
def test_a_value_is_the_mean_gain_over_all_orders(worth: dict[frozenset[str], float]) -> None:
    for group, value in made.shapley(worth, GROUPS).items():
        gains = []
        for order in permutations("abc"):
            before = frozenset(order[: order.index(group)])
            gains.append(worth[before | {group}] - worth[before])
        assert value == pytest.approx(sum(gains) / len(gains))


@given(WORTHS)
def test_values_add_up_to_what_all_gain(worth: dict[frozenset[str], float]) -> None:
    assert sum(made.shapley(worth, GROUPS).values()) == pytest.approx(worth[GROUPS] - worth[frozenset()])


def test_a_coalition_that_was_not_run_is_named_as_missing() -> None:
    with pytest.raises(ValueError, match="1 of the 4 coalitions of a, b are missing"):
        made.shapley({frozenset(): 0.0, frozenset("a"): 1.0, frozenset("ab"): 2.0}, frozenset("ab"))


def test_worths_are_of_runs_that_are_done(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text(
        "panel,variant,seed,status,r,s\n"
        "p,nobody,1,done,0.1,0.2\np,images,1,done,0.2,0.2\np,texts,1,done,0.3,0.3\n"
        "p,images-texts,1,done,0.5,0.4\np,nobody,2,failed,,\n",
        encoding="utf-8",
    )
    runs, groups = made.read(table, ("r", "s"))
    (seeds,) = runs.values()
    values = [["value of images", "", "20.0"], ["value of texts", "", "40.0"]]
    assert made.rows(seeds, groups)[-3:] == [*values, ["images less texts", "", "-20.0"]]
    assert [row[1] for row in made.rows(seeds, groups)[:4]] == ["30.0", "40.0", "60.0", "90.0"]


@pytest.mark.parametrize("done", [("nobody", "images"), ("nobody",)])
def test_a_seed_that_is_not_whole_ends_without_a_value(
    done: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "results.csv"
    lines = [f"p,{name},1,{'done,0.1' if name in done else 'running,'}" for name in NAMES]
    table.write_text("\n".join(["panel,variant,seed,status,r", *lines]), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["fedcola_shapley.py", str(table), "--score", "r"])
    assert made.main() == 1
    assert f"{4 - len(done)} of the 4 coalitions of images, texts are missing" in capsys.readouterr().err


def test_the_example_has_every_coalition_and_can_be_run() -> None:
    sweep = SweepFile.load(ROOT / "examples" / "fedcola-shapley.toml")
    assert len(make_plan(sweep).runs) == 2 * 4 * 3
    assert {variant.name for variant in sweep.variants} == set(NAMES)
