"""One scripted night between five hospitals and a study centre: ``python -m tests.deploy.night --seed 1``.

Five studies share one aggregator; one of them is put aside and goes on later, one asks for more than is left
of any budget. Meanwhile: 20 kills (at any moment, and at crash points), 5 full disks, 3 clock jumps, 4
changes of the roster. In the morning every study is finished or was refused before payment, every budget is
right, all records verify, and all hospitals have the same models (``night_checks``). What happens to whom and
when follows from the seed and from how far the studies have come; how the processes meet it does not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from secfed.errors import RoundAborted
from tests.deploy.deployment_case import secfed
from tests.deploy.night_checks import Morning, look
from tests.deploy.night_consortium import (
    CLOSED_SUMS,
    FIRST,
    PAUSED,
    STUDIES,
    TOO_MUCH,
    WITH_LATE,
    Consortium,
)
from tests.deploy.night_parties import Party, enter_mount_namespace
from tests.deploy.test_plug_pull import AGENT_POINTS, AGGREGATOR_POINTS

KILLS: Final = 20
FULL_DISKS: Final = 5
HANGS_S: Final = 1500.0
MEETS_S: Final = 60.0  # within which somebody should have met a full disk or a wrong clock
REFUSED_S: Final = 180.0  # within which every hospital should have refused the study that is too much
LATE: Final = "hospital-5"  # admitted in the night, removed, and admitted anew with other keys
# Seconds ahead, in words, and what a log says of it; without such words it stays so.
JUMPS: Final = (
    (-172_800.0, "two days back, then right", "the clock of this machine"),
    (2_400.0, "40 minutes ahead from now on", ""),
    (17_280_000.0, "200 days ahead, then right", "the clock of"),  # at the study centre
)


@dataclass(frozen=True)
class Happened:
    """One line of the morning's table."""

    after_sums: int
    what: str
    who: str
    how: str
    met: str = ""


@dataclass(frozen=True)
class Meeting:
    """Something that is wrong until somebody has met it."""

    party: Party
    entry: Happened
    words: str  # in the log of whoever meets it
    undo: Callable[[], None]
    offset: int
    end_s: float


