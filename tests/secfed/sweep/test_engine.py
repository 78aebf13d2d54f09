"""Carrying out a sweep around a runner that only pretends: resuming, failures, and results.csv."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from secfed.errors import ConfigError, DataError
from secfed.sweep.engine import SweepObserver, run_sweep
from secfed.sweep.jobs import Progress, seconds_left
from secfed.sweep.plan import SweepRun
from secfed.sweep.results import Row
from secfed.sweep.store import opened
from tests.secfed.sweep_case import (
    CURVES,
    LATER,
    RATES,
    PretendingRunner,
    error_of,
    metrics_of,
    plan,
)


def carry_out(
    out: Path, text: str = RATES, jobs: int = 1, **settings: object
) -> tuple[PretendingRunner, list[Row]]:
    runner = PretendingRunner(**settings)  # type: ignore[arg-type]
    return runner, run_sweep(plan(text), out, jobs=jobs, runner=runner)


def read_csv(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


class TestResults:
    def test_a_row_per_run_with_keys_seed_status_seconds_and_metrics(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        rows = read_csv(tmp_path)
        assert len(rows) == 6
        for row, run in zip(rows, plan().runs, strict=True):
            assert float(row["algorithm.learning_rate"]) == run.at["algorithm.learning_rate"]
            assert (row["seed"], row["status"], row["seconds"]) == (str(run.seed), "done", "1.500")
            assert float(row["accuracy"]) == metrics_of(run)["accuracy"]
            assert row["folder"] == run.folder
            assert row["study_digest"] == run.digest
        assert "undefined" not in rows[0]  # a metric that is nowhere defined has no column

    def test_the_file_is_true_whenever_a_run_starts(self, tmp_path: Path) -> None:
        seen: list[list[str]] = []

        def look(run: SweepRun) -> None:
            seen.append([row["status"] for row in read_csv(tmp_path)])

        carry_out(tmp_path, before=look)
        assert seen[0] == ["waiting"] * 6
        assert seen[3] == ["done"] * 3 + ["waiting"] * 3

    def test_each_run_has_its_study_file_beside_its_result(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        for run in plan().runs:
            assert (tmp_path / "runs" / run.folder / "study.toml").read_text() == run.text
        assert (tmp_path / "sweep.toml").read_text() == RATES

    def test_points_of_one_study_run_once_and_have_a_row_each(self, tmp_path: Path) -> None:
        runner, rows = carry_out(tmp_path, CURVES)
        assert len(rows) == 18
        assert len(runner.started) == 15  # inf is no noise in both variants
        at_inf = [row for row in rows if row.run.at["strength"] == float("inf")]
        assert len({row.folder for row in at_inf}) == 3
        assert all(row.status == "done" for row in rows)

    def test_what_privacy_cost_is_the_most_that_a_site_spent(self, tmp_path: Path) -> None:
        _, rows = carry_out(tmp_path)
        sites = {"a": {"epsilon": 0.5}, "b": {"epsilon": 0.75}}
        path = tmp_path / "runs" / rows[0].folder / "run.json"
        path.write_text(json.dumps({"final": {}, "privacy": {"sites": sites}}))
        carry_out(tmp_path)
        assert [row["epsilon_spent"] for row in read_csv(tmp_path)] == ["0.75", *[""] * 5]


class TestParallel:
    @pytest.mark.parametrize("jobs", [1, 2, 4])
    def test_never_more_runs_at_a_time_than_jobs(self, tmp_path: Path, jobs: int) -> None:
        runner, rows = carry_out(tmp_path, jobs=jobs, polls=1)
        assert runner.most == jobs
        assert all(row.status == "done" for row in rows)

    def test_more_jobs_than_runs(self, tmp_path: Path) -> None:
        assert carry_out(tmp_path, jobs=100, polls=1)[0].most == 6


class TestResuming:
    def test_a_finished_run_is_not_repeated(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
        runner, rows = carry_out(tmp_path)
        assert runner.started == []
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
        assert [row.status for row in rows] == ["done"] * 6

    def test_only_new_values_run_when_the_sweep_grows(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        runner, rows = carry_out(tmp_path, RATES.replace("0.3]", "0.3, 0.4]"))
        assert runner.started == ["learning_rate=0.4, seed=1", "learning_rate=0.4, seed=2"]
        assert len(rows) == 8

    def test_runs_are_known_by_their_study_not_by_their_name(self, tmp_path: Path) -> None:
        carry_out(tmp_path, CURVES)
        runner, _ = carry_out(tmp_path, CURVES.replace('"decay"', '"weight-decay"'))
        assert runner.started == []

    def test_another_study_in_the_same_folder_runs(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        assert len(carry_out(tmp_path, RATES.replace("rounds = 1", "rounds = 2"))[0].started) == 6

    def test_what_a_killed_run_left_behind_is_discarded(self, tmp_path: Path) -> None:
        run = plan().runs[0]
        carry_out(tmp_path)
        finished = tmp_path / "runs" / run.folder
        part = finished.with_name(f"{run.folder}.part")
        finished.rename(part)
        (part / "half-written").touch()
        runner, _ = carry_out(tmp_path)
        assert runner.started == [run.title]
        assert not part.exists()
        assert not (finished / "half-written").exists()

    def test_a_sweep_killed_at_its_very_beginning_goes_on(self, tmp_path: Path) -> None:
        (tmp_path / ".lock").touch()
        (tmp_path / "sweep.toml.part").write_text("[study]")
        assert [row.status for row in carry_out(tmp_path)[1]] == ["done"] * 6
        assert not (tmp_path / "sweep.toml.part").exists()

    @pytest.mark.parametrize("name", ["run.json", "finished.json"])
    @pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
    def test_a_damaged_result_is_repeated(self, tmp_path: Path, name: str, damage: str) -> None:
        carry_out(tmp_path)
        run = plan().runs[2]
        path = tmp_path / "runs" / run.folder / name
        if damage == "missing":
            path.unlink()
        else:
            path.write_text(path.read_text()[:-3] if damage == "cut" else "{}")
        runner, rows = carry_out(tmp_path)
        assert runner.started == [run.title]
        assert rows[2].status == "done"

    def test_an_interrupted_sweep_stops_its_runs_and_goes_on_later(self, tmp_path: Path) -> None:
        def interrupt(run: SweepRun) -> None:
            if run.seed == 2:
                raise KeyboardInterrupt

        runner = PretendingRunner(before=interrupt, polls=1)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(plan(), tmp_path, jobs=2, runner=runner)
        unfinished = [made for made in runner.runs if made.polls >= 0]
        assert unfinished
        assert all(made.stopped for made in unfinished)
        statuses = [row["status"] for row in read_csv(tmp_path)]
        assert set(statuses) == {"done", "waiting"}
        again, rows = carry_out(tmp_path)
        assert len(again.started) == statuses.count("waiting")
        assert all(row.status == "done" for row in rows)


class TestFailures:
    FAILS = "learning_rate=0.2, seed=1"

    def test_a_failed_run_is_recorded_and_stops_no_other(self, tmp_path: Path) -> None:
        error = DataError("data.path: no records", remedy="check it")
        _, rows = carry_out(tmp_path, fails={self.FAILS: error})
        assert [row.status for row in rows] == ["done", "failed", *["done"] * 4]
        recorded = read_csv(tmp_path)[1]
        assert recorded["error"] == "DataError"
        assert recorded["message"] == "data.path: no records. Remedy: check it"
        assert recorded["accuracy"] == ""
        assert (tmp_path / "runs" / recorded["folder"] / "failure.json").is_file()

    def test_it_is_repeated_the_next_time(self, tmp_path: Path) -> None:
        carry_out(tmp_path, fails={self.FAILS: DataError("x")})
        runner, rows = carry_out(tmp_path)
        assert runner.started == [self.FAILS]
        assert all(row.status == "done" and not row.error for row in rows)

    def test_an_unexpected_error_leaves_its_class_and_no_value(self, tmp_path: Path) -> None:
        carry_out(tmp_path, fails={self.FAILS: ValueError("could not convert 'age 83, Mrs Miller'")})
        assert read_csv(tmp_path)[1]["error"] == "ValueError"
        for path in tmp_path.rglob("*"):
            assert path.is_dir() or "Miller" not in path.read_text()

    @pytest.mark.parametrize(
        ("signal", "error", "hint"),
        [("SIGKILL", "SIGKILL", "fewer --jobs"), ("SIGSEGV", "SIGSEGV", "log.txt")],
    )
    def test_a_process_that_is_ended_says_by_what(
        self, tmp_path: Path, signal: str, error: str, hint: str
    ) -> None:
        _, rows = carry_out(tmp_path, ended_by={self.FAILS: signal})
        assert (rows[1].status, rows[1].error) == ("failed", error)
        assert hint in rows[1].message

    def test_a_result_of_another_study_is_no_result(self, tmp_path: Path) -> None:
        class Changed(PretendingRunner):
            def _work(self, run: SweepRun, part: Path) -> None:
                from tests.secfed.sweep_case import pretend_result

                pretend_result(part, "00" * 32, {"accuracy": 1.0})

        rows = run_sweep(plan(), tmp_path, jobs=1, runner=Changed())
        assert {(row.status, row.error) for row in rows} == {("failed", "changed")}

    def test_a_missing_variant_is_no_failure(self, tmp_path: Path) -> None:
        runner, rows = carry_out(tmp_path, CURVES + LATER)
        later = [row for row in rows if row.run.at["variant"] == "later"]
        assert {row.status for row in later} == {"unavailable"}
        assert not any(title.startswith("later") for title in runner.started)
        assert "fedlater" in read_csv(tmp_path)[-1]["message"]

    def test_an_optional_variant_may_also_be_refused_when_it_starts(self, tmp_path: Path) -> None:
        text = CURVES.replace('name = "decay"', 'name = "decay"\noptional = true')
        title = "decay, strength=0.5, seed=1"
        _, rows = carry_out(tmp_path, text, fails={title: ConfigError("needs another package")})
        assert [row.run.title for row in rows if row.status == "unavailable"] == [title]
        _, rows = carry_out(tmp_path / "b", text, fails={title: DataError("no records")})
        assert [row.run.title for row in rows if row.status == "failed"] == [title]


class TestFolder:
    def test_a_folder_of_something_else_is_refused_untouched(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.doc").touch()
        error = error_of(lambda: carry_out(tmp_path))
        assert isinstance(error, ConfigError)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]

    def test_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        assert "not a folder" in error_of(lambda: carry_out(tmp_path / "f")).message

    def test_two_sweeps_never_share_a_folder(self, tmp_path: Path) -> None:
        with opened(tmp_path, RATES):
            error = error_of(lambda: carry_out(tmp_path))
        assert "another sweep is at work" in error.message
        assert len(carry_out(tmp_path)[0].started) == 6

    def test_runs_that_are_no_longer_in_the_sweep_are_left_alone(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        before = set((tmp_path / "runs").iterdir())
        carry_out(tmp_path, RATES.replace("[0.1, 0.2, 0.3]", "[0.1]"))
        assert set((tmp_path / "runs").iterdir()) == before

    def test_a_removed_run_is_done_again(self, tmp_path: Path) -> None:
        carry_out(tmp_path)
        shutil.rmtree(tmp_path / "runs" / plan().runs[0].folder)
        assert carry_out(tmp_path)[0].started == [plan().runs[0].title]


class TestProgress:
    def test_counts_and_what_is_running(self, tmp_path: Path) -> None:
        seen: list[Progress] = []
        ended: list[Row] = []

        class Observer:
            def progress(self, now: Progress) -> None:
                seen.append(now)

            def ended(self, row: Row) -> None:
                ended.append(row)

        fails: dict[str, Exception] = {TestFailures.FAILS: DataError("x")}
        run_sweep(
            plan(), tmp_path, jobs=2, runner=PretendingRunner(fails=fails, polls=1), observer=Observer()
        )
        assert (seen[0].total, seen[0].done, seen[0].left_s) == (6, 0, None)
        assert seen[0].running == {plan().runs[0].title: "round 1/1", plan().runs[1].title: "round 1/1"}
        assert (seen[-1].done, seen[-1].failed, seen[-1].running, seen[-1].left_s) == (5, 1, {}, 0.0)
        assert sorted(row.run.title for row in ended) == sorted(run.title for run in plan().runs)

    def test_seconds_left(self) -> None:
        assert seconds_left([], [3.0], 5, 2) is None
        assert seconds_left([10.0, 20.0], [], 4, 2) == 30.0
        assert seconds_left([10.0], [4.0, 8.0], 2, 2) == pytest.approx((6 + 2 + 20) / 2)
        assert seconds_left([10.0], [4.0], 0, 8) == 6.0  # one run cannot be shared out
        assert seconds_left([10.0], [40.0], 0, 1) == 0.0


class TestPanels:
    TEXT = (
        RATES
        + '\n[[sweep.panel]]\nname = "one"\n'
        + '[[sweep.panel]]\nname = "two"\nset = { algorithm.local_epochs = 7 }\n'
    )

    def test_only_the_runs_of_a_panel_start_and_the_others_finished_ones_are_rows(
        self, tmp_path: Path
    ) -> None:
        found = plan(self.TEXT)
        for panel, done in (("two", {"two"}), ("one", {"one", "two"})):
            runner, told = PretendingRunner(), list[Progress]()
            seen = SweepObserver()
            seen.progress = told.append  # type: ignore[method-assign]
            rows = run_sweep(found, tmp_path, jobs=1, runner=runner, observer=seen, panels=[panel])
            assert len(runner.started) == 6
            assert all(title.startswith(panel) for title in runner.started)
            assert {row.run.at["panel"] for row in rows if row.status == "done"} == done
            assert len(rows) == 12
            assert (told[-1].total, told[-1].done) == (6, 6)

    def test_a_panel_that_is_not_there(self, tmp_path: Path) -> None:
        found = plan(self.TEXT)
        error = error_of(
            lambda: run_sweep(found, tmp_path, jobs=1, runner=PretendingRunner(), panels=["three"])
        )
        assert "--panel three" in error.message
        assert "one, two" in (error.remedy or "")
