"""Means, spreads, notes, and the figure of a sweep."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from rich.console import Console

from secfed.cli.sweep_results import conclude
from secfed.errors import ConfigError, DataError, RoundAborted
from secfed.sweep import figure as figure_module
from secfed.sweep.engine import run_sweep
from secfed.sweep.figure import positions, write_figure, x_dimension
from secfed.sweep.plan import SweepPlan, make_plan
from secfed.sweep.report import Labels, failures, summary_markdown, summary_table
from secfed.sweep.results import Row, groups, metric_names
from tests.secfed.sweep_case import CURVES, LATER, RATES, STUDY, PretendingRunner, error_of, plan, sweep_file

INF = math.inf


def carried_out(tmp_path: Path, text: str, **settings: Any) -> tuple[SweepPlan, list[Row]]:
    found = plan(text)
    return found, run_sweep(found, tmp_path, jobs=1, runner=PretendingRunner(**settings))


class TestStatistics:
    def test_mean_and_sample_deviation_over_the_seeds_of_a_point(self, tmp_path: Path) -> None:
        _, rows = carried_out(tmp_path, CURVES)
        for group in groups(rows):
            values = [row.metrics["accuracy"] for row in rows if row.run.at == group.at]
            cell = group.cells["accuracy"]
            assert cell.mean == pytest.approx(statistics.fmean(values))
            assert cell.std == pytest.approx(statistics.stdev(values))
            assert cell.n == 3

    def test_one_seed_has_no_spread(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, RATES.replace("[1, 2]", "[1]"))
        assert {group.cells["accuracy"].std for group in groups(rows)} == {None}
        assert "±" not in summary_markdown(found, rows, figure=False)

    def test_a_failed_seed_is_not_in_the_mean_and_is_counted(self, tmp_path: Path) -> None:
        fails: dict[str, Exception] = {"learning_rate=0.2, seed=1": DataError("no records")}
        found, rows = carried_out(tmp_path, RATES, fails=fails)
        group = groups(rows)[1]
        assert (group.cells["accuracy"].n, group.count("failed"), group.planned) == (1, 1, 2)
        assert [cells[1] for cells in summary_table(found, rows).rows] == ["2", "1/2", "2"]
        assert failures(rows) == ["learning_rate=0.2, seed=1: DataError: no records"]


class TestLosses:
    def test_a_run_that_came_to_nothing_is_aborted_in_table_csv_and_figure(self, tmp_path: Path) -> None:
        fails: dict[str, Exception] = {"learning_rate=0.2, seed=1": RoundAborted("all rounds were given up")}
        found, rows = carried_out(tmp_path, RATES, fails=fails)
        assert [cells[1] for cells in summary_table(found, rows).rows] == ["2", "1/2, 1 aborted", "2"]
        assert "RoundAborted: all rounds" in summary_markdown(found, rows, figure=False)
        table = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
        assert [row["status"] for row in table].count("aborted") == 1
        write_figure(found, rows, tmp_path)
        assert "1 of 6 runs were aborted" in texts(tmp_path / "figure.svg")
        with pytest.raises(RoundAborted, match="1 of 6 runs came to nothing"):
            conclude(found, rows, tmp_path, Console(quiet=True))

    def test_zeros_and_rounds_that_were_given_up_are_counted_and_shown(self, tmp_path: Path) -> None:
        found, _ = carried_out(tmp_path, RATES)
        run_file = next((tmp_path / "runs").glob("*0.1*seed=2*")) / "run.json"
        content = json.loads(run_file.read_text())
        rounds = [{"aborted": None}, {"aborted": "too few"}]
        zeroed = {"hospital-1": {"contributions": 3, "first": "x"}, "b": {"contributions": 1, "first": "x"}}
        run_file.write_text(json.dumps(content | {"rounds": rounds, "zeroed": zeroed}))
        rows = run_sweep(found, tmp_path, jobs=1, runner=PretendingRunner())
        table = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
        assert [(row["aborted_rounds"], row["zeroed_contributions"]) for row in table].count(("1", "4")) == 1
        text = summary_markdown(found, rows, figure=False)
        assert "1 of 6 finished runs diverged" in text
        assert "4 contributions added zeros: learning" in text
        assert "gave up 1 round: learning" in text
        write_figure(found, rows, tmp_path)
        assert "diverged" in texts(tmp_path / "figure.svg")

    def test_an_older_result_without_one_finished_round_is_done_again(self, tmp_path: Path) -> None:
        found, _ = carried_out(tmp_path, RATES)
        run_file = next((tmp_path / "runs").glob("*0.1*seed=2*")) / "run.json"
        run_file.write_text(json.dumps({"final": {"accuracy": 0.5}, "rounds": [{"aborted": "too few"}]}))
        again = PretendingRunner()
        run_sweep(found, tmp_path, jobs=1, runner=again)
        assert again.started == ["learning_rate=0.1, seed=2"]


class TestSummary:
    def test_table_with_labels_means_and_spreads(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, CURVES)
        table = summary_table(found, rows)
        assert table.headers == ("variant", "strength", "runs", "accuracy")
        assert table.rows[0] == ("Momentum | SGD [1]", "∞", "3", "0.6200 ± 0.0100")
        assert len(table.rows) == 6

    def test_markdown_is_a_table_with_the_notes_under_it(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, CURVES)
        text = summary_markdown(found, rows, figure=True)
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}
        assert "[1] Momentum \\| SGD: not a guarantee: it only looks like one" in text
        assert "18 of 18 runs done" in text
        assert "over up to 3 seeds" in text
        assert "(figure.svg)" in text

    def test_what_is_missing_is_said_in_the_table_and_below(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, CURVES + LATER)
        table = summary_table(found, rows)
        assert table.rows[-1] == ("later [2]", "–", "0", "missing")
        assert sum("later" in cells[0] for cells in table.rows) == 1
        note = Labels(found, rows).notes[1]
        assert note.startswith("[2] later: Missing here, because ")
        assert "fedlater" in note

    def test_a_point_refused_at_its_start_is_named(self, tmp_path: Path) -> None:
        text = CURVES.replace('name = "decay"', 'name = "decay"\noptional = true')
        fails: dict[str, Exception] = {"decay, strength=0.5, seed=1": ConfigError("no noise is enough")}
        found, rows = carried_out(tmp_path, text, fails=fails)
        expected = "[2] decay: Missing at decay, strength=0.5, seed=1, because no noise is enough."
        assert Labels(found, rows).notes[1] == expected

    def test_the_note_is_in_every_row_of_the_csv(self, tmp_path: Path) -> None:
        carried_out(tmp_path, CURVES)
        lines = (tmp_path / "results.csv").read_text().splitlines()[1:]
        assert all(("not a guarantee" in line) == line.startswith("momentum") for line in lines)

    def test_failures_are_listed(self, tmp_path: Path) -> None:
        fails: dict[str, Exception] = {"learning_rate=0.2, seed=1": DataError("no <b>records</b>")}
        text = summary_markdown(*carried_out(tmp_path, RATES, fails=fails), figure=False)
        assert "- learning_rate=0.2, seed=1: DataError: no &lt;b>records&lt;/b>" in text


class TestPositions:
    def test_logarithm_with_inf_one_step_further(self) -> None:
        found = positions([INF, 100, 1, 10], "log")
        assert found == {1: 0.0, 10: 1.0, 100: 2.0, INF: 3.0}

    def test_linear(self) -> None:
        assert positions([4, 0, 2], "linear") == {4: 4.0, 0: 0.0, 2: 2.0}

    @pytest.mark.parametrize("values", [["b", "a"], [INF, 3.0], [True, False], [(8,), (8, 4)]])
    def test_anything_else_is_one_step_apart_in_the_order_of_the_file(self, values: list[Any]) -> None:
        assert positions(values, None) == {values[0]: 0.0, values[1]: 1.0}

    def test_only_inf(self) -> None:
        assert positions([INF], "log") == {INF: 1.0}

    @pytest.mark.parametrize(("values", "scale"), [(["a"], "linear"), ([0, 1], "log"), ([True], "linear")])
    def test_a_scale_that_does_not_suit_is_refused(self, values: list[Any], scale: Any) -> None:
        error = error_of(lambda: positions(values, scale))
        assert "sweep.figure.x_scale" in error.message
        assert "categorical" in error.remedy


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were drawn, beside the files."""
    kept: list[Figure] = []
    draw = figure_module._draw

    def keep(*given: Any) -> Figure:
        kept.append(draw(*given))
        return kept[-1]

    monkeypatch.setattr(figure_module, "_draw", keep)
    return kept


