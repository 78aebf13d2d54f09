"""A hospital with its past, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.secfed.console.console_case import Opened, hospital_console, write_hospital

if TYPE_CHECKING:  # they need the extra oidc
    from tests.secfed.console.provider_case import Provider
    from tests.secfed.console.sign_in_case import Case


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change nothing."""
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder)
    return folder


@pytest.fixture
def opened(written: Path, tmp_path: Path) -> Opened:
    """A console over a copy that a test may change."""
    return hospital_console(Path(shutil.copytree(written, tmp_path / "opened", copy_function=shutil.copy2)))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of what :func:`written` is."""
    return Path(shutil.copytree(written, tmp_path / "copy", copy_function=shutil.copy2))


@pytest.fixture(scope="session")
def running() -> Iterator[Provider]:
    from tests.secfed.console.provider_case import provider

    with provider() as made:
        yield made


@pytest.fixture
def provider(running: Provider) -> Provider:
    """An identity provider as it should be; a test may change it."""
    running.begin_anew()
    return running


@pytest.fixture
def case(folder: Path, provider: Provider) -> Case:
    """A console whose people sign in there."""
    from tests.secfed.console.sign_in_case import Case

    return Case(folder, provider)
