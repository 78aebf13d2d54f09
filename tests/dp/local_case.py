"""A site's private local work for tests: a study's ``[privacy]`` table, a ledger, and what was planned."""

from __future__ import annotations

from pathlib import Path

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import Accountant, Pld
from secfed.dp.ledger.ledger import Ledger, spent_of
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.local_privacy import LocalPrivacy
from tests.dp.wards import book, read

DELTA = 1e-5
RECORDS, GROUP_SIZE, BATCH = 256, 4, 32  # 64 groups, 8 of them in a step: sampling rate 1/8


def settings(unit: str = "group", epsilon: float = 8.0, **more: object) -> PrivacySection:
    if unit == "group":
        more.setdefault("group_size", GROUP_SIZE)
    more.setdefault("delta", DELTA)
    return PrivacySection.model_validate({"unit": unit, "epsilon": epsilon, **more})


def ledger(folder: Path, epsilon: float = 8.0, accountant: Accountant | None = None) -> Ledger:
    return book(folder / "ledger.jsonl", Budget(epsilon, DELTA), accountant=accountant or Pld())


def local(book_: Ledger, chosen: PrivacySection | None = None, seed: int = 0) -> LocalPrivacy:
    """As a site has it: randomness is fixed by (round, exchange)."""
    return LocalPrivacy(
        chosen or settings(),
        book_,
        study="s",
        seed=seed,
        random=lambda number, exchange: SecureRandom.for_simulation(seed, "local", number, exchange),
    )


def paid(book_: Ledger) -> list[Event]:
    """Every event of the ledger, read back from disk and verified."""
    return [entry.event for entry in spent_of(read(book_.path))]
