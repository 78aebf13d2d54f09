"""A site killed at each step: after a restart it refuses what it must, and shares leave at most once.

The site is a real process over a real journal; SIGKILL ends it. What a power cut could still lose after a
call has returned is the operating system's page cache: the journal synchronises at every commit (see
tests/secfed/site/test_journal.py), and a process cannot test more than that.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.messages import Shares
from secfed.errors import SecfedError, WrongState
from tests.conftest import ROOT
from tests.crash.site_process import POINTS, read, write
from tests.forks import Fork
from tests.ring import as_integers
from tests.simulator import Consortium

SITE = "hospital-1"


class Killed(WrongState):
    """The process did not answer any more."""


class SiteProcess:
    """The site's process, with the face of a session."""

    def __init__(self, consortium: Consortium, folder: Path, point: str = "never") -> None:
        update = zip(consortium.shape.runs, consortium.updates[SITE], strict=True)
        parameters = {
            "site": SITE,
            "seed": consortium.identities[SITE].private_bytes().hex(),
            "roster": consortium.roster.encode().hex(),
            "layout": consortium.shape.digest.hex(),
            "broadcast": consortium.broadcast_digest.hex(),
            "update": [(run.bits, [int(lane) for lane in lanes]) for run, lanes in update],
            "journal": str(folder / "journal.sqlite"),
            "point": point,
        }
        path = folder / "parameters.json"
        path.write_text(json.dumps(parameters))
        self.process = Fork(
            [sys.executable, "-m", "tests.crash.site_process", str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.state: Any = None
        self.result = None

    def send(self, message: bytes) -> None:
        assert self.process.stdin is not None
        write(self.process.stdin, message)

    def receive(self) -> bytes:
        assert self.process.stdout is not None
        reply = read(self.process.stdout)
        if reply is None:
            assert self.process.wait() == -signal.SIGKILL
            raise Killed("the site was killed")
        if reply[0]:
            raise WrongState(reply[1:].decode())
        return reply[1:]

    def handle(self, message: bytes) -> bytes:
        self.send(bytes(message))
        return self.receive()

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


def noted(folder: Path) -> list[tuple[int, int]]:
    """What the journal on the disk says: (attempt, 0 begun, 1 uploaded or 2 unmasked)."""
    database = sqlite3.connect(folder / "journal.sqlite")
    rows = database.execute("SELECT attempt, uploaded + unmasked FROM attempts ORDER BY attempt").fetchall()
    database.close()
    return rows


def refusal(site: SiteProcess, message: bytes) -> int:
    """The number of the refusal."""
    with pytest.raises(SecfedError, match=r"^refusal \d+: ") as caught:
        site.handle(message)
    return int(caught.value.message.split(":")[0].removeprefix("refusal "))


# Point of death -> what the journal says then; what the same attempt, and the next one, get after a restart.
EXPECTED: dict[str, tuple[list[tuple[int, int]], int | None, int | None]] = {
    "before begin": ([], None, None),
    "inside begin": ([], None, None),
    "after begin": ([(0, 0)], 11, None),
    "before uploaded": ([(0, 0)], 11, None),
    "inside uploaded": ([(0, 0)], 11, None),
    "after uploaded": ([(0, 1)], 12, 12),
    "before unmasked": ([(0, 1)], 12, 12),
    "inside unmasked": ([(0, 1)], 12, 12),
    "after unmasked": ([(0, 2)], 12, 12),
    "after reply": ([(0, 2)], 12, 12),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_site_killed_at_each_step(point: str, tmp_path: Path) -> None:
    journal, same, following = EXPECTED[point]
    consortium = Consortium(4)
    first = consortium.attempt()
    mortal = SiteProcess(consortium, tmp_path, point)
    first.sites[SITE] = mortal  # type: ignore[assignment]
    first.run(until="result")
    mortal.end()
    assert mortal.process.returncode == -signal.SIGKILL
    assert noted(tmp_path) == journal
    if point != "after reply":
        assert isinstance(first.refusals[SITE], Killed)
    left = [stage for stage, site, _ in first.replies if site == SITE]
    assert ("unmask" in left) == (point == "after reply")
    # The sum is there with or without it: it dropped before it uploaded, or after.
    assert (SITE in first.server.survivors) == ("mask" in left)
    assert as_integers(first.server.sums) == consortium.expected(first.server.survivors)

    consortium.forget(consortium.names)  # the others would serve a second attempt; what does this site do?
    again = SiteProcess(consortium, tmp_path)
    spec = consortium.specification(attempt=0)
    if same is None:
        assert again.handle(spec.encode())
    else:
        assert refusal(again, spec.encode()) == same
    again.end()

    third = SiteProcess(consortium, tmp_path)
    second = consortium.attempt(consortium.specification(attempt=1))
    second.sites[SITE] = third  # type: ignore[assignment]
    if following is None:
        second.run(until="result")
        assert second.server.survivors == consortium.names
        assert as_integers(second.server.sums) == consortium.expected(consortium.names)
        assert noted(tmp_path)[-1] == (1, 2)
    else:
        assert refusal(third, second.spec.encode()) == following
    third.end()


def _kill_at(consortium: Consortium, folder: Path, delay_s: float) -> bool:
    """Kill the site ``delay_s`` after it was asked for shares; whether the shares came out."""
    attempt = consortium.attempt()
    mortal = SiteProcess(consortium, folder)
    attempt.sites[SITE] = mortal  # type: ignore[assignment]
    attempt.run(until="unmask")
    mortal.send(bytes(attempt.requests[SITE]))
    time.sleep(delay_s)
    mortal.process.kill()
    try:
        shares = Shares.decode(mortal.receive())
    except Killed:
        return False
    finally:
        mortal.end()
    assert len(shares.shares) == len(consortium.names)
    return True


def _after_a_kill(delay_s: float, folder: Path) -> None:
    consortium = Consortium(4)
    came_out = _kill_at(consortium, folder, delay_s)
    unmasked = noted(folder) == [(0, 2)]
    assert unmasked or not came_out  # shares outside and nothing in the journal must never be
    restarted = SiteProcess(consortium, folder)
    assert refusal(restarted, consortium.specification(attempt=1).encode()) == 12
    restarted.end()


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.1])
def test_a_kill_at_any_moment_of_the_unmasking(delay_s: float, tmp_path: Path) -> None:
    _after_a_kill(delay_s, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(60))
def test_kills_spread_over_the_unmasking(trial: int, tmp_path: Path) -> None:
    _after_a_kill(trial * 0.0002, tmp_path)


def test_two_agents_of_one_site_let_one_update_leave(tmp_path: Path) -> None:
    """An agent started twice by mistake, each in an attempt of its own: one journal, one upload."""
    consortium = Consortium(4)
    first = consortium.attempt()
    one = SiteProcess(consortium, tmp_path)
    first.sites[SITE] = one  # type: ignore[assignment]
    first.run(until="mask")
    consortium.forget(name for name in consortium.names if name != SITE)
    second = consortium.attempt(consortium.specification(attempt=1))
    two = SiteProcess(consortium, tmp_path)
    second.sites[SITE] = two  # type: ignore[assignment]
    second.run(until="result")
    assert SITE in second.server.survivors
    assert refusal(one, first.requests[SITE]) == 11
    assert noted(tmp_path) == [(0, 0), (1, 2)]
    one.end()
    two.end()
