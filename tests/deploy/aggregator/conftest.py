"""Crashes here end a process and not the machine, and hospitals are closed when a test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.deploy.central_case import ALIVE


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what was written is there, synchronised or not
    yield
    while ALIVE:
        ALIVE.pop().close()
