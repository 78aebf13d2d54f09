"""Kept runs: which are taken, which are replaced, and verdicts from intervals, never from means."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kept_runs
import pytest

SWEPT = """panel,variant,seed,status,seconds,epsilon_spent,recall,aborted_rounds,error,study_digest
p,a,2,done,1.25,,0.123456789,0,,aa
p,a,10,done,2,,0.5,0,,ab
p,b,2,failed,3,,,0,RangeError,ac
"""


@pytest.mark.parametrize(
    ("gaps", "sign", "state"),
    [
        ([], 1, "open"),
        ([5.0], 1, "open"),
        ([5.0, 5.1], 1, "open"),
        ([5.0, 5.0, 5.0], 1, "open"),  # worst hospitals differ by whole pairs, and may agree by chance
        ([1.0, 1.1, 0.9], 1, "**shown**"),
        ([-1.0, -1.1, -0.9], 1, "**refuted**"),
        ([1.0, 1.1, 0.9], -1, "**refuted**"),
        ([-1.0, -1.1, -0.9], -1, "**shown**"),
        ([1.0, -1.0, 1.0], 1, "open"),
        ([3.0, 1.0, 0.5], 1, "open"),  # better with every seed, and yet not told from chance
    ],
)
def test_a_verdict_needs_an_interval_beside_zero(gaps: list[float], sign: int, state: str) -> None:
    assert kept_runs.OverSeeds.of(gaps).verdict(sign)[1] == state


@pytest.mark.parametrize(
    ("gaps", "side"),
    [([1.0, 1.1, 0.9], "**above**"), ([-1.0, -1.1, -0.9], "**below**"), ([1.0, 2.0], "open")],
)
def test_a_difference_lies_on_a_side_of_zero(gaps: list[float], side: str) -> None:
    assert kept_runs.OverSeeds.of(gaps).interval()[1] == side


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, n = 3: 2 +- 4.302653 / sqrt(3).
    assert kept_runs.OverSeeds.of([1.0, 2.0, 3.0]).verdict()[0] == "+2.0 (-0.5 to +4.5)"


def test_differences_are_of_equal_seeds_that_both_have_the_score() -> None:
    one = {1: {"r": "0.5"}, 2: {"r": "0.75"}, 3: {"r": "0.9"}, 5: {"r": ""}}
    other = {2: {"r": "0.25"}, 1: {"r": "0.25"}, 4: {"r": "0"}, 5: {"r": "0"}}
    assert kept_runs.differences(one, other, "r") == [0.25, 0.5]


def test_finished_runs_of_a_sweep_are_kept_and_a_new_one_replaces_that_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept_runs, "FOLDER", tmp_path / "kept")
    swept = tmp_path / "swept"
    swept.mkdir()
    for text in (SWEPT, "panel,variant,seed,status,seconds,recall\np,a,2,done,7,0.25\n"):
        (swept / "results.csv").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["kept_runs.py", "keep", str(swept)])
        assert kept_runs.main() == 0
    text = (tmp_path / "kept" / "swept.csv").read_text(encoding="utf-8")
    assert text == "panel,variant,seed,recall,seconds\np,a,2,0.25,7\np,a,10,0.5,2\n"
    assert kept_runs.read(tmp_path / "kept" / "swept.csv")[0]["recall"] == "0.25"
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["kept_runs.py", "show", "swept"])
    assert kept_runs.main() == 0
    assert "| p | a | 37.5 ± 17.7 | 2 |" in " ".join(capsys.readouterr().out.split())


def test_values_of_an_axis_are_variants(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text(
        "panel,variant,data.ratio,seed,status,seconds,r\np,a,2:1,1,done,1,0.5\n", encoding="utf-8"
    )
    (row,) = kept_runs.of_sweep(table)
    assert row == {"panel": "p", "variant": "a data.ratio=2:1", "seed": "1", "r": "0.5", "seconds": "1"}


def test_runs_of_the_comparison_have_their_data_set_as_panel(tmp_path: Path) -> None:
    run = {
        "dataset": "d",
        "method": "m",
        "seed": 4,
        "scores": {"r": 0.5},
        "distortion": 0.25,
        "training_cpu_s": 2.0,
        "cpu_s": 3.0,
        "per_site": {"s": {"recall_at_1": 0.75, "recall_at_5": 1.0}},
    }
    (tmp_path / "m-seed-4.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "trace-seed-4.json").write_text(json.dumps({"dataset": "d", "weights": []}), encoding="utf-8")
    place = {"panel": "d", "variant": "m", "seed": "4"}
    found = list(kept_runs.of_comparison(tmp_path))
    scores = {"r": "0.5", "distortion": "0.25", "training_cpu_s": "2", "s": "0.75"}
    assert found == [{**place, **scores, "seconds": "3"}]


def test_recall_of_sites_and_its_gaps_to_pooled_pairs_are_kept(tmp_path: Path) -> None:
    sites = {"feddra-pretrained": (0.5, 0.6), "centralised-pretrained": (0.9, 0.7), "feddra": (0.1, 0.2)}
    for method, values in sites.items():
        per_site = {f"site-{at}": {"recall_at_1": value} for at, value in enumerate(values)}
        run = {"dataset": "d", "method": method, "seed": 1, "scores": {}, "per_site": per_site, "cpu_s": 1.0}
        (tmp_path / f"{method}-seed-1.json").write_text(json.dumps(run), encoding="utf-8")
    found = {row.pop("variant"): row for row in kept_runs.of_comparison(tmp_path)}
    rest = {"panel": "d", "seed": "1", "seconds": "1"}
    assert found == {
        "centralised-pretrained": {**rest, "site-0": "0.9", "site-1": "0.7"},
        "feddra": {**rest, "site-0": "0.1", "site-1": "0.2"},
        "feddra-pretrained": {
            **rest,
            "site-0": "0.5",
            "site-1": "0.6",
            "widest_gap": "0.4",
            "gap_disparity": "0.15",
        },
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "nothing"], "no runs of 'nothing' are kept; kept are: some"),
        (["show", "some", "--score", "x"], "no column 'x'"),
    ],
)
def test_what_is_not_there_is_named(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kept_runs, "FOLDER", tmp_path)
    (tmp_path / "some.csv").write_text("panel,variant,seed,r\n,a,1,0.5\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["kept_runs.py", *arguments])
    assert kept_runs.main() == 1
    assert said in capsys.readouterr().err


def test_beside_is_in_the_same_panel_or_in_one_that_is_named() -> None:
    rows = [
        {"panel": panel, "variant": variant, "seed": str(seed), "r": str(value + seed**2 / 100)}
        for panel, variant, value in (("two", "a", 0.5), ("two", "b", 0.25), ("five", "b", 0.75))
        for seed in (1, 2, 3)
    ]
    for beside, expected in (("b", ["+25.0 open", "-", "-"]), ("five/b", ["-25.0 open", "-50.0 open", "-"])):
        lines = kept_runs.show(rows, ["r"], beside).splitlines()[2:]
        assert [line.split(" | ")[3] for line in lines] == expected


def test_every_kept_file_can_be_shown() -> None:
    files = sorted(kept_runs.FOLDER.glob("*.csv"))
    assert files
    for path in files:
        rows = kept_runs.read(path)
        assert rows
        assert len(kept_runs.merged(rows, ())) == len(rows)
        names = [name for name in rows[0] if name not in ("panel", "variant", "seed")]
        assert kept_runs.show(rows, names, None)
