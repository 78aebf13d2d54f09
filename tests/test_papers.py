"""docs/results/README.md: a row for every table and figure of the four papers, and commands that can run."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from secfed.study.study import Study
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import make_plan

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
ITEMS: Final = {"FedDRA": (13, 5), "FedRGB": (19, 12), "FedCola": (10, 8), "FMCSC": (5, 9)}  # tables, figures
# Slow, and has a test of its own; needs the extra `encoders`.
PLANNED_ELSEWHERE: Final = ("examples/fmcsc-epsilon.toml", "examples/vlp-medpix-towers.toml")
FOLLOWS: Final = {"shown", "refuted", "open"}
STATES: Final = {*FOLLOWS, "none", *(f"proxy, {one}" for one in (*FOLLOWS, "mixed"))}


def _rows(paper: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_has_one_row(paper: str) -> None:
    tables, figures = ITEMS[paper]
    wanted = [f"Table {n}" for n in range(1, tables + 1)] + [f"Figure {n}" for n in range(1, figures + 1)]
    rows = _rows(paper)
    assert [row[0] for row in rows] == wanted
    for item, shows, state, where, command in rows:
        assert shows, item
        assert state in STATES, item
        if state in ("shown", "refuted") or state.startswith("proxy"):
            assert "](" in where or where.startswith(("as ", "a and b as")), f"{item}: says not where"
        if state == "open":
            assert where or command, f"{item}: says neither what is missing nor what would measure it"


def _commands() -> list[str]:
    rows = [row for paper in ITEMS for row in _rows(paper)]
    return sorted({code for row in rows for code in re.findall(r"`([^`]+)`", row[4])})


def test_every_command_that_trains_has_its_cost_beside_it() -> None:
    rows = [row for paper in ITEMS for row in _rows(paper)]
    commands = [found for row in rows for found in re.findall(r"`([^`]+)`([^`]*)", row[4])]
    dear = [one for one in commands if re.match(r"secfed |python benchmarks/(?!kept_runs)", one[0])]
    assert dear
    without = [command for command, after in dear if not re.match(r" \(|, then $", after)]
    assert not without


@pytest.mark.parametrize("command", _commands())
def test_every_command_names_what_is_there(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if words[0] == "secfed":
        path = ROOT / words[2]
        if words[1] == "simulate":
            assert Study.load(path)
        else:
            sweep = SweepFile.load(path)
            assert words[2] in PLANNED_ELSEWHERE or make_plan(replace(sweep, seeds=sweep.seeds[:1]))
    else:
        assert words[0] == "python"
    for word in words:
        if word.startswith(("examples/", "benchmarks/", "tests/")):
            assert (ROOT / word).is_file(), word
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for script, module, option, names in (
        ("benchmarks/results_vlp.py", "vlp_runs", "--only", "ALL"),
        ("benchmarks/results_fmcsc.py", "fmcsc_runs", "--variant", "VARIANTS"),
    ):
        if script in words:
            known = getattr(importlib.import_module(module), names)
            asked = [value for word, value in pairwise(words) if word == option]
            assert set(asked) <= set(known)
            sys.modules.pop(module, None)
