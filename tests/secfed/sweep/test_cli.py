"""``secfed sweep``: options, output and exit codes, around a runner that only pretends."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from secfed.errors import DataError
from secfed.sweep.engine import run_sweep
from secfed.sweep.jobs import Progress
from secfed.sweep.live import LineSweepObserver, LiveSweepObserver, show_left, show_progress
from secfed.sweep.plan import SweepRun, make_plan
from secfed.sweep.results import Row
from tests.secfed.sweep_case import CURVES, LATER, RATES, PretendingRunner, plan, secfed_sweep, sweep_file

FAILS = "learning_rate=0.2, seed=1"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> PretendingRunner:
    pretended = PretendingRunner(polls=1)
    monkeypatch.setattr("secfed.sweep.clusters.ProcessRunner", lambda folder, debug: pretended)
    return pretended


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure, which takes longer than all the rest."""
    monkeypatch.setattr("secfed.cli.sweep_results.write_figure", lambda *_: ())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(RATES)
    return path


class TestCommand:
    def test_runs_and_leaves_table_figure_and_rows(self, runner: PretendingRunner, file: Path) -> None:
        out = file.parent / "out"
        result = secfed_sweep(file, "--out", out)
        assert result.exit_code == 0, result.stderr
        names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
        assert names == {"results.csv", "summary.md", "figure.svg", "figure.png", "sweep.toml", "runs"}
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["learning_rate", "runs", "accuracy"]
        assert lines[2].split() == ["0.2", "2", "0.7150", "±", "0.0071"]
        assert not list((out / "runs").glob("*.part"))

    @pytest.mark.usefixtures("undrawn")
    def test_jobs_of_the_command_go_before_those_of_the_file(
        self, runner: PretendingRunner, file: Path
    ) -> None:
        file.write_text(RATES.replace("[sweep]", "[sweep]\njobs = 2"))
        secfed_sweep(file, "--out", file.parent / "a")
        assert runner.most == 2
        secfed_sweep(file, "--out", file.parent / "b", "--jobs", 3)
        assert runner.most == 3
        assert secfed_sweep(file, "--out", file.parent / "c", "--jobs", 0).exit_code == 2

    @pytest.mark.usefixtures("undrawn")
    def test_a_failed_run_is_an_exit_code_and_a_message_at_the_end(
        self, runner: PretendingRunner, file: Path
    ) -> None:
        runner.fails = {FAILS: DataError("no records", remedy="check the path")}
        out = file.parent / "out"
        result = secfed_sweep(file, "--out", out)
        assert result.exit_code == 1
        assert "Error: 1 of 6 runs failed:" in result.stderr
        assert f"  {FAILS}: DataError: no records" in result.stderr
        assert "Remedy: " in result.stderr
        assert (out / "summary.md").is_file()
        runner.fails = {}
        again = secfed_sweep(file, "--out", out)
        assert again.exit_code == 0
        assert runner.started[6:] == [FAILS]
        assert "5 finished already" in again.stderr

    def test_stopped_it_shows_what_is_finished(self, runner: PretendingRunner, file: Path) -> None:
        def interrupt(run: SweepRun) -> None:
            if run.seed == 2:
                raise KeyboardInterrupt

        runner.before, out = interrupt, file.parent / "out"
        result = secfed_sweep(file, "--out", out)
        assert result.exit_code == 130
        rows = [line.split() for line in result.stdout.splitlines()]
        assert ["0.2", "1/2", "0.7100"] in rows
        assert "0.7100" in (out / "summary.md").read_text()
        assert (out / "figure.svg").is_file()

    def test_a_bad_value_starts_nothing_and_writes_nothing(
        self, runner: PretendingRunner, file: Path
    ) -> None:
        file.write_text(RATES.replace("[0.1, 0.2, 0.3]", "[0.1, -1.0]"))
        result = secfed_sweep(file, "--out", file.parent / "out")
        assert result.exit_code == 2
        assert "learning_rate=-1: algorithm.learning_rate" in result.stderr
        assert runner.started == []
        assert not (file.parent / "out").exists()

    def test_a_figure_that_cannot_be_drawn_leaves_the_table(
        self, runner: PretendingRunner, file: Path
    ) -> None:
        file.write_text(RATES + '[sweep.figure]\ny = "acc"')
        result = secfed_sweep(file, "--out", file.parent / "out")
        assert result.exit_code == 2
        assert "sweep.figure.y" in result.stderr
        assert "0.7150" in (file.parent / "out" / "summary.md").read_text()

    @pytest.mark.usefixtures("undrawn")
    def test_what_is_missing_is_said_and_is_no_failure(self, runner: PretendingRunner, file: Path) -> None:
        file.write_text(CURVES + LATER)
        result = secfed_sweep(file, "--out", file.parent / "out")
        assert result.exit_code == 0
        assert "[2] later: Missing here, because" in " ".join(result.stdout.split())
        assert "not a guarantee" in result.stdout

    @pytest.mark.usefixtures("undrawn")
    @pytest.mark.parametrize("columns", [60, 120])
    def test_fits_the_terminal(self, runner: PretendingRunner, file: Path, columns: int) -> None:
        result = secfed_sweep(file, "--out", file.parent / "out", columns=columns)
        table = result.stdout.splitlines()[:4]
        assert max(map(len, table)) <= columns
        assert "…" not in result.stdout


