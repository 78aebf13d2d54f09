"""A process that writes a decision log and is killed, by itself or from outside; and what tests share.

    python -m tests.secfed.decision_case LOG write COUNT STUDY      refuses COUNT studies, prints each
    python -m tests.secfed.decision_case LOG crash POINT BYTES      kills itself at a write point

Write points as in tests/dp/ledger_child.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from secfed.crypto.identity import Identity
from secfed.records.chain_file import ChainFile, verify_file
from secfed.records.decision_log import DECISIONS, DecisionLog
from secfed.records.decision_state import DecisionState, Made
from secfed.records.hash_chain import Entry
from tests.dp.ledger_child import die

IDENTITY = Identity.from_seed("clinic", bytes(32))
NOW_S = 1_800_000_000
DAY_S = 86_400
DIGEST = "1" * 64


class Crashing(ChainFile):
    """Dies at a write point of the next line that is about a refused study."""

    point, torn_bytes = "", 0

    def append(self, line: bytes) -> None:
        if b'"kind":"refused"' not in line:
            return super().append(line)
        if self.point == "torn":
            os.write(self._file.fileno(), line[: self.torn_bytes])
        elif self.point in ("unsynced", "synced"):
            os.write(self._file.fileno(), line)
            if self.point == "synced":
                os.fsync(self._file.fileno())
        die()
        return None


def log(
    path: Path, *, now_s: Callable[[], float] = lambda: NOW_S, open_file: type[ChainFile] = ChainFile
) -> DecisionLog:
    return DecisionLog(path, IDENTITY, clock=now_s, open_file=open_file)


def refuse(made: DecisionLog, name: str, *keys: str) -> None:
    """Refuse the study of this name, with a digest of its own."""
    digest = name.encode().hex().ljust(64, "0")[:64]

    def decide(state: DecisionState, now_s: int) -> list[Made]:
        return state.refuses(digest, name, keys or ("study.name",), now_s)

    made.note(decide)


def read(path: Path) -> tuple[Entry, ...]:
    """Its entries, verified."""
    return verify_file(path, IDENTITY.public_bytes, DECISIONS, owner=IDENTITY.name)


def kinds(path: Path) -> list[str]:
    return [entry.kind for entry in read(path)]


def main(path: Path, action: str, *rest: str) -> None:
    if action == "crash":
        Crashing.point, Crashing.torn_bytes = rest[0], int(rest[1])
        refuse(log(path, open_file=Crashing), "crashed")
        return
    made, count = log(path), int(rest[0])
    for number in range(count):
        refuse(made, f"{rest[1]}-{number}")
        os.write(1, f"{rest[1]}-{number}\n".encode())  # told only after it is on the disk


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
