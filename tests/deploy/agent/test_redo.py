"""Local work whose result was not kept: done again, it is the same release and not another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.crypto.identity import Identity
from secfed.deploy.agent.training import TrainingProcess
from secfed.engine.wire import Job
from secfed.errors import BudgetExceeded, ConfigError
from secfed.site.durable_store import DurableStore
from secfed.site.journal import Journal
from secfed.storage.signed_files import SignedFiles
from tests.deploy.agent.test_training import Book, _work
from tests.deploy.agent_case import NAMES, PRIVATE

TOML = PRIVATE.replace("rounds = 1", "rounds = 4")
STUDY = "tiny-id"
DIGEST = bytes(32)


class Hospital:
    """A training process and the memory that it works from."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.sqlite")
        self.files = SignedFiles(folder / "work", Identity.generate(NAMES[0]), STUDY)
        self.memory = DurableStore(self.files, self.journal, STUDY)
        self.book = Book(9)
        self.process = TrainingProcess(
            Job(site=NAMES[0], settings=TOML, study=STUDY),
            gpu=False,
            log_path=folder / "training.log",
            local_key=self.memory.local_key,
            ledger=self.book,  # type: ignore[arg-type]
            stored=self.memory.program,
        )
        self.exchange, self.state = _work(TOML)

    def work(self, number: int) -> dict[str, Any]:
        """What a site does up to the point where its contribution is kept."""
        self.memory.begin((number, 0), DIGEST)
        return dict(self.process.contribute(number, self.exchange, self.state))

    def keep(self, given: dict[str, Any]) -> None:
        self.memory.keep(given, self.process.save)

    @property
    def pid(self) -> int:
        return self.process._process.pid

    def close(self) -> None:
        self.process.close()
        self.journal.close()


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    made = Hospital(tmp_path)
    yield made
    made.close()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_full_disk_after_the_work_costs_a_new_process_and_no_second_release(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital.keep(hospital.work(1))
    first, norm = hospital.work(2), dict(hospital.process.kept)
    alive = hospital.pid
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise ConfigError("no space left on the device")

        patched.setattr(hospital.files, "write", full)
        with pytest.raises(ConfigError):
            hospital.keep(first)
    again = hospital.work(2)  # the aggregator asks once more
    assert same(again, first)
    assert dict(hospital.process.kept) == norm
    assert hospital.pid != alive
    # Once it is kept, the process stays.
    hospital.keep(again)
    alive = hospital.pid
    third = hospital.work(3)
    assert hospital.pid == alive
    assert float(hospital.process.kept["clip_norm/train"]) != float(norm["clip_norm/train"])
    assert not same(third, again)
    # A failure in the middle: nobody knows how far the process got.
    hospital.keep(third)
    hospital.book.left = 0
    with pytest.raises(BudgetExceeded):
        hospital.work(4)
    assert hospital.process._process is None