class TestDryRun:
    def test_lists_every_run_and_writes_nothing(self, runner: PretendingRunner, file: Path) -> None:
        result = secfed_sweep(file, "--out", file.parent / "out", "--dry-run")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[:-1] == [f"to run    {run.title}" for run in plan().runs]
        assert lines[-1] == "6 runs: 6 to run."
        assert runner.started == []
        assert not (file.parent / "out").exists()

    @pytest.mark.usefixtures("undrawn")
    def test_knows_what_is_finished_missing_or_equal(self, runner: PretendingRunner, file: Path) -> None:
        file.write_text(CURVES)
        secfed_sweep(file, "--out", file.parent / "out")
        file.write_text(CURVES.replace("0.25]", "0.25, 0.125]") + LATER)
        result = secfed_sweep(file, "--out", file.parent / "out", "--dry-run")
        last = result.stdout.splitlines()[-1]
        assert last == "36 runs: 18 finished, 6 to run, 12 missing; 3 runs equal to another and done once."
        assert "later is missing: " in result.stdout

    def test_bad_values_are_found(self, runner: PretendingRunner, file: Path) -> None:
        file.write_text(RATES.replace("0.3]", "-0.3]"))
        assert secfed_sweep(file, "--out", file.parent / "out", "--dry-run").exit_code == 2


class TestDisplay:
    NOW = Progress(6, 2, 1, {"rate=0.1, seed=1": "round 3/6: [bold]x"}, 150.0)

    def test_says_what_is_done_running_and_left(self) -> None:
        console = Console(width=100, file=io.StringIO(), force_terminal=False)
        shown = LiveSweepObserver(console)
        shown.progress(self.NOW)
        with console.capture() as capture:
            console.print(shown.render())
        text = capture.get()
        for expected in ("2/6 done, 1 running, 1 failed", "about 2 min left", "rate=0.1, seed=1", "[bold]x"):
            assert expected in text

    def test_results_show_as_they_come_and_never_wider_than_the_terminal(self) -> None:
        console = Console(width=60, file=io.StringIO())
        shown = LiveSweepObserver(console)
        run = MagicMock(title="rate=0.1, seed=1")
        shown.ended(Row(run, "done", 1.5, {"roc_auc": 0.9876}))
        shown.ended(Row(run, "failed", error="DataError", message="no such column " * 9))
        console.print(shown.render())
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "done: rate=0.1, seed=1: 1.500 s, roc_auc 0.9876" in text
        assert "failed: rate=0.1, seed=1: DataError" in text
        assert max(map(len, text.splitlines())) <= 60

    def test_nothing_to_show_yet(self) -> None:
        console = Console(width=100, file=io.StringIO())
        console.print(LiveSweepObserver(console).render())

    def test_time_left(self) -> None:
        assert [show_left(s) for s in (None, 0.0, 89.0, 600.0, 7200.0)] == [
            "",
            "about 1 s left",
            "about 89 s left",
            "about 10 min left",
            "about 2.0 h left",
        ]
        assert show_progress(Progress(3, 3, 0, {}, 0.0)) == "3/3 done, 0 running"

    def test_lines_where_there_is_no_terminal(self, tmp_path: Path) -> None:
        text = io.StringIO()
        observer = LineSweepObserver(Console(file=text, width=40))
        pretended = PretendingRunner(fails={FAILS: DataError("no \x1b[2J records")})
        run_sweep(make_plan(sweep_file(RATES)), tmp_path, jobs=1, runner=pretended, observer=observer)
        lines = text.getvalue().splitlines()
        assert lines[0] == "6 different runs"
        assert lines[1] == "done: learning_rate=0.1, seed=1: 1.500 s, accuracy 0.6100"
        assert lines[2] == f"failed: {FAILS}: DataError: no �[2J records"
        assert len(lines) == 7
