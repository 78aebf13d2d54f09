"""Nobody waits between two looks at a job that only pretends."""

from __future__ import annotations

import pytest

from secfed.sweep import jobs


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_POLL_S", 0.005)
