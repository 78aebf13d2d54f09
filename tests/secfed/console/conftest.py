"""A hospital with its past, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.secfed.console.console_case import Opened, hospital_console, write_hospital


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change nothing."""
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder)
    return folder


@pytest.fixture
def opened(written: Path, tmp_path: Path) -> Opened:
    """A console over a copy that a test may change."""
    return hospital_console(Path(shutil.copytree(written, tmp_path / "copy", copy_function=shutil.copy2)))