class Night:
    """What befalls a consortium."""

    def __init__(self, consortium: Consortium, seed: int, tell: Callable[[Happened], None]) -> None:
        self.consortium, self.seed, self._tell = consortium, seed, tell
        self.happened: list[Happened] = []
        self.findings: list[str] = []
        self._random, self._meeting = random.Random(seed), list[Meeting]()
        total = sum(study.rounds + 1 for study in STUDIES if not study.refused)

        def moments(count: int) -> list[int]:
            return sorted(self._random.sample(range(1, total - 3), count))

        self._kills = moments(KILLS)
        self._others: list[tuple[int, Callable[[], bool]]] = [
            (after, self._fill) for after in moments(FULL_DISKS)
        ]
        jumps = self._random.sample(range(len(JUMPS)), len(JUMPS))
        self._others += [
            (after, partial(self._jump, jump)) for after, jump in zip(moments(len(JUMPS)), jumps, strict=True)
        ]
        self._others.sort(key=lambda other: other[0])
        self._story = self._plan()

    # --- what befalls it ---

    def _note(self, what: str, who: str, how: str) -> Happened:
        entry = Happened(self.consortium.sums(), what, who, how)
        self.happened.append(entry)
        self._tell(entry)
        return entry

    def _busy(self) -> list[Party]:
        """The study centre, and the hospitals that every study asks."""
        return [self.consortium.centre, *(self.consortium.hospitals[f"hospital-{n}"] for n in (1, 2, 3))]

    def _kill(self) -> bool:
        victim = self._random.choice([self.consortium.centre, *self.consortium.members()])
        is_alive = victim.is_running
        victim.kill()
        return is_alive

    def _fill(self) -> bool:
        victim = self._random.choice(self._busy())
        if self._is_wrong(victim):
            return False
        killed = self._random.random() < 0.3
        self._meets(victim, "full disk", "and killed" if killed else "", "No space left", victim.free)
        victim.fill()
        if killed:
            victim.kill()
        return True

    def _jump(self, number: int) -> bool:
        seconds, how, words = JUMPS[number]
        busy = self._busy()
        victim = busy[0] if number == len(JUMPS) - 1 else self._random.choice(busy[1:])
        if self._is_wrong(victim):
            return False
        if words:
            self._meets(victim, "clock", how, words, partial(victim.shift, 0.0))
        else:
            self._note("clock", victim.name, how)
        victim.shift(seconds)
        return True

    def _is_wrong(self, party: Party) -> bool:
        return any(one.party is party for one in self._meeting)

    def _meets(self, party: Party, what: str, how: str, words: str, undo: Callable[[], None]) -> None:
        entry = self._note(what, party.name, how)
        end_s = time.monotonic() + MEETS_S
        self._meeting.append(Meeting(party, entry, words, undo, party.log_size(), end_s))

    def _put_right(self) -> None:
        """Undo what somebody has met; an administrator starts again what its unit leaves alone."""
        for one in list(self._meeting):
            met = one.words in one.party.said_since(one.offset)
            if not met and time.monotonic() < one.end_s:
                if one.party.is_full:
                    one.party.fill()
                continue
            one.undo()
            self._meeting.remove(one)
            said = "met" if met else "met by nobody"
            if one.party.left_alone:
                said += f", left alone after exit code {one.party.exits[-1][0]}"
                one.party.start()
            place = self.happened.index(one.entry)
            self.happened[place] = replace(one.entry, met=said)
            self._tell(self.happened[place])

    def _pause(self, word: str) -> None:
        secfed("consortium", word, PAUSED.name, "--dir", self.consortium.centre_folder)
        self._note("study", PAUSED.name, f"{word}d")

    def _admit(self, folder_name: str, how: str) -> None:
        self.consortium.enrol(LATE, folder_name)
        self.consortium.everyone_trusts()
        self.consortium.hospitals[LATE].start()
        self._note("roster", LATE, how)

    def _renew(self) -> None:
        name = self._random.choice(list(self.consortium.hospitals))
        site, centre = self.consortium.site(name), self.consortium.centre_folder
        secfed("site", "renew", "--dir", site)
        secfed("consortium", "renew", name, "--request", site / "request.json", "--dir", centre)
        secfed("site", "join", centre / "replies" / f"{name}.json", "--dir", site)
        self._note("roster", name, "certificate and TLS key renewed")

    def _remove(self) -> None:
        party = self.consortium.hospitals[LATE]
        secfed("consortium", "remove", LATE, "--dir", self.consortium.centre_folder, "--yes")
        party.stop()
        party.process = None
        self.consortium.everyone_trusts()
        self._note("roster", LATE, "removed")

    def _plan(self) -> list[tuple[Callable[[], bool], Callable[[], None], Callable[[], Iterable[Party]]]]:
        """When, what, and on whose disks: one after the other."""
        here, pick = self.consortium, self._random.randint
        centre, everyone = lambda: (here.centre,), lambda: here.parties
        pause_at, admit_at, renew_at, anew_at = pick(1, 4), pick(1, 4), pick(5, 8), pick(6, 8)
        return [
            (lambda: here.sums(PAUSED) >= pause_at, partial(self._pause, "pause"), centre),
            (lambda: here.sums(FIRST) >= admit_at, partial(self._admit, "site", "admitted"), everyone),
            (lambda: here.sums(FIRST) >= renew_at, self._renew, everyone),
            (partial(here.is_over, FIRST), partial(here.put, WITH_LATE), centre),
            (partial(here.is_over, WITH_LATE), self._remove, everyone),
            (lambda: True, partial(self._pause, "resume"), centre),
            (
                lambda: here.sums(PAUSED) >= anew_at,
                partial(self._admit, "site-anew", "admitted anew, with other keys"),
                everyone,
            ),
            (partial(here.is_over, PAUSED), partial(here.put, CLOSED_SUMS), centre),
            (partial(here.is_over, CLOSED_SUMS), partial(here.put, TOO_MUCH), centre),
        ]

    # --- the night ---

    def run(self) -> None:
        """From dusk till dawn; afterwards every process has ended."""
        for study in (PAUSED, FIRST):
            self.consortium.put(study)
        end_s, last_s = time.monotonic() + HANGS_S, 0.0
        try:
            for party in self.consortium.parties:
                party.start()
            while True:
                self._put_right()
                for party in (self.consortium.centre, *self.consortium.members()):
                    self._tend(party)
                sums = self.consortium.sums()
                if self._kills and sums >= self._kills[0]:
                    self._kill()
                if self._others and sums >= self._others[0][0] and self._others[0][1]():
                    self._others.pop(0)
                if self._story:
                    when, act, writes_at = self._story[0]
                    if when() and not any(party.is_full for party in writes_at()):
                        act()
                        self._story.pop(0)
                if not self._story and not self._kills and not self._others and not self._meeting:
                    last_s = last_s or time.monotonic() + REFUSED_S
                    # Nobody has paid, so nothing ends the aggregator: it waits for hospitals.
                    if time.monotonic() > last_s or self.consortium.is_refused():
                        break
                if time.monotonic() > end_s:
                    self.findings.append(f"after {HANGS_S:.0f} s the night was not over")
                    break
                time.sleep(0.05)
        finally:
            for party in self.consortium.parties:
                party.free()
            codes = {party.name: party.stop() for party in self.consortium.parties}
        well = (0, 130, RoundAborted.exit_code)  # the last: of the study that is refused
        self.findings += [f"{name} ended with {code}" for name, code in codes.items() if code not in well]

    def _tend(self, party: Party) -> None:
        if died_at := party.tend():
            self._note("kill", party.name, died_at)
            # Every death counts, wherever it was; half of those who come back are to die at a crash point.
            self._kills = self._kills[1:]
            if self._kills and self._random.random() < 0.5:
                points = AGGREGATOR_POINTS if party is self.consortium.centre else AGENT_POINTS
                party.point = self._random.choice(points)
        if not party.left_alone or self._is_wrong(party):
            return
        if party.exits[-1][0] != RoundAborted.exit_code:
            self.findings.append(f"{party.name} was left alone: {party.exits[-1]}")
        elif not self._story:
            return  # of the study that is refused
        else:
            self._note("study", party.name, "stopped before further rounds cost budgets; started again")
        party.start()


