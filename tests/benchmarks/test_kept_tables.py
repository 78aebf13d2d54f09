"""Tables of kept runs in the pages of results."""

from __future__ import annotations

from pathlib import Path

import kept_runs
import kept_tables
import pytest

PAGE = "before\n<!-- kept {mark} -->\nold\n<!-- end kept -->\nafter\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        {"panel": panel, "variant": variant, "seed": str(seed), "acc": f"{value + seed / 100}"}
        for panel in ("easy", "hard")
        for variant, value in (("usual", 0.5), ("new-one", 0.6))
        for seed in (1, 2, 3)
    ]
    monkeypatch.setattr(kept_runs, "FOLDER", tmp_path)
    kept_runs.write(tmp_path / "some.csv", found)


@pytest.mark.usefixtures("runs")
def test_a_table_stands_where_it_is_marked_and_nothing_else_changes() -> None:
    page = kept_tables.written(PAGE.format(mark="some: acc; less usual: acc"))
    head, rule, *rows = page.split("acc -->\n")[1].split("\n<!-- end kept -->")[0].splitlines()
    assert head == "|  | method | ACC | ACC less usual | seeds |"
    assert set(rule) == set("| -")
    assert len(rows) == 4
    assert "| easy | usual | 52.0 ± 1.0 |  | 3 |" in rows
    assert "|  | new one | 62.0 ± 1.0 | +10.0 open | 3 |" in rows  # all seeds agree to the last digit
    assert page.startswith("before\n<!-- kept some")
    assert page.endswith("\n<!-- end kept -->\nafter\n")
    assert kept_tables.written(page) == page


@pytest.mark.usefixtures("runs")
def test_a_mark_can_name_the_variants_and_their_order() -> None:
    page = kept_tables.written(PAGE.format(mark="some: acc; of new-one usual"))
    methods = [line.split(" | ")[1] for line in page.splitlines() if line.startswith(("| easy", "|  |"))]
    assert methods == ["method", "new one", "usual", "usual"]
    assert "usual" not in kept_tables.written(PAGE.format(mark="some: acc; of new-one")).split("-->\n")[1]


@pytest.mark.usefixtures("runs")
def test_a_mark_can_ask_for_variants_across() -> None:
    page = kept_tables.written(PAGE.format(mark="some: acc; less usual: acc; of usual new-one; across"))
    scores, gaps = (table.splitlines() for table in page.split("-->\n")[1].split("\n<!--")[0].split("\n\n"))
    assert scores[0] == "| ACC | usual | new one |"
    assert scores[3] == "| hard | 52.0 ± 1.0 | 62.0 ± 1.0 |"
    assert gaps[0] == "| ACC less usual | new one |"
    assert gaps[2:] == ["| easy | +10.0 open |", "| hard | +10.0 open |"]


@pytest.mark.parametrize("page", sorted(kept_tables.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_pages_have_what_the_kept_runs_have(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert kept_tables.written(text) == text, "python benchmarks/kept_tables.py --update-docs"
    assert text.count("<!-- kept ") == len(kept_tables._MARKED.findall(text))
