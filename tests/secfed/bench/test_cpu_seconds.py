"""Processor seconds by kind of process, of processes that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secfed.bench import cpu_seconds


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_seconds, "_PROC", tmp_path / "proc")
    return tmp_path / "proc"


def _process(proc: Path, number: int, parent: int, user: int, system: int, *command: str) -> None:
    folder = proc / str(number)
    folder.mkdir(parents=True)
    before = " ".join(["0"] * 9)
    (folder / "stat").write_text(f"{number} (odd ) name) S {parent} {before} {user} {system} 0 0")
    (folder / "cmdline").write_text("\0".join(command) + "\0")


def test_kinds_are_told_apart_down_to_grandchildren(proc: Path) -> None:
    own = os.getpid()
    _process(proc, own, 1, 100, 50, "python", "secfed", "bench")
    _process(proc, own + 1, own, 200, 0, "python", "secfed", "bench")  # a fork
    _process(proc, own + 2, own, 30, 10, "/opt/ray/raylet/raylet", "--port=0")
    _process(proc, own + 3, own + 2, 300, 0, "ray::_Actor.ask")
    _process(proc, own + 4, own, 5, 1, "python", "-u", "/opt/ray/log_monitor.py", "--x")
    _process(proc, own + 5, 1, 999, 999, "python", "secfed", "bench")  # somebody else's
    found = cpu_seconds.cpu_by_kind()
    assert found == {"driver": 1.5, "workers": 5.0, "raylet": 0.4, "log_monitor.py": 0.06}


def test_without_proc_nothing_is_said(proc: Path) -> None:
    assert not proc.exists()
    assert cpu_seconds.cpu_by_kind() == {}


def test_a_round_is_a_share_of_what_was_spent_since() -> None:
    spent = cpu_seconds.per_round({"driver": 1.0}, {"driver": 3.0, "workers": 4.0}, 4)
    assert spent == {"driver": 0.5, "workers": 1.0}
