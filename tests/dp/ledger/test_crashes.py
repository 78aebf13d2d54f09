"""The ledger when the plug is pulled, the disk is full, or several studies spend at once."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp, statement
from secfed.dp.ledger.ledger import RECOVERED, SPENT, spent_of
from secfed.errors import BudgetExceeded, TranscriptError
from secfed.records import chain_file
from secfed.records.chain_file import ChainFile
from tests.dp import ledger_child
from tests.dp.ledger_child import EVENT
from tests.dp.wards import ADD, audit, book, kinds, read, spend
from tests.kill import at_once, failing, killed_after, kills_itself

# Python 3.12 and later warn about every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def crash_here(path: Path, point: str, torn_bytes: int = 0) -> None:
    kills_itself(lambda: ledger_child.main(path, "crash", point, str(torn_bytes)))


def check_after_crash(path: Path, paid: int, *, torn: bool) -> None:
    ledger = ledger_child.ledger(path)
    assert len(spent_of(read(path))) == paid
    ledger.spend(EVENT, study="s", round_number=100, exchange="update")
    assert len(spent_of(read(path))) == paid + 1
    assert (RECOVERED in kinds(path)) is torn


def test_kill_minus_nine_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    spend(book(path))
    command = [sys.executable, "-m", "tests.dp.ledger_child", str(path), "crash", "torn", "50"]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    check_after_crash(path, 1, torn=True)


@pytest.mark.parametrize("point", ["before", "unsynced", "synced"])
def test_kill_minus_nine_at_each_write_point(tmp_path: Path, point: str) -> None:
    path = tmp_path / "ledger"
    spend(book(path))
    crash_here(path, point)
    # What was written whole counts as spent, whether or not the step ever ran: the safe side.
    check_after_crash(path, 1 if point == "before" else 2, torn=False)


def test_kill_minus_nine_after_any_number_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    spend(book(path))
    start = path.read_bytes()
    crash_here(path, "synced")
    line = path.read_bytes()[len(start) :]
    for size in sorted({1, 2, 7, len(line) // 2, len(line) - 2, *range(1, len(line) - 1, 211)}):
        path.write_bytes(start)
        crash_here(path, "torn", size)
        assert path.read_bytes() == start + line[:size]
        check_after_crash(path, 1, torn=True)
    path.write_bytes(start)
    crash_here(path, "torn", len(line) - 1)  # whole but for its newline: it is kept and completed
    check_after_crash(path, 2, torn=False)


def random_kills(path: Path, count: int, seed: int) -> None:
    """Kill a spending process at random moments; what it reported as paid is always in the ledger."""
    rng = random.Random(seed)
    told: list[str] = []
    for attempt in range(count):
        pay = partial(ledger_child.main, path, "spend", "50", f"study-{attempt}")
        told += killed_after(rng.uniform(0.0, 0.05), pay).splitlines()
        ledger_child.ledger(path)  # repairs, or the reading below fails
        entries = read(path)
        paid = [f"{one.body['study']} {one.body['round']}" for one in entries if one.kind == SPENT]
        assert set(told) <= set(paid)
        assert len(paid) == len(set(paid))
        assert len(paid) <= len(told) + attempt + 1  # at most one unreported payment per kill


def test_kill_minus_nine_at_random_points(tmp_path: Path) -> None:
    random_kills(tmp_path / "ledger", 8, seed=1)


@pytest.mark.slow
def test_kill_minus_nine_at_200_random_points(tmp_path: Path) -> None:
    random_kills(tmp_path / "ledger", 200, seed=2)


class FullDisk(ChainFile):
    """A disk that takes some bytes of a line and then has no room."""

    room_bytes = 0
    failing = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        real = self._file

        class Narrow:
            def write(self, data: memoryview) -> int:
                if not FullDisk.failing:
                    return real.write(data) or 0
                if FullDisk.room_bytes == 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                taken = real.write(data[: FullDisk.room_bytes]) or 0
                FullDisk.room_bytes = 0
                return taken

            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

        self._file = Narrow()  # type: ignore[assignment]


@pytest.mark.parametrize("room_bytes", [0, 1, 200])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, room_bytes: int) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, open_file=FullDisk)
    spend(ledger)
    before = path.read_bytes()
    FullDisk.failing, FullDisk.room_bytes = True, room_bytes
    try:
        with pytest.raises(TranscriptError, match="No space left") as error:
            spend(ledger, round_number=2)
        assert "free space" in error.value.remedy
    finally:
        FullDisk.failing = False
    assert path.read_bytes() == before
    spend(ledger, round_number=2)
    assert len(spent_of(read(path))) == 2


def test_a_failing_fsync_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = book(tmp_path / "ledger")
    before = (tmp_path / "ledger").read_bytes()
    monkeypatch.setattr(chain_file.os, "fsync", failing(errno.EIO))
    with pytest.raises(TranscriptError, match="Input/output error"):
        spend(ledger)
    monkeypatch.undo()
    assert (tmp_path / "ledger").read_bytes() == before


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="nowhere"):
        book(tmp_path / "nowhere" / "ledger")


def test_concurrent_studies_share_one_budget_exactly(tmp_path: Path) -> None:
    """Three processes spend at once; together they get what one would have got."""
    path = tmp_path / "ledger"
    ledger_child.ledger(path)
    at_once([partial(ledger_child.main, path, "spend", "15", study) for study in ("a", "b", "c")])
    found = spent_of(read(path))
    assert len(found) == 45
    audit(read(path)[:6], Rdp())


def test_concurrent_studies_cannot_overspend(tmp_path: Path) -> None:
    path, limit = tmp_path / "ledger", Budget(1.5, 1e-5)
    outcomes: list[str] = []

    def work(name: str) -> None:
        ledger = book(path, limit)
        for number in range(6):
            try:
                ledger.spend(Gaussian(ADD, 8.0, 1), study=name, round_number=number, exchange="update")
                outcomes.append("paid")
            except BudgetExceeded:
                outcomes.append("refused")

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    affordable = 0
    while statement([Gaussian(ADD, 8.0, affordable + 1)], 1e-5, Rdp()).epsilon <= 1.5:
        affordable += 1
    assert 0 < affordable < 12
    assert outcomes.count("paid") == affordable
    assert len(spent_of(read(path))) == affordable


def test_a_held_lock_is_reported(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", lock_timeout_s=0.0)
    with ledger._writing(), pytest.raises(TranscriptError, match="no turn came in 0 s") as caught:
        spend(ledger)
    assert str(tmp_path / "ledger") in caught.value.message
    assert "try again" in caught.value.remedy
