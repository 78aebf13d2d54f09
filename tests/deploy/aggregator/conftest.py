"""Hospitals are closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.central_case import ALIVE


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while ALIVE:
        ALIVE.pop().close()
