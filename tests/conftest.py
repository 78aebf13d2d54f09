"""What every test shares: one thread per process, one hypothesis profile, and the optional data folder."""

from __future__ import annotations

import gc
import os
import random
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What hundreds of processes import is compiled once, whatever the shell asks for.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Looking for garbage among all that is imported and collected, again and again, took a tenth of the time.
gc.set_threshold(50_000, 20, 50)


def _without_the_disk(descriptor: int) -> None:
    """What is left of ``os.fsync``: an error for a file that is closed."""
    os.fstat(descriptor)


# What a test wrote is there, synchronised or not: here processes end, and never the machine. Nobody waits for
# the disk; tests of a pulled plug watch these calls and cut what was not synchronised.
os.fsync = _without_the_disk


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One thread, one hypothesis profile; the process that only hands out tests waits for no import."""
    if config.getoption("numprocesses", None):
        return
    import hypothesis
    import torch

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--order-seed N``: for `make stress`, which shows that neither order nor seed matters."""
    parser.addoption(
        "--order-seed",
        type=int,
        help="shuffle the files, and the tests of each, by this number; begin every test from it",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin every test from one random state, whatever ran before; skip what lacks its data folder."""
    seed = item.config.getoption("order_seed") or 0
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes a whole stack for absent devices
    folder = shared_data_folder()
    if item.get_closest_marker("shared_data") and not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set SECFED_DATA to a folder with the shared data sets")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle, if asked; leave out tests marked ``slow`` unless asked for with ``-m``, ``-k`` or by path."""
    if (seed := config.getoption("order_seed")) is not None:
        # Within its file each test may be anywhere; whole files, or what a file shares would be made again.
        shuffled = random.Random(seed)
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        shuffled.shuffle(files)
        for tests in files:
            shuffled.shuffle(tests)
        items[:] = [item for tests in files for item in tests]
    if config.option.markexpr or config.option.keyword or any("::" in arg for arg in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish() -> None:
    """Nothing that is there before the first test is garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole runs of files for a process, so that what a file shares is made once; then who is idle helps."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


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


@pytest.fixture(autouse=True)
def policies_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes a policy while a test reads it."""
    if (module := sys.modules.get("secfed.deploy.policy.policy_file")) is not None:
        monkeypatch.setattr(module, "SETTLED_S", 0.0)