def show(console: Console, night: Night, morning: Morning, took_s: float) -> None:
    """What happened, and what was found in the morning."""
    table = Table(title=f"What happened in the night of seed {night.seed}")
    for column in ("after sums", "what", "who", "how", "met"):
        table.add_column(column)
    for entry in night.happened:
        table.add_row(str(entry.after_sums), entry.what, entry.who, entry.how, entry.met)
    console.print(table)
    table = Table(title=f"The morning, after {took_s:.0f} s")
    for column in ("study or folder", "what became of it"):
        table.add_column(column)
    for name, ending in morning.studies.items():
        table.add_row(name, ending)
    for name, found in morning.payments.items():
        table.add_row(name, ", ".join(f"{key} {value}" for key, value in found.items()))
    table.add_row("verifications passed", str(morning.verified))
    console.print(table)
    for problem in morning.problems:
        console.print(f"PROBLEM: {problem}", style="bold red", markup=False)
    console.print(
        "Something is not as it should be." if morning.problems else "Everything is as it should be."
    )


def main() -> None:
    """One night; 1 if something is wrong in the morning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", type=Path, default=Path("runs/night"), help="gets records, logs and result")
    asked = parser.parse_args()
    enter_mount_namespace(["--seed", str(asked.seed), "--out", str(asked.out)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"Night of seed {asked.seed}")
    began_s = time.monotonic()

    def tell(entry: Happened) -> None:
        passed_s = time.monotonic() - began_s
        words = " ".join(filter(None, (entry.what, entry.who, entry.how, entry.met)))
        console.print(f"{passed_s:6.1f} s, {entry.after_sums:2} sums: {words}", markup=False)

    kept = asked.out / f"night-{asked.seed}"
    with tempfile.TemporaryDirectory(prefix="secfed-night-") as name:
        consortium = Consortium(Path(name))
        night = Night(consortium, asked.seed, tell)
        try:
            night.run()
            morning = look(consortium, night.findings)
        finally:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(name, kept, ignore=shutil.ignore_patterns("*.sock"))
            for party in consortium.parties:
                party.unmount()
    took_s = time.monotonic() - began_s
    show(console, night, morning, took_s)
    result: dict[str, Any] = {"seed": night.seed, "seconds": round(took_s)}
    result["counts"] = Counter(entry.what for entry in night.happened)
    result["happened"] = [asdict(entry) for entry in night.happened]
    result["exits"] = {party.name: party.exits for party in consortium.parties}
    text = json.dumps(result | asdict(morning), indent=2)
    kept.with_suffix(".json").write_text(f"{text}\n", encoding="utf-8")
    sys.exit(1 if morning.problems else 0)


if __name__ == "__main__":
    main()
