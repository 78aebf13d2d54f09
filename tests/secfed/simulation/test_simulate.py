"""Whole studies in one process: equal models under every protection, dropouts, edge cases."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanServer, WeightedMeanSite
from secfed.audit.privacy import make_report
from secfed.audit.transcript_check import verify_run
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError, RangeError, RoundAborted
from secfed.records.roster_file import read_roster
from secfed.runs.run_folder import files_of
from secfed.runs.run_report import RoundReport, SilentObserver
from secfed.simulation.simulate import simulate
from secfed.storage.code_digest import code_digest
from secfed.terminal.tables import summary
from secfed.wire.layout import Exchange, Layout, State, Summands, Totals
from secfed.wire.stages import STAGES
from tests.secfed.simulation.simulate_case import run, study


def model_bytes(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed masked run, to be read only."""
    out = tmp_path_factory.mktemp("finished") / "out"
    run(study(), out)
    return out


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a run that the second hospital never takes part in."""
    out = tmp_path_factory.mktemp("without")
    run(study(), out, "hospital-2@train")
    return model_bytes(out)


@pytest.mark.parametrize("bits", [32, 20])
def test_model_is_byte_identical_under_every_protection(tmp_path: Path, bits: int) -> None:
    for name in ("plain", "masked", "encrypted"):
        run(study(name, bits=bits), tmp_path / name)
    expected = model_bytes(tmp_path / "plain")
    assert model_bytes(tmp_path / "masked") == expected
    assert model_bytes(tmp_path / "encrypted") == expected


@pytest.mark.parametrize("name", ["masked", "encrypted"])
def test_the_finished_model_is_in_the_record(tmp_path: Path, name: str) -> None:
    """Under encrypted protection at every site, since only they have it; one that was away has another."""
    if name == "encrypted":
        pytest.importorskip("tenseal")
    run(study(name), tmp_path, "hospital-2@mask:3", "hospital-2@train:4")
    verdict = verify_run(tmp_path, read_roster(tmp_path / "roster.json"))
    assert verdict.problems == []
    behind = ["hospital-2"] if name == "encrypted" else []
    assert [Path(note.partition(":")[0]).parent.name for note in verdict.notes] == behind
    right = [model for model in verdict.models if model.is_right]
    assert [(model.owner, model.record.round, model.record.sums) for model in right] == [("aggregator", 3, 4)]
    sites = {model.owner: model.record for model in verdict.models if model.owner != "aggregator"}
    if name == "encrypted":
        assert right[0].record.metrics
        assert {site: record.sums for site, record in sites.items()} == {
            **{f"hospital-{number}": 4 for number in (1, 3, 4)},
            "hospital-2": 2,
        }
    else:
        assert not sites
    (tmp_path / "model.safetensors").write_bytes(b"another")
    content = json.loads((tmp_path / "run.json").read_text())
    content["final"]["accuracy"] = 1.0
    (tmp_path / "run.json").write_text(json.dumps(content))
    found = verify_run(tmp_path, read_roster(tmp_path / "roster.json")).problems
    assert [Path(problem.file).name for problem in found] == ["model.safetensors", "run.json"]


@pytest.mark.parametrize("stage", STAGES)
def test_dropouts_do_not_tell_plain_from_masked(tmp_path: Path, stage: str) -> None:
    drop = f"hospital-2@{stage}:2"
    run(study("plain"), tmp_path / "plain", drop)
    report = run(study("masked"), tmp_path / "masked", drop)
    assert model_bytes(tmp_path / "plain") == model_bytes(tmp_path / "masked")
    lost = "hospital-2" not in report.rounds[1].survivors
    assert lost == (stage in STAGES[: STAGES.index("mask") + 1])


@pytest.mark.parametrize(
    "stage", ["mask", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("choose", "unmask"))]
)
def test_a_sparse_graph_changes_nothing_but_who_masks_towards_whom(tmp_path: Path, stage: str) -> None:
    complete = study("masked", sites=10).replace("protection.colluders", 1).replace("study.rounds", 2)
    sparse = complete.replace("protection.graph", "sparse").replace("protection.dropout_rate", 0.05)
    drop = f"hospital-2@{stage}:2"
    reports = [run(one, tmp_path / name, drop) for name, one in (("c", complete), ("s", sparse))]
    assert model_bytes(tmp_path / "c") == model_bytes(tmp_path / "s")
    assert [row.survivors for row in reports[0].rounds] == [row.survivors for row in reports[1].rounds]
    sent = [report.rounds[0].bytes_up_per_site.mean for report in reports]
    assert sent[0] != sent[1]
    verdict = verify_run(tmp_path / "s", read_roster(tmp_path / "s" / "roster.json"))
    assert verdict.problems == verdict.notes == []


def test_the_cipher_of_the_masks_changes_no_model(tmp_path: Path) -> None:
    chacha = study("masked").replace("study.rounds", 2)
    aes = chacha.replace("protection.keystream", "aes-256-ctr")
    assert chacha.digest() != aes.digest()
    for name, one in (("chacha", chacha), ("aes", aes)):
        run(one, tmp_path / name, "hospital-2@mask:2")
    assert model_bytes(tmp_path / "chacha") == model_bytes(tmp_path / "aes")


@pytest.mark.parametrize("stage", ["advertise", "share", "confirm", "mask"])
def test_dropped_site_equals_an_absent_one(tmp_path: Path, stage: str, without: bytes) -> None:
    run(study(), tmp_path, f"hospital-2@{stage}")
    assert model_bytes(tmp_path) == without


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path, finished: Path) -> None:
    run(study(), tmp_path / "again")
    run(study().replace("study.seed", 12), tmp_path / "other")
    assert model_bytes(finished) == model_bytes(tmp_path / "again") != model_bytes(tmp_path / "other")


def test_too_many_dropouts_abort_the_round_which_is_recorded_and_the_study_goes_on(tmp_path: Path) -> None:
    report = run(study(), tmp_path / "out", "hospital-1@mask:2", "hospital-2@mask:2")
    assert [entry.aborted is None for entry in report.rounds] == [True, False, True]
    assert report.rounds[1].survivors == ()
    content = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [entry["aborted"] is None for entry in content["rounds"]] == [True, False, True]
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcript.jsonl").read_text().splitlines()]
    broadcasts = {
        entry["body"]["round"]: entry["body"]["broadcast"] for entry in lines if entry["kind"] == "summed"
    }
    assert set(broadcasts) == {1, 3, 4}
    aborted = [entry["body"] for entry in lines if entry["kind"] == "aborted"]
    assert [body["round"] for body in aborted] == [2]


def test_no_sum_at_all_is_an_error() -> None:
    with pytest.raises(RoundAborted, match="no round"):
        run(study(), None, "hospital-1@train", "hospital-2@train")


def test_a_study_whose_every_round_was_given_up_is_no_result(tmp_path: Path) -> None:
    drops = [f"hospital-{site}@train:{number}" for site in (1, 2) for number in (1, 2, 3)]
    with pytest.raises(RoundAborted, match="all 3 rounds were given up, so there is no trained model"):
        run(study(), tmp_path, *drops)  # though the closing evaluation came to a sum
    assert not (tmp_path / "run.json").exists()
    assert not (tmp_path / "model.safetensors").exists()


def test_zero_rounds_only_evaluate(tmp_path: Path) -> None:
    report = run(study().replace("study.rounds", 0), tmp_path / "out")
    assert report.rounds == ()
    assert 0.0 <= report.final["accuracy"] <= 1.0
    assert load_file(tmp_path / "out" / "model.safetensors")


def test_a_drop_in_a_round_that_never_comes_is_refused() -> None:
    with pytest.raises(ConfigError, match="hospital-1@mask:5: the study has no round 5") as caught:
        run(study("plain"), None, "hospital-1@mask:5")
    assert "up to 4" in caught.value.remedy
    run(study("plain"), None, "hospital-1@mask:4")  # the closing evaluation


def test_work_that_diverges_adds_zeros_which_are_counted_and_shown(tmp_path: Path) -> None:
    diverging = study("plain").replace("algorithm.learning_rate", 1e38).replace("study.rounds", 2)
    report = run(diverging, tmp_path / "run")
    assert [one.gave_up for one in report.rounds] == [None, None]
    assert [one.survivors for one in report.rounds] == [report.sites] * 2
    assert [(one.site, one.contributions) for one in report.zeroed] == [(site, 2) for site in report.sites]
    zeroed = json.loads((tmp_path / "run" / "run.json").read_text())["zeroed"]
    assert zeroed["hospital-1"]["contributions"] == 2
    assert "update" in zeroed["hospital-1"]["first"]
    assert "NaN or Inf" in zeroed["hospital-1"]["first"]
    console = Console(width=200, file=io.StringIO())
    console.print(summary(console, report))
    shown = console.file.getvalue()
    assert f"{', '.join(report.sites)}: local work failed in 2 contributions" in shown
    assert shown.count("local work failed") == 1  # alike at all of them
    # The signed record says nothing of it.
    recorded = (tmp_path / "run" / "transcript.jsonl").read_text()
    assert "refused" not in recorded
    assert "NaN" not in recorded
    assert "zeroed" not in json.dumps(run(study("plain"), None).to_json())


def test_a_defect_of_the_program_is_raised_in_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Summands:
        raise TypeError("update() takes no hospital")

    monkeypatch.setattr(WeightedMeanSite, "contribute", broken)
    with pytest.raises(TypeError, match="takes no hospital"):
        run(study("plain"), None)


def test_a_study_without_any_sum_says_why_the_first_site_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Summands:
        raise ConfigError("the model is 7 feet tall", remedy="use a ladder")

    monkeypatch.setattr(WeightedMeanSite, "contribute", refuse)
    with pytest.raises(
        RoundAborted, match=r"no round .* hospital-1 was the first .*: the model is 7"
    ) as caught:
        run(study("plain"), None)
    assert caught.value.remedy == "use a ladder"


def test_what_a_stopped_run_recorded_can_be_checked(tmp_path: Path) -> None:
    class Stopping(SilentObserver):
        def round_finished(self, report: RoundReport) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(study(), out=tmp_path, drops=[], observer=Stopping())
    made = make_report([tmp_path], ())
    assert not made.verification.problems
    assert {item.kind for item in made.verification.files} == {"roster", "transcript"}


def test_unknown_site_in_drop_is_named() -> None:
    with pytest.raises(ConfigError, match="hospital-9"):
        run(study(), None, "hospital-9@mask")


def test_run_json_has_what_is_promised(finished: Path) -> None:
    content = json.loads((finished / "run.json").read_text())
    assert {"study", "algorithm", "protection", "sites", "rounds", "final"} <= set(content)
    keys = {"round", "metrics", "survivors", "bytes_up_per_site", "bytes_down_per_site", "seconds"}
    assert all(keys <= set(entry) for entry in content["rounds"])
    assert [entry["round"] for entry in content["rounds"]] == [1, 2, 3]
    assert set(content["rounds"][0]["seconds"]) == {"train", "protect", "carry", "server"}
    assert content["machine"]["threads"] == 1
    assert {"processor", "system", "python"} < set(content["machine"])
    assert {"secfed", "torch", "numpy", "scikit-learn"} < set(content["machine"]["packages"])


def test_threads_are_as_many_as_asked_for_and_no_more(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    report = simulate(study("plain"), engine=EngineOptions(threads=2))
    assert (report.machine or {})["threads"] == 2
    assert torch.get_num_threads() == before
    with pytest.raises(ConfigError, match="each worker has one thread"):
        EngineOptions("processes", threads=2)


def test_metrics_that_a_later_round_adds_reach_their_row() -> None:
    original = WeightedMeanServer.absorb

    def absorb(self: WeightedMeanServer, number: int, exchange: Exchange, totals: Totals) -> None:
        original(self, number, exchange, totals)
        if number >= 2:  # the row of round number - 2 has been completed once by now
            self._metrics.of(number - 2)["late"] = float(number)

    told: list[int] = []

    class Listening(SilentObserver):
        def round_finished(self, report: RoundReport) -> None:
            told.append(report.round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedMeanServer, "absorb", absorb)
        report = simulate(study("plain"), out=None, drops=[], observer=Listening())
    found = [row.metrics or {} for row in report.rounds]
    assert [metrics.get("late") for metrics in found] == [3.0, 4.0, None]
    assert all("accuracy" in metrics for metrics in found)
    # Each row when its round is over, when it is first measured, and when something is added; no more.
    assert told == [1, 2, 1, 3, 1, 2, 2, 3]


def test_narrow_lanes_cost_fewer_bytes() -> None:
    wide, narrow = run(study("plain")), run(study("plain", bits=16))
    assert narrow.rounds[0].bytes_up_per_site.mean < wide.rounds[0].bytes_up_per_site.mean


def entries(out: Path, site: str) -> list[dict[str, Any]]:
    lines = (out / "sites" / site / "transcript.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_transcript_of_a_finished_run_is_closed(finished: Path) -> None:
    verdict = verify_run(finished, read_roster(finished / "roster.json"))
    assert not [party.owner for party in verdict.parties if party.is_open]
    assert not verdict.problems


def test_every_file_of_a_run_gives_way_to_a_later_run(finished: Path) -> None:
    written = {path for path in finished.rglob("*") if path.is_file()}
    assert written <= set(files_of(finished))


def test_every_transcript_says_which_code_closed_it(finished: Path) -> None:
    for path in finished.rglob("transcript.jsonl"):
        (closed,) = [
            body for line in path.read_text().splitlines() if (body := json.loads(line))["kind"] == "closed"
        ]
        assert closed["body"]["build"] == code_digest()


def test_a_site_records_that_it_released_shares_before_it_knows_the_result(finished: Path) -> None:
    kinds = [entry["kind"] for entry in entries(finished, "hospital-1")[1:]]
    assert kinds == ["settings", *["released", "summed"] * 4, "closed"]


def test_that_and_why_a_sites_own_work_failed_stays_at_the_site(tmp_path: Path) -> None:
    original = WeightedMeanSite.contribute

    def broken(self: WeightedMeanSite, number: int, exchange: Exchange, broadcast: State) -> Summands:
        summands = dict(original(self, number, exchange, broadcast))
        if self._site_id == "hospital-3" and number == 2:
            summands["train_loss"] = float("nan")
        return summands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedMeanSite, "contribute", broken)
        report = run(study(), tmp_path / "out")
    assert "hospital-3" in report.rounds[1].survivors
    (zeroed,) = report.zeroed
    assert (zeroed.site, zeroed.contributions) == ("hospital-3", 1)
    assert "train_loss" in zeroed.first
    assert "update" not in zeroed.first.replace("'update'", "")  # only what failed
    text = (tmp_path / "out" / "transcript.jsonl").read_text()
    assert "refused" not in text
    assert "train_loss" not in text


def test_a_sum_out_of_range_costs_its_round_and_not_the_study(tmp_path: Path) -> None:
    original = Layout.decode

    def spoilt(self: Layout, sums: Any, survivors: tuple[str, ...]) -> Totals:
        if broken.pop("next", False):
            raise RangeError("a decoded sum exceeds what the sites can contribute")
        return original(self, sums, survivors)

    broken = {"next": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "decode", spoilt)
        report = run(study(), tmp_path / "out")
    assert report.rounds[0].aborted is not None
    assert [entry.aborted for entry in report.rounds[1:]] == [None, None]
    assert "summed" not in [entry["kind"] for entry in entries(tmp_path / "out", "hospital-1")[1:2]]
