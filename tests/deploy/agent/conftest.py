"""A study centre with its hospitals; training in this process for tests that are not about training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent import training
from tests.deploy.agent_case import Centre
from tests.deploy.training_here import TrainingHere
from tests.forks import Fork


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", Fork)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path)
    yield made
    made.close()


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "TrainingProcess", TrainingHere)
