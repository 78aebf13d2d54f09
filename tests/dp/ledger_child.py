"""A process that spends from a ledger and is killed, by itself or from outside.

    python -m tests.dp.ledger_child LEDGER spend COUNT STUDY       spends COUNT times, prints each paid round
    python -m tests.dp.ledger_child LEDGER crash POINT BYTES       kills itself with SIGKILL at a write point

Write points: ``before`` the write, ``torn`` after BYTES bytes of it, ``unsynced`` after the write and
before fsync, ``synced`` after fsync and before anybody was told.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from secfed.crypto.identity import Identity
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.records.chain_file import ChainFile

IDENTITY = Identity.from_seed("clinic", bytes(32))
EVENT = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 20.0, 1)
BUDGETS = (Budget(8.0, 1e-5),)
NOW_S = 1_800_000_000


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Crashing(ChainFile):
    """Dies at a write point of the next line that is about spending."""

    point, torn_bytes = "", 0

    def append(self, line: bytes) -> None:
        if b'"kind":"spent"' not in line:
            return super().append(line)
        if self.point == "torn":
            os.write(self._file.fileno(), line[: self.torn_bytes])
        elif self.point in ("unsynced", "synced"):
            os.write(self._file.fileno(), line)
            if self.point == "synced":
                os.fsync(self._file.fileno())
        die()
        return None


def ledger(path: Path, open_file: type[ChainFile] = ChainFile) -> Ledger:
    return Ledger(
        path, IDENTITY, "wards", BUDGETS, accountant=Rdp(), clock=lambda: NOW_S, open_file=open_file
    )


def main(path: Path, action: str, *rest: str) -> None:
    if action == "crash":
        Crashing.point, Crashing.torn_bytes = rest[0], int(rest[1])
        ledger(path, Crashing).spend(EVENT, study="s", round_number=99, exchange="update")
        return
    count, study = int(rest[0]), rest[1]
    book = ledger(path)
    for number in range(1, count + 1):
        book.spend(EVENT, study=study, round_number=number, exchange="update")
        # Told only after it is on the disk: what was printed must be in the ledger for ever.
        os.write(1, f"{study} {number}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
