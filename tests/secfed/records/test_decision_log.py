"""The decision log's file: plugs that are pulled, full disks, tampering, and two processes at once."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from secfed.dp.ledger.ledger import LEDGER
from secfed.errors import TranscriptError
from secfed.records import chain_file
from secfed.records.chain_file import RESTORE
from secfed.records.decision_log import DECISIONS
from secfed.records.decision_state import RECOVERED, REFUSED, DecisionState
from secfed.records.hash_chain import BrokenChain, ChainType, Entry, verify_chain
from secfed.records.transcript import TRANSCRIPT
from tests.kill import at_once, failing, killed_after, kills_itself
from tests.secfed import decision_case
from tests.secfed.decision_case import IDENTITY, NOW_S, kinds, log, read, refuse

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def crash_here(path: Path, point: str, torn_bytes: int = 0) -> None:
    kills_itself(lambda: decision_case.main(path, "crash", point, str(torn_bytes)))


def names(path: Path) -> list[str]:
    return [str(entry.body["name"]) for entry in read(path) if entry.kind == REFUSED]


def test_an_entry_is_there_when_the_call_returns_and_says_when(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    made = log(path)
    refuse(made, "heart", "privacy.epsilon")
    refuse(made, "heart", "privacy.epsilon")  # nothing new
    opened, refused = read(path)
    assert opened.body == {"owner": "clinic", "time_s": NOW_S}
    assert refused.body["keys"] == ["privacy.epsilon"]
    assert refused.body["time_s"] == NOW_S


def test_kill_minus_nine_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    refuse(log(path), "first")
    command = [sys.executable, "-m", "tests.secfed.decision_case", str(path), "crash", "torn", "50"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    refuse(log(path), "second")
    assert kinds(path) == ["opened", REFUSED, RECOVERED, REFUSED]
    assert names(path) == ["first", "second"]


@pytest.mark.parametrize("point", ["before", "unsynced", "synced"])
def test_kill_minus_nine_at_each_write_point(tmp_path: Path, point: str) -> None:
    path = tmp_path / "log"
    refuse(log(path), "first")
    crash_here(path, point)
    refuse(log(path), "second")
    assert names(path) == (["first", "second"] if point == "before" else ["first", "crashed", "second"])


def test_kill_minus_nine_after_any_number_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    refuse(log(path), "first")
    start = path.read_bytes()
    crash_here(path, "synced")
    line = path.read_bytes()[len(start) :]
    for size in sorted({1, 2, len(line) // 2, len(line) - 2, *range(1, len(line) - 1, 149)}):
        path.write_bytes(start)
        crash_here(path, "torn", size)
        assert path.read_bytes() == start + line[:size]
        refuse(log(path), "second")
        assert names(path) == ["first", "second"]
        assert RECOVERED in kinds(path)


def test_kill_minus_nine_at_random_moments(tmp_path: Path) -> None:
    """What a process said to have written is in the log for ever."""
    path, rng, told = tmp_path / "log", random.Random(1), []
    for attempt in range(8):
        write = partial(decision_case.main, path, "write", "12", f"study{attempt}")  # a day has room for 100
        told += killed_after(rng.uniform(0.0, 0.05), write).split()
        log(path).state()  # repairs, or the reading below fails
        found = names(path)
        assert set(told) <= set(found)
        assert len(found) == len(set(found))


def test_two_processes_at_once_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path).state()
    at_once([partial(decision_case.main, path, "write", "20", study) for study in ("a", "b")])
    assert sorted(names(path)) == sorted(f"{study}-{number}" for study in "ab" for number in range(20))


def test_two_that_see_the_same_write_it_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    agent, command = log(path), log(path)
    agent.state()
    command.state()
    refuse(command, "heart")
    refuse(agent, "heart")  # what it knew was older; under the lock it looks again
    assert names(path) == ["heart"]


def edited(edit: Callable[[list[bytes]], list[bytes]], data: bytes) -> bytes:
    return b"".join(edit(data.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda data: data.replace(b'"heart"', b'"heard"'), 2),
        (partial(edited, lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]), 2),
        (partial(edited, lambda lines: [lines[0], *lines[2:]]), 2),
        (partial(edited, lambda lines: [*lines, lines[1]]), 5),
    ],
    ids=["flipped", "swapped", "left-out", "replayed"],
)
def test_a_changed_log_is_refused_and_named(
    tmp_path: Path, change: Callable[[bytes], bytes], line: int
) -> None:
    path = tmp_path / "log"
    made = log(path)
    for name in ("heart", "lung", "liver"):
        refuse(made, name)
    path.write_bytes(change(path.read_bytes()))
    changed = path.read_bytes()
    for one in (made, log(path)):  # the process that wrote it, and the next one
        with pytest.raises(BrokenChain, match=f"{path}, line {line}") as caught:
            refuse(one, "kidney")
        assert "put its newest intact copy back" in caught.value.remedy
        assert "move it away" in caught.value.remedy
    assert path.read_bytes() == changed  # never repaired
    assert caught.value.remedy != RESTORE


def test_an_older_copy_is_noticed_by_the_process_that_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = log(path)
    refuse(made, "heart")
    older = path.read_bytes()
    refuse(made, "lung")
    path.write_bytes(older)
    with pytest.raises(TranscriptError, match="replaced while it was in use"):
        refuse(made, "liver")
    assert path.read_bytes() == older


@pytest.mark.parametrize("other", [LEDGER, TRANSCRIPT], ids=lambda one: str(one.name))
def test_no_other_record_can_stand_in_for_it(tmp_path: Path, other: ChainType) -> None:
    path = tmp_path / "log"
    refuse(log(path), "heart")
    with path.open("rb") as lines, pytest.raises(BrokenChain, match="does not match its hash"):
        verify_chain(lines, IDENTITY.public_bytes, other)


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    made = log(path)
    refuse(made, "heart")
    before = path.read_bytes()
    monkeypatch.setattr(chain_file.os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(TranscriptError, match="No space left") as caught:
        refuse(made, "lung")
    assert "free space" in caught.value.remedy
    monkeypatch.undo()
    assert path.read_bytes() == before
    refuse(made, "lung")
    assert names(path) == ["heart", "lung"]


def test_a_disk_that_cannot_even_repair_a_torn_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    refuse(log(path), "heart")
    with path.open("ab") as stream:
        stream.write(b'{"body":{"di')
    monkeypatch.setattr(chain_file.os, "fsync", failing(errno.EIO))
    with pytest.raises(TranscriptError, match="cannot be repaired: Input/output error"):
        refuse(log(path), "lung")


def test_what_a_decision_raises_leaves_the_log_usable(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = log(path)

    def fail(state: DecisionState, now_s: int) -> list[Entry]:
        raise ValueError

    with pytest.raises(ValueError):
        made.note(fail)  # type: ignore[arg-type]
    refuse(made, "heart")
    assert kinds(path) == ["opened", REFUSED]
    assert DECISIONS.name == "decision log"
