"""``secfed simulate``: options, output, errors and exit codes, around an engine that only pretends."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.engine.options import EngineOptions
from secfed.errors import BudgetExceeded, ConfigError, DataError, LinkError, RoundAborted, SecfedError
from secfed.runs.run_folder import write_run
from secfed.runs.run_report import Observer, RunReport, SilentObserver
from secfed.simulation.dropouts import Dropout
from tests.secfed.run_case import a_run, secfed


@dataclass
class Engine:
    """Stands in for the study and the simulation; remembers what it was asked for."""

    report: RunReport
    fails: Callable[[], None] = lambda: None
    name: str = "s"
    digest: Callable[[], bytes] = lambda: bytes(32)
    asked: Any = None
    model: Any = field(default_factory=lambda: SimpleNamespace(start=None))

    def load(self, path: Path) -> Engine:
        self.file, self.replaced = path, {}
        return self

    def replace(self, key: str, value: object) -> Engine:
        self.replaced[key] = value
        return self

    def simulate(
        self,
        study: Engine,
        *,
        out: Path | None,
        drops: list[Dropout],
        observer: Observer,
        compare: str | None,
        budgets: dict[str, float],
        engine: Any,
    ) -> RunReport:
        assert study is self
        self.asked = SimpleNamespace(
            out=out, drops=drops, observer=observer, compare=compare, budgets=budgets, engine=engine
        )
        observer.started(self.report.study, self.report.sites, len(self.report.rounds))
        for item in self.report.rounds:
            observer.stage(item.round, "fit", "mask", 1, 4)
            observer.round_finished(replace(item, metrics=None))
            self.fails()
            observer.round_finished(item)
        observer.finished(self.report)
        if out is not None:
            write_run(self.report, out)
        return self.report

    def draw(self, report: RunReport, folder: Path) -> None:
        assert report is self.report
        folder.mkdir(exist_ok=True)
        (folder / "metrics.svg").write_text("<svg/>")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    pretended = Engine(a_run())
    monkeypatch.setattr("secfed.study.study.Study", pretended)
    monkeypatch.setattr("secfed.simulation.simulate.simulate", pretended.simulate)
    monkeypatch.setattr("secfed.runs.figures.write_figures", pretended.draw)  # real ones take half a second
    return pretended


class TestOptions:
    def test_reach_the_engine(self, engine: Engine, tmp_path: Path) -> None:
        out = tmp_path / "run"
        result = secfed(
            *("simulate", "s.toml", "--out", out, "--protection", "plain", "--seed", 7, "--compare", "alone"),
            *("--drop", "hospital-2@mask:3", "--drop", "hospital-1@train"),
            *("--budget", "hospital-2=2.5", "--budget", "a=b=1"),
            *("--engine", "processes", "--workers", 3, "--site-deadline", 9),
        )
        assert result.exit_code == 0, result.stderr
        assert engine.file == Path("s.toml")
        assert engine.replaced == {"protection.name": "plain", "study.seed": 7}
        assert engine.asked.drops == [Dropout("hospital-2", "mask", 3), Dropout("hospital-1", "train")]
        assert (engine.asked.out, engine.asked.compare) == (out, "alone")
        assert engine.asked.budgets == {"hospital-2": 2.5, "a=b": 1.0}
        assert engine.asked.engine == EngineOptions("processes", 3, 9.0)

    @pytest.mark.parametrize(
        "text", ["hospital-2", "hospital-2=", "hospital-2=much", "x=-1", "x=inf", "x=nan"]
    )
    def test_a_budget_that_is_none_is_one_error(self, engine: Engine, text: str) -> None:
        result = secfed("simulate", "s.toml", "--budget", text)
        assert result.exit_code == 2
        assert f"--budget {text}" in result.stderr

    def test_sums_are_closed_and_opened_again(self, engine: Engine) -> None:
        assert secfed("simulate", "s.toml", "--reveal", "sites", "--protection", "masked").exit_code == 0
        assert list(engine.replaced.items()) == [
            ("protection.name", "masked"),
            ("protection.reveal", "sites"),
        ]
        assert secfed("simulate", "s.toml", "--reveal", "aggregator", "--protection", "plain").exit_code == 0
        assert list(engine.replaced) == ["protection.reveal", "protection.name"]
        assert secfed("simulate", "s.toml", "--reveal", "nobody").exit_code == 2

    def test_nothing_is_replaced_unless_asked_for(self, engine: Engine) -> None:
        assert secfed("simulate", "s.toml").exit_code == 0
        asked = engine.asked
        assert (engine.replaced, asked.drops, asked.out, asked.compare) == ({}, [], None, None)
        assert asked.engine == EngineOptions()

    @pytest.mark.parametrize("text", ["tensorboard", "tensorboard:", "wandb:x"])
    def test_a_tracker_that_cannot_be_stops_before_the_study_is_read(self, engine: Engine, text: str) -> None:
        result = secfed("simulate", "s.toml", "--track", text)
        assert result.exit_code == 2
        assert "--track" in result.stderr
        assert not hasattr(engine, "file")

    @pytest.mark.parametrize(
        "uri",
        [
            "https://me:secret@tracker.example",
            "postgresql://host/db?user=me&password=secret",
            "postgresql://host/db?Pass%77ord=secret",
            "https://[secret",
        ],
    )
    def test_a_tracker_is_not_given_a_password_that_everybody_reads(self, engine: Engine, uri: str) -> None:
        result = secfed("simulate", "s.toml", "--track", f"mlflow:{uri}")
        assert result.exit_code == 2
        assert "holds a name or a password" in " ".join(result.stderr.split())
        assert "secret" not in result.stderr

    def test_a_malformed_drop_stops_before_the_study_is_even_read(self, engine: Engine) -> None:
        result = secfed("simulate", "s.toml", "--drop", "hospital-2@upload")
        assert result.exit_code == 2
        listed = "train, advertise, choose, share, confirm, mask, consistency, unmask"
        assert f"use one of: {listed}" in result.stderr
        assert not hasattr(engine, "file")

    def test_a_full_folder_stops_before_anything_runs(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text("{}")
        result = secfed("simulate", "s.toml", "--out", tmp_path)
        assert result.exit_code == 2
        assert "--overwrite" in result.stderr
        assert engine.asked is None
        assert secfed("simulate", "s.toml", "--out", tmp_path, "--overwrite").exit_code == 0
        assert json.loads((tmp_path / "run.json").read_text()) == engine.report.to_json()

    def test_a_late_error_leaves_the_earlier_run_whole(self, engine: Engine, tmp_path: Path) -> None:
        assert secfed("simulate", "s.toml", "--out", tmp_path / "run").exit_code == 0
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

        def fail() -> None:
            raise DataError("late", remedy="none")

        engine.fails = fail
        assert secfed("simulate", "s.toml", "--out", tmp_path / "run", "--overwrite").exit_code == 3
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    def test_an_unknown_comparison_is_refused(self, engine: Engine) -> None:
        assert secfed("simulate", "s.toml", "--compare", "apples").exit_code == 2


class TestOutput:
    def test_a_run_leaves_run_json_and_figures(self, engine: Engine, tmp_path: Path) -> None:
        secfed("simulate", "s.toml", "--out", tmp_path)
        assert (tmp_path / "figures" / "metrics.svg").exists()
        assert json.loads((tmp_path / "run.json").read_text())["study"] == "breast-cancer"

    @pytest.mark.parametrize(("name", "shown"), [("run", "{}/run"), ("my run", "'{}/my run'")])
    def test_it_ends_with_the_one_command_that_checks_everything_to_be_pasted(
        self, engine: Engine, tmp_path: Path, name: str, shown: str
    ) -> None:
        out = " ".join(secfed("simulate", "s.toml", "--out", tmp_path / name).stdout.split())
        assert out.endswith(f"check it with: secfed audit verify {shown.format(tmp_path)}")

    def test_json_prints_run_json_and_nothing_else(self, engine: Engine) -> None:
        result = secfed("simulate", "s.toml", "--json")
        assert json.loads(result.stdout) == engine.report.to_json()
        assert result.stderr == ""
        assert isinstance(engine.asked.observer, SilentObserver)

    def test_progress_goes_to_stderr_as_plain_lines_where_there_is_no_terminal(self, engine: Engine) -> None:
        result = secfed("simulate", "s.toml")
        assert result.stderr.splitlines()[:3] == [
            "breast-cancer: 4 hospitals, 5 rounds",
            "round 1/5: 4/4 survivors, 1.2 kB up per site, 0.258 s",
            "model after round 1/5: roc_auc 0.8000, accuracy 0.9000, loss 0.5000",
        ]
        last = result.stdout.rstrip("\n").splitlines()[-2:]
        assert last == ["Final model: roc_auc 0.9800 (untrained 0.5000)", engine.report.saw]
        assert "\x1b" not in result.stdout + result.stderr


class TestRealRun:
    STUDY = """
        [study]
        name = "small"
        rounds = 2
        [algorithm]
        name = "fedavg"
        [model]
        name = "logistic-regression"
        [data]
        name = "breast-cancer"
        sites = 4
        [protection]
        name = "plain"
    """

    def test_what_simulate_writes_transcript_verify_accepts_until_a_byte_changes(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "small.toml").write_text(self.STUDY)
        out = tmp_path / "run"
        ran = secfed(
            *("simulate", tmp_path / "small.toml", "--out", out, "--protection", "masked", "--json"),
            *("--drop", "hospital-2@mask:1"),
        )
        assert (ran.exit_code, ran.stderr) == (0, "")
        content = json.loads(ran.stdout)
        assert content == json.loads((out / "run.json").read_text())
        assert content["protection"] == "masked"
        assert content["rounds"][0]["survivors"] == ["hospital-1", "hospital-3", "hospital-4"]
        assert content["rounds"][0]["drops"] == [{"site": "hospital-2", "stage": "mask"}]
        expected = {"run.json", "study.json", "model.safetensors", "roster.json", "transcript.jsonl", "sites"}
        assert {path.name for path in out.iterdir()} == expected | {"figures"}
        drawn = {path.name for path in (out / "figures").iterdir()}
        assert drawn == {"metrics.svg", "participation.svg", "cost.svg"}
        assert secfed("transcript", "verify", out).exit_code == 0
        audited = secfed("audit", "verify", out)
        assert (audited.exit_code, audited.stderr) == (0, "")  # without privacy, too

        path = out / "sites" / "hospital-3" / "transcript.jsonl"
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        checked = secfed("transcript", "verify", out)
        assert checked.exit_code == 24
        last = len(data.splitlines())
        assert f"{path}, line {last}: " in checked.stderr

    def test_an_unknown_site_in_a_drop_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "small.toml").write_text(self.STUDY)
        result = secfed("simulate", tmp_path / "small.toml", "--drop", "hospital-9@mask")
        assert result.exit_code == 2
        assert "hospital-9" in result.stderr


class TestFailure:
    @pytest.mark.parametrize(
        "error",
        [
            ConfigError("study.rounds: is missing", remedy="add it"),
            DataError("no records.", remedy="check the path"),
            RoundAborted("too few sites", remedy="wait"),
            BudgetExceeded("spent", remedy="stop"),
            LinkError("gone"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_one_line_its_remedy_and_its_exit_code(self, engine: Engine, error: SecfedError) -> None:
        engine.fails = _raising(error)
        result = secfed("simulate", "s.toml", "--json")
        assert result.exit_code == error.exit_code
        remedy = [f"Remedy: {error.remedy}"] if error.remedy else []
        expected = [f"Error: {error.message.rstrip('.')}.", *remedy]
        assert result.stderr.splitlines() == expected
        assert result.stdout == ""

    @pytest.mark.parametrize(
        ("error", "code", "told"),
        [
            (
                ValueError("could not convert 'age 83, Mrs Miller'"),
                70,
                "Error: Internal error (ValueError).\nRemedy: run it again as: secfed --debug",
            ),
            (
                OSError(errno.ENOSPC, "No space left on device", "/data/model"),
                74,
                "Error: /data/model: No space left on device.\n",
            ),
            (MemoryError(), 74, "Error: Not enough memory, on this machine or its GPU.\nRemedy: use a"),
            (KeyboardInterrupt(), 130, "Error: Interrupted.\n"),
            (
                ConfigError("site '[b]x[/] \x1b[2J'"),
                2,
                "Error: site '[b]x[/] \N{REPLACEMENT CHARACTER}[2J'.\n",
            ),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    def test_a_failure_is_told_without_values_markup_or_control_characters(
        self, engine: Engine, error: BaseException, code: int, told: str
    ) -> None:
        engine.fails = _raising(error)
        result = secfed("simulate", "s.toml", "--json")
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith(told)
        assert not any(text in result.stderr for text in ("Miller", "\x1b", "Traceback"))

    @pytest.mark.parametrize("module", ["numpy", "torch"])
    def test_too_little_memory_is_said_in_words(self, engine: Engine, module: str) -> None:
        make = getattr(pytest.importorskip(module), "zeros")  # noqa: B009 - of either module
        engine.fails = lambda: make(1 << 45)
        result = secfed("simulate", "s.toml", "--json")
        assert result.exit_code == 74
        assert result.stderr.startswith("Error: Not enough memory, on this machine or its GPU.\n")

    def test_debug_shows_where_and_no_value(self, engine: Engine) -> None:
        def fails() -> None:
            try:
                int("age 83, Mrs Miller")
            except ValueError as error:
                error.add_note("Miller, too")
                raise KeyError("Mrs Miller") from error

        engine.fails = fails
        result = secfed("--debug", "simulate", "s.toml", "--json")
        assert result.exit_code == 70
        assert result.stderr.count("Traceback") == 2
        assert result.stderr.index("\nValueError (") < result.stderr.index("\nKeyError (")
        assert "test_simulate.py" in result.stderr
        assert "Mrs Miller" not in result.stderr.replace('"age 83, Mrs Miller"', "").replace(
            '"Mrs Miller"', ""
        )  # what stays are the lines of code above

    def test_wrong_usage_is_2(self) -> None:
        assert secfed("simulate").exit_code == 2
        assert secfed("simulat").exit_code == 2


def _raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail
