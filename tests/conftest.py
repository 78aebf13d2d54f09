"""What every test shares: one thread per process, one hypothesis profile, and the optional data folder."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

# The suite runs one process per core; a second thread in each would only wait for the first.
torch.set_num_threads(1)

# Deadlines and "too slow" measure the machine's other work, not the code; the suite never asserts on
# seconds. In CI the examples are derived from the test itself, so that a red run is red again at home.
hypothesis.settings.register_profile(
    "secfed",
    deadline=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
hypothesis.settings.load_profile("secfed")


def shared_data_folder() -> Path:
    """Where the optional data sets are: ``SECFED_DATA``, or ``../shared/data`` beside the repository."""
    return Path(os.environ.get("SECFED_DATA") or ROOT.parent / "shared" / "data")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``shared_data`` where the folder is absent."""
    folder = shared_data_folder()
    if item.get_closest_marker("shared_data") and not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set SECFED_DATA to a folder with the shared data sets")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked ``slow`` unless they were asked for with ``-m``, ``-k`` or by their path."""
    if config.option.markexpr or config.option.keyword or any("::" in arg for arg in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return ROOT


@pytest.fixture
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder with the optional data sets; the test must carry ``@pytest.mark.shared_data``."""
    if not request.node.get_closest_marker("shared_data"):
        raise pytest.UsageError(f"{request.node.nodeid} uses shared_data: mark it @pytest.mark.shared_data")
    return shared_data_folder()
