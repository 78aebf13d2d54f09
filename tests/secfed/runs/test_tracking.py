"""What trackers are given, that a bad one costs a warning only, and that no round is there twice."""

from __future__ import annotations

import math
import sqlite3
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.runs.run_report import RunReport
from secfed.runs.tracking import Point, TrackedRun, Tracker, identity_of, metrics_of, values_of
from secfed.runs.tracking_mlflow import MlflowWriter
from secfed.runs.tracking_tensorboard import TensorBoardWriter
from tests.secfed.run_case import a_round, a_run, scalars

RUN = TrackedRun("0123456789abcdef", "heart", "heart-ff", "fedavg", "masked", 3)


class Notes:
    """A tracker in memory, which fails as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.points, self.facts, self.closed = fails, list[Point](), dict[str, str](), False

    def begin(self, run: TrackedRun, *, resumed: bool) -> set[tuple[str, int]]:
        self.run, self.resumed = run, resumed
        return set()

    def write(self, point: Point) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no route\nto host")
        self.points.append(point)

    def end(self, facts: Mapping[str, str]) -> None:
        self.facts = dict(facts)

    def close(self) -> None:
        self.closed = True


def tracked(
    writer: Any, report: RunReport, run: TrackedRun = RUN, kept: int = 0, ends: bool = True
) -> list[str]:
    """A run whose first rounds were finished by an earlier start; what was warned of."""
    said: list[str] = []
    with Tracker(writer, run, said.append) as tracker:
        tracker.started(report.study, report.sites, len(report.rounds))
        for one in report.rounds[:kept]:
            tracker.round_kept(one)
        for one in report.rounds[kept:]:
            tracker.round_finished(replace(one, metrics=None))
            tracker.round_finished(one)
        if ends:
            tracker.finished(report)
    return said


def test_a_metric_carries_its_error_and_a_withheld_or_undefined_one_is_not_given() -> None:
    metrics = {
        "accuracy": 0.8,
        "accuracy_error_95": 0.03,
        "loss": 0.4,
        "roc_auc": math.nan,
        "recall": 0.7,  # a number by mistake: its error alone says that it is withheld
        "recall_error_95": 0.4,
        "f1": math.nan,
        "f1_error_95": 0.9,
        "hits@5": 0.5,
    }
    assert metrics_of(metrics) == {
        "metrics/accuracy": 0.8,
        "metrics/accuracy_error_95": 0.03,
        "metrics/loss": 0.4,
        "metrics/hits_5": 0.5,
    }


def test_who_cannot_read_the_sums_writes_counts_only() -> None:
    report = replace(a_round(1), survivors=("a", "b"), asked=("a", "b", "c"))
    assert values_of(report, reads_sums=False) == {
        "rounds/survivors": 2.0,
        "rounds/asked": 3.0,
        "rounds/aborted": 0.0,
    }
    notes = Notes()
    closed = replace(RUN, protection="closed", reads_sums=False)
    tracked(notes, replace(a_run(rounds=2, initial=None), initial={"loss": 0.7}), closed)
    assert {name for point in notes.points for name in point.values} == set(
        values_of(report, reads_sums=False)
    )


def test_no_hospital_is_named_and_nothing_of_a_single_one_is_written() -> None:
    notes, report = (
        Notes(),
        replace(a_run(rounds=3, initial=None), initial={"loss": 0.7}, oracle={"worst_site_loss": 9.0}),
    )
    assert tracked(notes, report) == []
    told = repr((notes.points, notes.facts, notes.run.facts(), notes.run.name))
    assert not [site for site in report.sites if site in told]
    assert "worst_site" not in told
    assert notes.run.hospitals == len(report.sites)
    assert notes.facts["aggregator_saw"] == report.saw


def test_each_value_is_written_once() -> None:
    notes, report = Notes(), replace(a_run(rounds=3, initial=None), initial={"loss": 0.7})
    tracked(notes, report)
    written = [(point.step, name) for point in notes.points for name in point.values]
    assert len(written) == len(set(written))
    assert {step for step, name in written if name == "metrics/loss"} == {0, 1, 2, 3}
    assert notes.closed


def test_a_tracker_that_fails_costs_one_warning_and_gets_the_rest_when_it_is_back() -> None:
    whole, notes = Notes(), Notes(fails=2)
    tracked(whole, a_run(rounds=3, initial=None))
    (said,) = tracked(notes, a_run(rounds=3, initial=None))
    assert said.endswith("the run goes on: ConnectionError: no route")
    assert [(one.step, one.values) for one in notes.points] == [
        (one.step, one.values) for one in whole.points
    ]


def test_a_tracker_that_stays_away_ends_with_what_is_missing() -> None:
    first, last = tracked(Notes(fails=100), a_run(rounds=2, initial=None))
    assert "the run goes on" in first
    assert "does not have the whole run" in last


def test_a_tracker_that_hangs_holds_up_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secfed.runs.tracking.PATIENCE_S", 0.05)
    notes, released = Notes(), threading.Event()
    monkeypatch.setattr(notes, "write", lambda point: released.wait(30))
    (said,) = tracked(notes, a_run(rounds=3, initial=None))  # returns
    released.set()
    assert "does not have the whole run" in said


def test_a_run_keeps_its_identity_in_its_folder_alone(tmp_path: Path) -> None:
    assert identity_of("heart-ff", tmp_path) == identity_of("heart-ff", tmp_path / "x" / "..")
    assert identity_of("heart-ff", tmp_path) != identity_of("heart-00", tmp_path)
    assert identity_of("heart-ff", None) != identity_of("heart-ff", None)


def test_tensorboard_reads_what_was_written_and_a_resumed_run_has_no_round_twice(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra track")
    report = a_run(rounds=3, initial=None)
    beginning = replace(report, rounds=report.rounds[:2])
    (tmp_path / "events.out.tfevents.1.other").write_bytes(b"")
    assert tracked(TensorBoardWriter(tmp_path), beginning, ends=False) == []
    assert {step for _, step in scalars(tmp_path)} == {1, 2}
    assert tracked(TensorBoardWriter(tmp_path), report, kept=2) == []
    expected = {
        (name, one.round): pytest.approx(value)
        for one in report.rounds
        for name, value in values_of(one, reads_sums=True).items()
    }
    assert scalars(tmp_path) == expected
    assert len(list(tmp_path.rglob("*tfevents*"))) == 2  # that of somebody else is still there
    tracked(TensorBoardWriter(tmp_path), report, replace(RUN, simulated=True))
    assert (tmp_path / "heart-01234567-simulated").is_dir()
    assert b'"simulated": "true"' in next((tmp_path / "heart-01234567-simulated").iterdir()).read_bytes()


class FakeMlflow:
    """As much of ``MlflowClient`` as is used, with its answers."""

    def __init__(self) -> None:
        self.experiments, self.runs = list[str](), list[Any]()

    def get_experiment_by_name(self, name: str) -> Any:
        return (
            SimpleNamespace(experiment_id=str(self.experiments.index(name)))
            if name in self.experiments
            else None
        )

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return str(self.experiments.index(name))

    def search_runs(
        self, experiments: list[str], filter_string: str, max_results: int, order_by: list[str]
    ) -> list[Any]:
        asked = filter_string.removeprefix("tags.`secfed.run` = '").removesuffix("'")
        return [one for one in reversed(self.runs) if one.tags["secfed.run"] == asked][:max_results]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        info = SimpleNamespace(run_id=str(len(self.runs)), status="RUNNING", name=run_name)
        run = SimpleNamespace(info=info, data=SimpleNamespace(metrics={}), tags=tags, history=[])
        self.runs.append(run)
        return run

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [one for one in self.runs[int(run_id)].history if one.key == key]

    def log_metric(self, run_id: str, key: str, value: float, timestamp: int, step: int) -> None:
        run = self.runs[int(run_id)]
        run.data.metrics[key] = value
        run.history.append(SimpleNamespace(key=key, step=step, value=value))

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[int(run_id)].tags[key] = value

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[int(run_id)].info.status = status


def test_mlflow_goes_on_with_a_run_and_makes_a_new_one_for_a_new_run() -> None:
    client, report = FakeMlflow(), a_run(rounds=3, initial=None)

    def start(**more: Any) -> None:
        assert tracked(MlflowWriter("x", lambda _: client), report, **more) == []

    tracked(MlflowWriter("x", lambda _: client), replace(report, rounds=report.rounds[:1]), ends=False)
    assert client.runs[0].info.status == "RUNNING"
    start(kept=1)  # goes on
    start(kept=3)  # brings hospitals a model that they missed; nothing is new
    (run,) = client.runs
    assert run.info.status == "FINISHED"
    written = [(one.key, one.step) for one in run.history]
    assert len(written) == len(set(written))
    assert sorted(step for key, step in written if key == "metrics/loss") == [1, 2, 3]
    assert run.tags["secfed.simulated"] == "false"
    start()  # the same simulation once more
    assert len(client.runs) == 2
    tracked(
        MlflowWriter("x", lambda _: client), replace(report, rounds=report.rounds[:1]), ends=False
    )  # killed
    start()  # and begun again
    assert [one.info.status for one in client.runs[2:]] == ["KILLED", "FINISHED"]
    assert sorted(one.step for one in client.runs[3].history if one.key == "metrics/loss") == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # of MLflow and what it brings along
def test_mlflow_itself_keeps_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    uri, report = f"sqlite:///{tmp_path / 'mlflow.db'}", a_run(rounds=3, initial=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracked(MlflowWriter(uri), replace(report, rounds=report.rounds[:2]), ends=False)
        assert tracked(MlflowWriter(uri), report, kept=2) == []
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        rows = store.execute("SELECT key, step, value FROM metrics").fetchall()
        assert store.execute("SELECT status, name FROM runs").fetchall() == [("FINISHED", "heart")]
    store.close()
    found = {(key, step): value for key, step, value in rows}
    assert len(found) == len(rows)
    assert found == {
        (name, one.round): value
        for one in report.rounds
        for name, value in values_of(one, reads_sums=True).items()
    }
