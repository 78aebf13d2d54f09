"""Durable studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.secfed.durable_case import Begun, Consortium, study


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begun]:
    """Begins a study in a folder of its own, and closes it in the end."""
    made: list[Consortium] = []

    def begin(protected: str, unit: str | None = None, **more: Any) -> Consortium:
        made.append(Consortium(study(protected, unit), tmp_path / f"study-{len(made)}", **more))
        return made[-1]

    yield begin
    for consortium in made:
        consortium.close()
