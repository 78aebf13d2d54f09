"""Training of single hospitals, and of all their pairs, beside a sweep."""

from __future__ import annotations

import sys
from pathlib import Path

import kept_runs
import pytest
import vlp_bounds

from tests.algorithms import vlp_case

SWEEP = """
[sweep]
seeds = [1, 2]
[[sweep.variant]]
name = "usual"
[[sweep.variant]]
name = "more"
set = { "algorithm.joint_steps" = 3 }
[sweep.figure]
x = "variant"
y = "recall_at_1"
"""


def test_both_bounds_are_printed_for_the_variant_and_the_seeds_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(vlp_case.TINY + SWEEP, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["vlp_bounds.py", str(path), "--variant", "usual", "--seeds", "2"])
    assert vlp_bounds.main() == 0
    rows = [line.split("|")[2:4] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [[part.strip() for part in row] for row in rows] == [["decentralised", "2"], ["centralised", "2"]]
    monkeypatch.setattr(sys, "argv", ["vlp_bounds.py", str(path), "--variant", "none"])
    assert vlp_bounds.main() == 1
    assert "has no variant none" in capsys.readouterr().err


def test_what_is_kept_lies_beside_the_sweeps_runs_and_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "of-a-test.toml"
    path.write_text(vlp_case.TINY + SWEEP, encoding="utf-8")
    monkeypatch.setattr(kept_runs, "FOLDER", tmp_path)
    old = {"panel": "", "variant": "decentralised", "seed": "2", "recall_at_1": "0.5"}
    kept_runs.write(tmp_path / "of-a-test.csv", [old])
    trained = []
    monkeypatch.setattr(vlp_bounds.vlp_oracle, "train_alone", lambda *_: trained.append(0))
    monkeypatch.setattr(
        sys, "argv", ["vlp_bounds.py", str(path), "--variant", "usual", "--seeds", "2", "--keep"]
    )
    assert vlp_bounds.main() == 0
    new, kept = kept_runs.kept("of-a-test")
    assert kept["recall_at_1"] == "0.5"
    assert not trained
    assert new["variant"] == "centralised"
    assert 0 <= float(new["recall_at_1"]) <= float(new["recall_at_5"]) <= 1
