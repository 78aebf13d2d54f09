"""Results as pandas frames and as a notebook shows them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from secfed.errors import ConfigError
from secfed.runs import notebook
from secfed.runs.notebook import LiveTable
from secfed.runs.run_report import Comparison, ComparisonRow, PrivacyReport, RunReport, SiteSpent, Zeroed
from tests.secfed.run_case import SITES, a_run

SPENT = tuple(SiteSpent(site, 1.5, 8.0, 0) for site in SITES)


def everything() -> RunReport:
    privacy = PrivacyReport("record", "replace", 1e-5, "pld", "set", SPENT, ())
    rows = (
        *(ComparisonRow(site, {"accuracy": 0.9}, {"accuracy": 0.7}) for site in SITES),
        ComparisonRow("mean", {}, {}),
    )
    zeroed = (Zeroed(SITES[1], 2, "NaN"),)
    return a_run(privacy=privacy, compare=Comparison("alone", rows), zeroed=zeroed)


def test_a_row_per_round_and_the_model_before_them() -> None:
    pytest.importorskip("pandas")
    frame = a_run().frame()
    assert list(frame.index) == [0, 1, 2, 3, 4, 5]
    assert frame.index.name == "round"
    assert frame.loc[0, "roc_auc"] == 0.5
    assert frame["survivors"].tolist()[1:] == [4, 3, 4, 0, 4]
    assert frame.loc[4, "aborted"].startswith("round 4")
    assert {"train_s", "up_bytes_per_site", "accuracy"} <= set(frame)


def test_a_row_per_site_with_what_it_spent_and_what_it_is_compared_with() -> None:
    pytest.importorskip("pandas")
    frame = everything().sites_frame()
    assert tuple(frame.index) == SITES
    assert frame.loc[SITES[1], "failed_contributions"] == 2
    assert frame["epsilon"].tolist() == [1.5] * 4
    assert frame["alone_accuracy"].tolist() == [0.7] * 4
    assert frame["rounds_in_sum"].tolist() == [4, 3, 4, 4]


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (a_run().frame, a_run().sites_frame):
        with pytest.raises(ConfigError, match="pip install pandas"):
            frame()


def test_a_live_table_grows_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    class Handle:
        def update(self, table: Any) -> None:
            seen.append(table._repr_html_())

    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=True)
    shown: Any = ModuleType("IPython.display")
    shown.display = lambda _table, display_id: Handle() if display_id else None
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(notebook, "_BETWEEN_S", 0.0)
    table = LiveTable()
    first, *_ = a_run().rounds
    table.started("<script>", SITES, 1)
    table.round_finished(replace(first, metrics=None))
    table.round_finished(first)
    assert [one.count("<tr>") for one in seen] == [2, 2]
    assert "0.8000" in seen[1]
    assert "<script>" not in seen[1]
    table.finished(a_run(rounds=1))
    assert seen[2].count("The aggregator saw") == 1


def test_outside_notebooks_a_live_table_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "_display", lambda _table: None)
    table = LiveTable()
    table.started("study", SITES, 5)
    for report in a_run().rounds:
        table.round_finished(report)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("round 1: roc_auc 0.8000")
    assert "too few sites" in lines[3]
