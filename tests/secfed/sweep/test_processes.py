"""Runs as real processes: the same files as ``secfed simulate``, and a sweep killed in the middle."""

from __future__ import annotations

import csv
import errno
import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from secfed.bench.processes import other_process
from secfed.errors import DataError
from secfed.runs.figures import write_figures
from secfed.runs.run_folder import prepare
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.sweep import processes
from secfed.sweep.child import carry_out, note_failure
from secfed.sweep.engine import run_sweep
from secfed.sweep.plan import make_plan, read_study
from secfed.sweep.processes import ChildProcess, ProcessRunner
from secfed.sweep.store import STUDY_FILE
from secfed.terminal.live_rounds import LineObserver
from tests.conftest import ROOT
from tests.forks import Fork
from tests.secfed.sweep_case import STUDY, PretendingRunner, plan, sweep_file

TWO_SEEDS = STUDY + "[sweep]\nseeds = [1, 2]\n"
PATIENCE_S = 120.0


def wait_for(fact: Callable[[], bool]) -> None:
    """Wait for something that must come; the limit only keeps a broken test from waiting for ever."""
    end = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def statuses(out: Path) -> list[str]:
    try:
        with (out / "results.csv").open(newline="") as lines:
            return [row["status"] for row in csv.DictReader(lines)]
    except FileNotFoundError:
        return []


