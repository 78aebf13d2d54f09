"""Kill -9 of a simulation at every named point that it passes: the same call goes on, to the same end."""

from __future__ import annotations

import importlib
import os
import re
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.audit.transcript_check import verify_run
from secfed.config.plugins import source_of
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError, RoundAborted
from secfed.records.roster_file import read_roster
from secfed.runs.run_folder import is_unfinished, remove_unfinished
from secfed.runs.run_report import RoundReport, RunReport
from secfed.server.coordinator import Position
from secfed.simulation import unfinished
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import _ended_by_its_own, simulate
from secfed.simulation.unfinished import Unfinished, left_in
from secfed.storage.failpoints import VARIABLE
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.kill import kills_itself
from tests.secfed.engine.test_engines import FORKS, _chains
from tests.secfed.engine.test_engines import _study as study_of
from tests.secfed.privacy_case import study as private_study

ROUNDS = 4
STATE = ("before its state is written", "after its state is written", "after its state is in place")
INLINE = EngineOptions()
AWAY = (Dropout("hospital-2", "train", 2),)  # under protections whose sums the sites open it has to catch up

STUDIES = {
    "state at the sites": study_of("scaffold"),
    "personal models": study_of("ditto"),
    "noise in local steps": private_study("record"),
    "noise for whole sites": private_study("site", epsilon=50.0),
    "closed": study_of().replace("protection.reveal", "sites"),
    "encrypted": study_of().replace("protection.name", "encrypted"),
}


@pytest.fixture(autouse=True)
def _kept_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "_FIRST_S", 0.0)
    monkeypatch.setattr(unfinished, "_WORK_PER_KEPT", 0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found: dict[str, tuple[Path, RunReport]] = {}

    def of(name: str) -> tuple[Path, RunReport]:
        if name not in found:
            out = tmp_path_factory.mktemp("undisturbed") / "run"
            found[name] = out, simulate(_study(name), out=out, drops=AWAY)
        return found[name]

    return of


def _study(name: str) -> Study:
    if name == "encrypted":
        pytest.importorskip("tenseal")
    return STUDIES[name].replace("study.rounds", ROUNDS)


def _killed_at(point: str, study: Study, out: Path, engine: EngineOptions) -> None:
    def work() -> None:
        os.environ[VARIABLE] = point
        torch.set_num_threads(1)
        simulate(study, out=out, drops=AWAY, engine=engine)

    kills_itself(work)


def _ends_alike(name: str, study: Study, out: Path, engine: EngineOptions, undisturbed: Any) -> None:
    whole, expected = undisturbed(name)
    seen: list[int] = []
    report = simulate(study, out=out, drops=AWAY, engine=engine, observer=lambda row: seen.append(row.round))
    assert set(seen) == set(range(1, ROUNDS + 1))  # those that are over are told of again
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert _chains(out) == _chains(whole)
    assert _without_times(report) == _without_times(expected)
    assert verify_run(out, read_roster(out / "roster.json")).problems == []
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}


def _without_times(report: RunReport) -> RunReport:
    def plain(row: RoundReport) -> RoundReport:
        return replace(row, seconds={})

    return replace(report, rounds=tuple(map(plain, report.rounds)), machine=None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "state at the sites" else pytest.mark.slow) for name in STUDIES],
)
def test_a_killed_run_goes_on_with_the_same_bytes(name: str, undisturbed: Any, tmp_path: Path) -> None:
    """Killed in three rounds, one after the other; each time the next process goes on."""
    study, out = _study(name), tmp_path / "run"
    undisturbed(name)  # first: what it found out about noise is found out in every fork
    for number in (1, 1, 2):  # states that a process writes until it is killed
        _killed_at(f"simulation: {STATE[2]}:{number}", study, out, INLINE)
        assert is_unfinished(out, study_id(study))
        assert stat.S_IMODE((out / "unfinished").stat().st_mode) == 0o600
    left = left_in(out)
    assert left is not None
    assert left.position > Position(4)  # some studies have no closing evaluation
    _ends_alike(name, study, out, INLINE, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("point", [f"simulation: {point}:2" for point in STATE[:2]])
@pytest.mark.parametrize("engine", [INLINE, FORKS], ids=["inline", "processes"])
def test_the_state_is_whole_or_the_one_before(
    point: str, engine: EngineOptions, undisturbed: Any, tmp_path: Path
) -> None:
    name = "noise in local steps"
    study, out = _study(name), tmp_path / "run"
    undisturbed(name)
    _killed_at(point, study, out, engine)
    left = left_in(out)
    assert left is not None
    assert left.position == Position(2)
    _ends_alike(name, study, out, FORKS if engine is INLINE else INLINE, undisturbed)  # either goes on


# In the middle of a round: what records say of it is cut off, and said again.
PASSED = {
    "noise in local steps": ["site: after paid:11"],
    "closed": [
        "site: after upload noted:11",
        "site: after sum noted:11",
        "aggregate: before a sum is stored:3",
        "aggregate: after a sum is stored:3",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "point"), [(name, point) for name in PASSED for point in PASSED[name]])
def test_a_kill_in_the_middle_of_a_round_changes_nothing(
    name: str, point: str, undisturbed: Any, tmp_path: Path
) -> None:
    study, out = _study(name), tmp_path / "run"
    undisturbed(name)
    _killed_at(point, study, out, INLINE)
    assert left_in(out) is not None
    _ends_alike(name, study, out, INLINE, undisturbed)


@pytest.mark.slow
def test_a_simulation_passes_no_other_named_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: set[str] = set()
    for module in list(sys.modules.values()):
        if module.__name__.startswith("secfed.") and hasattr(module, "failpoint"):
            monkeypatch.setattr(module, "failpoint", passed.add)
    for name in ("noise in local steps", "closed", "encrypted"):
        simulate(_study(name), out=tmp_path / name)
    named = {re.sub(r":\d+$", "", point) for points in PASSED.values() for point in points}
    assert passed == named | {f"simulation: {point}" for point in STATE}


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Study, Path]:
    study, out = _study("state at the sites"), tmp_path / "run"
    _killed_at(f"simulation: {STATE[2]}", study, out, INLINE)
    return study, out


