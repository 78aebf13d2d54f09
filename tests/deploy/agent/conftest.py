"""Here processes die by exceptions: what they wrote is there without waiting for the disk."""

from __future__ import annotations

import os

import pytest

from secfed.deploy.agent import training
from tests.forks import Fork


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", Fork)