def processes_naming(text: str) -> list[int]:
    """Processes with this text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if text.encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_kill_9_loses_only_what_was_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    (tmp_path / "sweep.toml").write_text(TWO_SEEDS)
    sweep_toml = str(tmp_path / "sweep.toml")
    command = [sys.executable, "-m", "tests.secfed.sweep_case", "sweep", sweep_toml, "--out", str(out)]
    first, second = plan(TWO_SEEDS).runs
    run_sweep(plan(STUDY + "[sweep]\nseeds = [1]\n"), out, jobs=1, runner=PretendingRunner())
    half_done = out / "runs" / f"{second.folder}.part"
    with Fork(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
        wait_for(lambda: statuses(out) == ["done", "running"] or sweep.poll() is not None)
        wait_for(lambda: bool(processes_naming(str(half_done))))
        sweep.send_signal(signal.SIGKILL)
    # The run that nobody waits for any more ends by itself, and leaves no result.
    wait_for(lambda: not processes_naming(str(half_done)))
    assert half_done.is_dir()
    assert not (out / "runs" / second.folder).exists()
    finished = out / "runs" / first.folder
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert finished / "run.json" in before

    monkeypatch.setattr(processes.subprocess, "Popen", Fork)  # the run above was started by its command
    rows = run_sweep(make_plan(sweep_file(TWO_SEEDS)), out, jobs=2, runner=ProcessRunner(tmp_path))
    assert [row.status for row in rows] == ["done", "done"]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    assert not half_done.exists()
    # What a process computes is what this process computes.
    here = simulate(read_study(second.text, tmp_path), out=None, drops=[], observer=SilentObserver())
    assert rows[1].metrics == pytest.approx(here.final, abs=0)
    assert "round 1/1" in (out / "runs" / second.folder / "log.txt").read_text()


def test_runs_that_fail_in_their_processes_say_why_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.subprocess, "Popen", Fork)
    (tmp_path / "ward.py").write_text("person = 'Mrs Miller'\ndef data():\n    raise ValueError(person)\n")
    started = {}
    for name, old, new in (
        ("too-few", "sites = 4", "sites = 1"),
        ("full-disk", '"breast-cancer"\nsites = 4', '"ward:data"'),
    ):
        part = tmp_path / f"{name}.part"
        part.mkdir()
        (part / STUDY_FILE).write_text(STUDY.replace(old, new))
        if name == "full-disk":
            (part / "failure.json.part").mkdir()
        started[name] = ProcessRunner(tmp_path).start(plan(TWO_SEEDS).runs[0], part)
    for running in started.values():
        wait_for(running.over)
        assert (running.process.returncode, running.signal()) == (2, "")
    failure = json.loads((tmp_path / "too-few.part" / "failure.json").read_text())
    assert failure["error"] == "ConfigError"
    assert "data.sites" in failure["message"]
    log = started["full-disk"].log.read_text()
    assert "ConfigError; it could not be written down" in log
    assert "Miller" not in log


class TestCarryingOut:
    def test_leaves_what_simulate_leaves(self, tmp_path: Path) -> None:
        run = plan(TWO_SEEDS).runs[0]
        study = read_study(run.text, tmp_path)
        part = tmp_path / "run.part"
        part.mkdir()
        with (part / "log.txt").open("w") as log:
            carry_out(study, part, log=log)
        done = tmp_path / "run"
        assert not part.exists()
        assert json.loads((done / "finished.json").read_text())["study_digest"] == run.digest

        out = tmp_path / "simulated"
        prepare(out, overwrite=False)
        report = simulate(study, out=out, drops=[], observer=SilentObserver())
        write_figures(report, out / "figures")
        files = {path.relative_to(out) for path in out.rglob("*")}
        ours = {path.relative_to(done) for path in done.rglob("*")}
        assert ours - files == {Path("log.txt"), Path("finished.json")}
        assert files <= ours
        assert (done / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()

    def test_a_failed_run_keeps_its_unfinished_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: LineObserver, *given: object) -> None:
            raise DataError("no records")

        monkeypatch.setattr(LineObserver, "started", fail)
        part = tmp_path / "run.part"
        part.mkdir()
        with (part / "log.txt").open("w") as log, pytest.raises(DataError):
            carry_out(read_study(plan(TWO_SEEDS).runs[0].text, tmp_path), part, log=log)
        assert part.is_dir()
        assert not (part / "finished.json").exists()

    @pytest.mark.parametrize("debug", [False, True])
    def test_of_an_unexpected_error_its_place_is_told_and_never_its_text(
        self, tmp_path: Path, debug: bool
    ) -> None:
        def read(person: str) -> int:
            try:
                return int(person)
            except ValueError as error:
                raise KeyError(person) from error

        value = "age 83, Mrs Miller"  # a traceback shows the lines of the code
        with pytest.raises(KeyError) as caught:
            read(value)
        note_failure(tmp_path, caught.value, debug=debug)
        text = (tmp_path / "failure.json").read_text()
        assert "Miller" not in text
        found = json.loads(text)
        assert found["error"] == "KeyError"
        assert "secfed --debug sweep" in found["message"]
        assert ("traceback" in found) == debug
        if debug:
            assert found["traceback"].count(f'File "{__file__}", line') == 3
            assert "ValueError (its text is left out)" in found["traceback"]

    def test_an_expected_error_is_told_with_debug_too(self, tmp_path: Path) -> None:
        note_failure(tmp_path, DataError("site 'a' has no records", remedy="leave it out"), debug=True)
        found = json.loads((tmp_path / "failure.json").read_text())
        assert found["message"] == "site 'a' has no records. Remedy: leave it out"
        assert "secfed.errors.DataError" in found["traceback"]


class TestChildProcess:
    @pytest.fixture
    def child(self, tmp_path: Path) -> ChildProcess:
        command = ["/bin/sh", "-c", "echo first; echo second; echo; sleep 600 & sleep 600"]
        log = tmp_path / "log.txt"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, start_new_session=True)
        return ChildProcess(process, log)

    def test_stop_ends_the_process_and_its_workers(self, child: ChildProcess) -> None:
        wait_for(lambda: child.now() == "second")
        assert not child.over()
        child.stop()
        assert child.over()
        assert child.signal() == "SIGKILL"
        wait_for(lambda: not group_members(child.process.pid))
        child.stop()  # a second time does nothing

    def test_a_signal_without_a_name_is_told_by_its_number(self, child: ChildProcess) -> None:
        number = signal.SIGRTMIN + 1
        wait_for(lambda: child.now() == "second")
        os.killpg(child.process.pid, number)
        wait_for(child.over)
        assert child.signal() == f"signal {number:d}"

    def test_now_is_the_last_line_that_says_something(self, child: ChildProcess) -> None:
        wait_for(lambda: child.now() == "second")
        child.log.rename(child.log.with_suffix(".old"))
        assert child.now() == "finished"
        child.log.touch()
        assert child.now() == "starting"
        child.stop()


def group_members(group: int) -> bool:
    """Whether a living process belongs to the group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def test_an_error_of_the_operating_system_is_told_by_path_and_reason(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "Mrs Miller", "weights.safetensors")
    note_failure(tmp_path, error, debug=False)
    message = json.loads((tmp_path / "failure.json").read_text())["message"]
    assert message.startswith("weights.safetensors: No space left on device. Remedy: check the path")
    assert "Miller" not in message


def test_a_process_of_a_benchmark_that_dies_is_noticed_and_hides_no_error() -> None:
    def ask() -> object:  # operator.index takes no pipe
        with other_process(operator.index) as pipe:
            return pipe.recv() if pipe.poll(120) else None

    with pytest.raises(EOFError):
        ask()
