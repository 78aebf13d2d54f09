"""What the study centre tells of a model: metrics that come late, and a closing evaluation given up."""

from __future__ import annotations

import json
from contextlib import closing
from io import StringIO
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanServer
from secfed.cli.aggregate_log import EventLog, tell_person
from secfed.runs.run_report import RoundReport, RunReport, SilentObserver
from secfed.runs.tracking import TrackedRun, Tracker, values_of
from secfed.runs.tracking_tensorboard import TensorBoardWriter
from secfed.terminal.tables import summary
from secfed.wire.layout import Exchange, Totals
from tests.deploy.central_case import Crash, Hospitals, LocalCarrier, crash_at
from tests.secfed.run_case import scalars


class Listening(SilentObserver):
    def __init__(self) -> None:
        self.told: list[int] = []

    def round_finished(self, report: RoundReport) -> None:
        self.told.append(report.round)


def test_metrics_that_a_later_round_adds_reach_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = WeightedMeanServer.absorb

    def absorb(self: WeightedMeanServer, number: int, exchange: Exchange, totals: Totals) -> None:
        original(self, number, exchange, totals)
        if number >= 2:  # the row of round number - 2 has been completed once by now
            self._metrics.of(number - 2)["late"] = float(number)

    monkeypatch.setattr(WeightedMeanServer, "absorb", absorb)
    hospitals, observer = Hospitals(tmp_path, protection_name="plain", rounds=3), Listening()
    report = hospitals.run(observer)
    found = [row.metrics or {} for row in report.rounds]
    assert [metrics.get("late") for metrics in found] == [3.0, 4.0, None]
    assert all("accuracy" in metrics for metrics in found)
    assert observer.told == [1, 2, 1, 3, 1, 2, 2, 3]


def test_a_resumed_run_tells_of_the_rounds_before_but_its_log_does_not_repeat_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hospitals = Hospitals(tmp_path, protection_name="plain", rounds=3)
    crash_at(monkeypatch, lambda name: "after a checkpoint is in place" in name and len(rounds()) > 1)

    def rounds() -> list[int]:
        records = [one for one in caplog.records if one.getMessage() == "round"]
        return [one.__dict__["facts"]["round"] for one in records]

    with caplog.at_level("INFO", "secfed.aggregate"):
        with pytest.raises(Crash):
            hospitals.run(EventLog())
        before = rounds()
        crash_at(monkeypatch, lambda _: False)
        shown = Listening()
        with closing(hospitals.start(shown)) as run:
            assert run.resumed
        hospitals.run(EventLog())
    assert max(before) == 2
    assert sorted({*before, *rounds()}) == [1, 2, 3]
    assert 1 not in rounds()[len(before) :]


@pytest.mark.parametrize("protection", ["masked", "closed"])
def test_a_resumed_run_is_tracked_once_and_by_counts_alone_where_sums_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str
) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra track")
    hospitals, said = Hospitals(tmp_path, protection_name=protection, rounds=3), list[str]()
    reads_sums = hospitals.central.protection.traits.aggregator_reads_sums
    run = TrackedRun("0123456789abcdef", "s", "s-ff", "fedavg", protection, 3, reads_sums=reads_sums)

    def start() -> RunReport:
        with Tracker(TensorBoardWriter(tmp_path / "board"), run, said.append) as tracker:
            return hospitals.run(tracker)

    checkpoints = count(1)
    crash_at(monkeypatch, lambda name: "after a checkpoint is in place" in name and next(checkpoints) == 3)
    with pytest.raises(Crash):
        start()
    crash_at(monkeypatch, lambda _: False)
    report = start()
    expected = {
        (name, row.round): pytest.approx(value)
        for row in report.rounds
        for name, value in values_of(row, reads_sums=reads_sums).items()
    }
    assert scalars(tmp_path / "board") == expected
    assert any(name.startswith("metrics/") for name, _ in expected) == reads_sums
    assert said == []


@pytest.mark.parametrize("killed", ["", "aggregate: before the results are written"])
def test_a_closing_evaluation_that_is_given_up_leaves_the_final_model_unmeasured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    hospitals = Hospitals(tmp_path, protection_name="plain", rounds=2)

    gone_from_round(hospitals, 3, monkeypatch)
    if killed:
        crash_at(monkeypatch, lambda name: name == killed)
        with pytest.raises(Crash):
            hospitals.run()
        crash_at(monkeypatch, lambda _: False)
    report = hospitals.run()
    assert [row.aborted for row in report.rounds] == [None, None]
    assert report.final == {}
    assert report.closing_aborted is not None
    assert "2 can take part, 3 are needed" in report.closing_aborted
    assert report.last_measured == (1, report.rounds[0].metrics)
    content = json.loads((hospitals.out / "run.json").read_text())
    assert content["final"] == {}
    assert content["closing_aborted"] == report.closing_aborted


def test_a_closing_evaluation_measures_the_final_model(tmp_path: Path) -> None:
    report = Hospitals(tmp_path, protection_name="plain", rounds=1).run()
    assert report.closing_aborted is None
    assert report.final == report.rounds[0].metrics
    assert "accuracy" in report.final


def gone_from_round(hospitals: Hospitals, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the hospitals no longer answer from this round on."""
    original = LocalCarrier.start_round

    def start_round(self: LocalCarrier, started: int) -> None:
        original(self, started)
        hospitals.down = {name: {"train"} for name in hospitals.names[:2]} if started >= number else {}

    monkeypatch.setattr(LocalCarrier, "start_round", start_round)


@pytest.mark.parametrize("protection", ["masked", "closed"])
def test_one_sentence_says_why_an_aggregator_that_reads_no_sums_has_no_metrics(
    protection: str, tmp_path: Path
) -> None:
    hospitals, told = Hospitals(tmp_path, protection_name=protection, rounds=1), StringIO()
    report = hospitals.run()
    sentence = (
        "Only the hospitals can read the sums, so there are no metrics, no losses and no model here: "
        "every hospital has the model."
    )
    console = Console(file=told, width=400)
    console.print(summary(console, report))
    tell_person(console)("started", address="h:1", reads_sums=protection == "masked")
    is_closed = protection == "closed"
    for text in (report.saw, (hospitals.out / "run.json").read_text(), told.getvalue()):
        assert (sentence in text) == is_closed
    assert ("there are no metrics and no losses here" in told.getvalue()) == is_closed
    assert bool(report.final) != is_closed
    assert (hospitals.out / "model.safetensors").is_file() != is_closed