def test_nothing_else_is_gone_on_with(killed: tuple[Study, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = killed
    before = (out / "unfinished").read_bytes()
    with pytest.raises(ConfigError, match=r"something differs since: --drop") as refused:
        simulate(study, out=out)
    assert "--overwrite" in (refused.value.remedy or "")
    with pytest.raises(ConfigError, match=r"differs since: --threads"):
        simulate(study, out=out, drops=AWAY, engine=EngineOptions(threads=2))
    monkeypatch.setattr("secfed.simulation.unfinished.machine", _another_machine)
    with pytest.raises(ConfigError, match=r"differs since: secfed, machine"):
        simulate(study, out=out, drops=AWAY)
    assert (out / "unfinished").read_bytes() == before


def _another_machine(_threads: int) -> dict[str, Any]:
    return dict.fromkeys(("build", "packages", "processor", "system", "python"), "another")


def test_other_records_or_own_code_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a study's digest does not cover: the table that it reads, and the modules beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("own_of_this_test.py", "def net(): ...\n"), ("table.csv", "a\n")):
        (tmp_path / name).write_text(text)
    name = "own_of_this_test:net"
    assert source_of(name) is None  # of code that is in no file, nobody can tell whether it changed
    importlib.import_module("own_of_this_test")
    before = source_of(name), unfinished._dated(tmp_path / "table.csv")
    (tmp_path / "beside_it.py").write_text("x = 1\n")
    (tmp_path / "table.csv").write_text("ab\n")
    after = source_of(name), unfinished._dated(tmp_path / "table.csv")
    assert all(one is not None and one != other for one, other in zip(before, after, strict=True))


def test_a_file_that_is_changed_in_place_in_a_folder_of_data_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "hospital" / "images"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(b"1")
    before = unfinished._dated(tmp_path)
    assert unfinished._dated(tmp_path) == before
    (folder / "a.png").write_bytes(b"22")
    assert unfinished._dated(tmp_path) != before


def test_what_changes_while_the_first_round_runs_is_no_part_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run is made with is read before its first round, not when it is first kept."""
    code, out = tmp_path / "own.py", tmp_path / "run"
    code.write_text("as it was begun with")
    module = sys.modules["secfed.simulation.simulate"]
    monkeypatch.setattr(module, "stamp_of", lambda *_given: {"own code": code.read_text()})

    def observer(report: RoundReport) -> None:
        code.write_text("changed since")
        if report.round > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(_study("state at the sites"), out=out, observer=observer)
    left = left_in(out)
    assert left is not None
    assert left.stamp == {"own code": "as it was begun with"}


def test_a_state_that_is_not_whole_is_none(killed: tuple[Study, Path]) -> None:
    _, out = killed
    data = (out / "unfinished").read_bytes()
    assert left_in(out) is not None
    (out / "unfinished").write_bytes(data[:-1])
    assert left_in(out) is None
    (out / "unfinished").write_bytes(data)
    transcript = out / "transcript.jsonl"
    transcript.write_bytes(transcript.read_bytes()[:100])  # the machine went down, and lost lines
    assert left_in(out) is None
    remove_unfinished(out)
    assert not (out / "unfinished").exists()


def test_a_study_that_came_to_nothing_begins_again(tmp_path: Path) -> None:
    study, out = _study("state at the sites"), tmp_path / "run"
    away = [Dropout(f"hospital-{number}", "train") for number in (1, 2, 3)]
    with pytest.raises(RoundAborted):
        simulate(study, out=out, drops=away)
    assert left_in(out) is None


@pytest.mark.parametrize(("own_code", "stays"), [(True, False), (False, True)])
def test_own_code_that_failed_begins_again(killed: tuple[Study, Path], own_code: bool, stays: bool) -> None:
    """What fails elsewhere outside secfed, as an observer, leaves the run to go on with."""
    _, out = killed
    with pytest.raises(ZeroDivisionError), _ended_by_its_own(Unfinished(out, {}), own_code=own_code):
        raise ZeroDivisionError
    assert (out / "unfinished").exists() == stays


def test_to_keep_costs_a_fiftieth_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    (tmp_path / "transcript.jsonl").write_bytes(b"x\n")
    kept = Unfinished(tmp_path, {})

    def collect() -> Any:
        now[0] += 0.25
        return {}, {}, [tmp_path / "transcript.jsonl"]

    kept.collect = collect
    assert not kept.is_due(Position(2))  # a short run is as quickly begun again
    now[0] += 1.0
    assert not kept.is_due(Position(2, 1))
    assert not kept.is_due(Position(1))
    assert kept.is_due(Position(2))
    kept.keep(Position(2), {"w": torch.zeros(2)}, {})
    now[0] += 12.4
    assert not kept.is_due(Position(3))
    now[0] += 0.1
    assert kept.is_due(Position(3))
