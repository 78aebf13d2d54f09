"""A release is paid once, however often a crash makes the site begin it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.ledger.ledger import REFUSED, SPENT, UNPROTECTED
from secfed.errors import BudgetExceeded, TranscriptError
from tests.dp.wards import REPLACE, audit, book, kinds, read

EVENT = Gaussian(REPLACE, 2.0, 1)
HERE = {"study": "heart", "round_number": 1, "exchange": "update"}


def test_the_same_release_is_paid_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = book(path, Budget(None, 1e-5)).spend(EVENT, **HERE, release="a/1")
    again = book(path, Budget(None, 1e-5)).spend(EVENT, **HERE, release="a/1")
    assert again == first
    assert kinds(path).count(SPENT) == 1
    book(path, Budget(None, 1e-5)).spend(EVENT, **HERE, release="a/2")
    book(path, Budget(None, 1e-5)).spend(EVENT, **HERE)
    book(path, Budget(None, 1e-5)).spend(EVENT, **HERE)
    assert kinds(path).count(SPENT) == 4  # without an id every payment is a new one
    audit(read(path), Rdp())


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (Gaussian(REPLACE, 1.0, 1), {}),
        (EVENT, {"round_number": 2}),
        (EVENT, {"exchange": "evaluate"}),
        (EVENT, {"study": "lung"}),
        (EVENT, {"record_private": True}),
    ],
)
def test_a_release_id_pays_for_nothing_else(
    tmp_path: Path, event: Gaussian, changed: dict[str, object]
) -> None:
    ledger = book(tmp_path / "ledger", Budget(None, 1e-5))
    ledger.spend(EVENT, **HERE, release="a/1")
    with pytest.raises(TranscriptError, match="paid for as something else"):
        ledger.spend(event, **{**HERE, **changed}, release="a/1")
    assert kinds(tmp_path / "ledger").count(SPENT) == 1


def test_a_paid_release_needs_no_budget_again_and_an_unpaid_one_does(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    book(path, Budget(100.0, 1e-5)).spend(EVENT, **HERE, release="a/1")
    poor = book(path, Budget(0.01, 1e-5))
    assert poor.spend(EVENT, **HERE, release="a/1").kind == SPENT
    for _ in range(2):  # a refusal is no payment
        with pytest.raises(BudgetExceeded):
            poor.spend(EVENT, **HERE, release="b/1")


def test_what_leaves_without_noise_is_noted_once_a_release(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(None, 1e-5))
    for release in ("a", "a", "b", None):
        ledger.note_unprotected(["eval/loss", "weight"], **HERE, release=release)
    noted = [entry for entry in read(tmp_path / "ledger") if entry.kind == UNPROTECTED]
    assert [entry.body["fields"] for entry in noted] == [["eval/loss", "weight"]] * 3


def test_a_release_that_is_refused_again_and_again_is_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for _ in range(2):
        poor = book(path, Budget(0.01, 1e-5))
        for _ in range(3):
            with pytest.raises(BudgetExceeded):
                poor.spend(EVENT, **HERE, release="a/1")
    assert kinds(path).count(REFUSED) == 1
    with pytest.raises(BudgetExceeded):
        poor.spend(EVENT, **HERE, release="a/2")
    with pytest.raises(BudgetExceeded):
        book(path, Budget(0.02, 1e-5)).spend(EVENT, **HERE, release="a/1")  # by another limit: that is news
    assert kinds(path).count(REFUSED) == 3
    assert SPENT not in kinds(path)