def texts(svg: Path) -> str:
    """All text of a figure; letters are drawn as shapes, with the text in comments beside them."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"), flags=re.DOTALL))


class TestFigure:
    def test_a_curve_per_variant_with_error_bars(self, tmp_path: Path, drawn: list[Figure]) -> None:
        found, rows = carried_out(tmp_path, CURVES)
        assert write_figure(found, rows, tmp_path) == (tmp_path / "figure.svg", tmp_path / "figure.png")
        (axes,) = drawn[0].axes
        bars = [item for item in axes.containers if isinstance(item, ErrorbarContainer)]
        assert len(bars) == 2
        for bar in bars:
            assert bar.has_yerr
            segments = bar.lines[2][0].get_segments()
            assert [len(segments), *(round(float(s[1][1] - s[0][1]), 6) for s in segments)] == [
                3,
                *[0.02] * 3,
            ]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.25", "0.5", "∞"]

    def test_title_labels_and_notes_are_in_it(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, CURVES + LATER)
        write_figure(found, rows, tmp_path)
        told = " ".join(texts(tmp_path / "figure.svg").split())
        for expected in ("Two curves", "Momentum | SGD [1]", "decay", "strength", "accuracy", "3 seeds"):
            assert expected in told
        assert "[1] Momentum | SGD: not a guarantee: it only looks like one" in told
        assert "[2] later: Missing here, because" in told
        assert "later [2]: missing" in told  # in the legend, where a curve is looked for

    def test_a_point_of_one_seed_has_no_bar_and_the_note_says_so(
        self, tmp_path: Path, drawn: list[Figure]
    ) -> None:
        found, rows = carried_out(tmp_path, RATES)
        begun = [row for row in rows if row.run.at["algorithm.learning_rate"] != 0.2 or row.run.seed == 1]
        write_figure(found, begun, tmp_path)
        told = texts(tmp_path / "figure.svg")
        assert "Bars: sample standard deviation over 2 seeds; points without a bar: one seed." in told
        (bars,) = (item for item in drawn[0].axes[0].containers if isinstance(item, ErrorbarContainer))
        ends = [len(segment) for segment in bars.lines[2][0].get_segments()]
        assert ends == [2, 0, 2]
        write_figure(found, rows, tmp_path)
        assert "over 2 seeds." in texts(tmp_path / "figure.svg")
        write_figure(found, [row for row in rows if row.run.seed == 1], tmp_path)
        told = texts(tmp_path / "figure.svg")
        assert "Points without a bar: one seed." in told
        assert "deviation" not in told

    def test_shares_are_shown_in_percent_where_the_file_says_so(
        self, tmp_path: Path, drawn: list[Figure]
    ) -> None:
        text = RATES + '[sweep.figure]\ny = "accuracy"\n'
        found, rows = carried_out(tmp_path, text + "percent = true")
        write_figure(found, rows, tmp_path)
        (axes,) = drawn[0].axes
        assert axes.get_ylabel() == "accuracy (%)"
        low, high = axes.get_ylim()
        ticks = [tick.get_text() for tick in axes.get_yticklabels() if low <= tick.get_position()[1] <= high]
        assert ticks
        assert all(1 < float(tick.replace("\N{MINUS SIGN}", "-")) <= 100 for tick in ticks)
        table = summary_table(found, rows)
        assert table.headers[-1] == "accuracy (%)"
        mean = 100 * groups(rows)[0].cells["accuracy"].mean
        assert table.rows[0][-1].startswith(f"{mean:.1f} ± ")
        assert summary_table(make_plan(sweep_file(text)), rows).headers[-1] == "accuracy"

    def test_failed_runs_are_told(self, tmp_path: Path) -> None:
        fails: dict[str, Exception] = {"learning_rate=0.2, seed=1": DataError("x")}
        write_figure(*carried_out(tmp_path, RATES, fails=fails), tmp_path)
        assert "1 of 6 runs failed" in texts(tmp_path / "figure.svg")

    def test_a_panel_per_panel_and_metric(self, tmp_path: Path, drawn: list[Figure]) -> None:
        panels = '[[sweep.panel]]\nname = "a"\nlabel = "Set A"\n[[sweep.panel]]\nname = "b"\n'
        panels += "set = { data.sites = 5 }"
        found, rows = carried_out(tmp_path, RATES + panels)
        write_figure(found, rows, tmp_path)
        assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["Set A", "b"]

    def test_a_panel_that_has_not_begun_is_left_out(self, tmp_path: Path, drawn: list[Figure]) -> None:
        panels = '[[sweep.panel]]\nname = "a"\n[[sweep.panel]]\nname = "b"\nset = { data.sites = 5 }'
        found, rows = carried_out(tmp_path, RATES + panels)
        begun = [row if row.run.at["panel"] == "b" else Row(row.run) for row in rows]
        write_figure(found, begun, tmp_path)
        assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["b"]

    def test_other_axes_make_other_curves(self, tmp_path: Path, drawn: list[Figure]) -> None:
        write_figure(*carried_out(tmp_path, RATES + '"protection.bits" = [32, 16]'), tmp_path)
        assert drawn[0].axes[0].get_legend_handles_labels()[1] == ["bits 32", "bits 16"]

    def test_same_rows_same_bytes(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, CURVES)
        files = []
        for _ in range(2):
            files.append([path.read_bytes() for path in write_figure(found, rows, tmp_path)])
        assert files[0] == files[1]

    def test_an_unknown_metric_is_refused_with_the_list(self, tmp_path: Path) -> None:
        found, rows = carried_out(tmp_path, RATES + '[sweep.figure]\ny = "acc"')
        error = error_of(lambda: write_figure(found, rows, tmp_path))
        assert "sweep.figure.y: no run has a metric 'acc'" in error.message
        assert "accuracy" in error.remedy

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        assert write_figure(*carried_out(tmp_path / "a", STUDY + "[sweep]\nseeds = [1, 2]"), tmp_path) == ()
        fails: dict[str, Exception] = {run.title: DataError("x") for run in plan().runs}
        assert write_figure(*carried_out(tmp_path / "b", RATES, fails=fails), tmp_path) == ()

    def test_default_axis(self) -> None:
        assert x_dimension(sweep_file(CURVES)) == "strength"
        assert x_dimension(sweep_file(STUDY + '[[sweep.variant]]\nname = "a"')) == "variant"
        assert x_dimension(sweep_file(STUDY + "[sweep]")) is None

    def test_variants_along_the_axis(self, tmp_path: Path, drawn: list[Figure]) -> None:
        text = (
            '[sweep]\n[[sweep.variant]]\nname = "a"\n[[sweep.variant]]\nname = "b"\nset = { data.sites = 5 }'
        )
        write_figure(*carried_out(tmp_path, STUDY + text), tmp_path)
        assert [tick.get_text() for tick in drawn[0].axes[0].get_xticklabels()] == ["a", "b"]


def test_private_metrics_of_a_point_have_the_error_of_their_mean_or_are_withheld(tmp_path: Path) -> None:
    _, rows = carried_out(tmp_path, RATES)
    first = rows[0].run
    shown = [
        replace(rows[0], run=first, metrics={"accuracy": 0.8, "accuracy_error_95": 0.03}),
        replace(rows[0], run=first, metrics={"accuracy": 0.9, "accuracy_error_95": 0.04}),
    ]
    [group] = groups(shown)
    assert list(group.cells) == ["accuracy"]
    assert group.cells["accuracy"].error == pytest.approx(0.025)
    [group] = groups([*shown, replace(rows[0], metrics={"accuracy_error_95": 0.4})])
    assert group.cells["accuracy"].withheld
    assert math.isnan(group.cells["accuracy"].mean)
    assert metric_names([replace(rows[0], metrics={"accuracy_error_95": 0.4})]) == ["accuracy"]


@pytest.mark.parametrize(
    ("names", "lying"),
    [(["a", "b"], False), (["a", "b", "c", "d", "e", "f"], True), (["a", "more than fits below"], True)],
)
def test_names_that_do_not_fit_below_stand_beside_a_row_each(
    tmp_path: Path, drawn: list[Figure], names: list[str], lying: bool
) -> None:
    variants = "".join(
        f'[[sweep.variant]]\nname = "v{k}"\nlabel = "{name}"\nset = {{ data.sites = {3 + k} }}\n'
        for k, name in enumerate(names)
    )
    panels = '[[sweep.panel]]\nname = "p"\n[[sweep.panel]]\nname = "q"\nset = { study.rounds = 2 }\n'
    found, rows = carried_out(tmp_path, f"{STUDY}[sweep]\nseeds = [1, 2]\n{variants}{panels}")
    write_figure(found, rows, tmp_path)
    first, second = drawn[0].axes
    shown = [
        [tick.get_text() for tick in (ax.get_yticklabels() if lying else ax.get_xticklabels())]
        for ax in (first, second)
    ]
    assert shown == [names, [""] * len(names) if lying else names]
    (bars,) = (item for item in first.containers if isinstance(item, ErrorbarContainer))
    assert (bars.has_xerr, bars.has_yerr) == (lying, not lying)
    means = [group.cells["accuracy"].mean for group in groups(rows) if group.at["panel"] == "p"]
    assert list(bars.lines[0].get_xdata() if lying else bars.lines[0].get_ydata()) == means
