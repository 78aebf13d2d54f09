"""The example's folders and the reports on them, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secfed.audit.privacy.evidence import Report
from secfed.audit.render.html import to_html
from tests.dp.report_case import Case, hostile_report, report, studies, write_case


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_case(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="session")
def written(example: Case) -> Path:
    """The example's folder, for tests that only read it."""
    return example.root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """A copy of the example that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "case"))


@pytest.fixture(scope="session")
def made(written: Path) -> Report:
    return report(*studies(written))


@pytest.fixture(scope="session")
def page(made: Report) -> str:
    return to_html(made)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return hostile_report(tmp_path_factory.mktemp("hostile"))
