"""A ledger of one ward, and how tests read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secfed.dp.accounting.budget import Budget, Spent, disagrees
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Accountant, Pld, Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger, spent_of, verify
from secfed.records.hash_chain import Entry
from tests.dp.ledger_child import IDENTITY, NOW_S

DAY_S = 86_400
ADD, REPLACE = Adjacency.ADD_OR_REMOVE_RECORD, Adjacency.REPLACE_RECORD
HIDES, ZERO = Adjacency.REPLACE_PATIENT, Adjacency.ZERO_OUT_SITE


class Clock:
    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


def book(path: Path, *budgets: Budget, clock: Clock | None = None, **options: object) -> Ledger:
    options.setdefault("accountant", Rdp())
    return Ledger(
        path,
        IDENTITY,
        "wards",
        budgets or (Budget(8.0, 1e-5),),
        clock=clock or Clock(),
        **options,  # type: ignore[arg-type]
    )


def spend(ledger: Ledger, sigma: float = 20.0, count: int = 1, round_number: int = 1) -> None:
    event = Gaussian(ADD, sigma, count)
    ledger.spend(event, study="s", round_number=round_number, exchange="update")


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def read(path: Path) -> tuple[Entry, ...]:
    return verify(lines(path), IDENTITY.public_bytes, owner="clinic")


def kinds(path: Path) -> list[str]:
    return [entry.kind for entry in read(path)]


def audit(entries: Sequence[Entry], accountant: Accountant | None = None) -> None:
    """Recompute every epsilon of a verified ledger from its events; the first that differs fails."""
    spent: list[Spent] = []
    for entry in entries:
        spent.extend(spent_of([entry]))
        for recorded in entry.body.get("after", []):
            why = disagrees(recorded, spent, accountant or Pld())
            assert why is None, f"line {entry.seq + 1}: {why}"
