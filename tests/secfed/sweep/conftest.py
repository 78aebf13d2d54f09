"""Nobody waits between two looks at a job that only pretends, or for the dots of a figure."""

from __future__ import annotations

import pytest

from secfed.sweep import figure, jobs


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_POLL_S", 0.005)
    monkeypatch.setattr(figure, "_PNG_DPI", 20)
