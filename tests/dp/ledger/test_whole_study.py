"""A study begins only if the budgets carry it to its end; once it has paid, only payments decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import Rdp, statement
from secfed.dp.ledger.ledger import BUDGETS, SPENT, Ledger
from secfed.errors import BudgetExceeded, TranscriptError
from tests.dp.wards import ADD, DAY_S, Clock, book, kinds

STEPS, METRICS = PoissonSampledGaussian(ADD, 0.1, 1.0, 40), Gaussian(ADD, 20.0, 3)


def releases(count: int) -> Gaussian:
    return Gaussian(ADD, 4.0, count)


def epsilon(*events: Event) -> float:
    return statement(events, 1e-5, Rdp()).epsilon


FOUR, EIGHT = (Budget(epsilon(releases(count)), 1e-5) for count in (4, 8))


def pay(ledger: Ledger, study: str, number: int = 1, event: Event | None = None) -> None:
    ledger.spend(event or releases(1), study=study, round_number=number, exchange="update")


def test_a_study_that_fits_only_in_part_is_refused_and_nothing_is_paid_or_remembered(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, FOUR)
    for whole in ([releases(5)], [releases(1), releases(4)]):
        with pytest.raises(BudgetExceeded, match="the whole of study 's' would exceed the record") as error:
            ledger.check_study("s", whole)
    assert "data.budget" in error.value.remedy
    assert kinds(path) == ["opened", BUDGETS]
    ledger.check_study("s", [releases(4)])  # other records meanwhile
    assert kinds(path) == ["opened", BUDGETS]
    book(path, EIGHT).check_study("s", [releases(5)])


def test_what_earlier_studies_paid_counts_and_what_others_have_not_paid_does_not(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", EIGHT)
    ledger.check_study("one", [releases(8)])
    pay(ledger, "one")
    with pytest.raises(BudgetExceeded, match="the whole of study 'two'"):
        ledger.check_study("two", [releases(8)])
    ledger.check_study("two", [releases(7)])


@pytest.mark.parametrize("lowered", [EIGHT, FOUR])
def test_a_study_that_has_paid_is_stopped_by_payments_only(lowered: Budget, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, EIGHT)
    ledger.check_study("s", [releases(8)])
    pay(ledger, "s", 1)
    pay(ledger, "other", 1, releases(5))  # began at the same time
    again = book(path, lowered)  # which is spent by now, or was lowered below what is spent
    again.check_study("s", [STEPS])  # other records plan other steps
    if lowered is EIGHT:
        pay(again, "s", 2)
        pay(again, "s", 3)
    with pytest.raises(BudgetExceeded, match="round 4"):
        pay(again, "s", 4)


@settings(max_examples=25, deadline=None)
@given(st.permutations([METRICS.repeated(1)] * 3 + [STEPS.repeated(8)] * 5))
def test_a_study_that_fits_exactly_is_paid_to_its_last_step(order: list[Event]) -> None:
    """Whatever the order of its steps and its metrics: composed alike, they cost what the whole cost."""
    whole = epsilon(METRICS, STEPS)
    assert epsilon(*order) <= whole
    assert all(epsilon(*order[:count]) <= whole for count in range(1, len(order)))


def test_a_study_with_private_metrics_that_fits_exactly_is_begun_and_ended(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(epsilon(METRICS, STEPS), 1e-5))
    for number in range(1, 4):
        ledger.check_study("s", [METRICS, STEPS])
        pay(ledger, "s", number, METRICS.repeated(1))
        pay(ledger, "s", number, STEPS.repeated((16, 16, 8)[number - 1]))
    with pytest.raises(BudgetExceeded):
        pay(ledger, "s", 4, STEPS.repeated(1))


def test_of_a_budget_with_a_period_the_whole_counts_as_paid_now(tmp_path: Path) -> None:
    clock = Clock()
    ledger = book(tmp_path / "ledger", Budget(FOUR.epsilon, 1e-5, period_days=10), clock=clock)
    pay(ledger, "earlier")
    with pytest.raises(BudgetExceeded):
        ledger.check_study("s", [releases(4)])
    clock.now_s += 11 * DAY_S
    ledger.check_study("s", [releases(4)])


def test_a_payment_that_was_refused_first_of_all_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, FOUR)
    with pytest.raises(BudgetExceeded):
        pay(ledger, "s", 1, releases(5))
    with pytest.raises(BudgetExceeded, match="the next payment of study 's'"):
        ledger.check_study("s")
    assert SPENT not in kinds(path)
    book(path, EIGHT).check_study("s", [releases(5)])


def test_nothing_begins_by_a_clock_that_is_wrong(tmp_path: Path) -> None:
    clock = Clock()
    ledger = book(tmp_path / "ledger", EIGHT, clock=clock)
    pay(ledger, "s")
    clock.now_s -= 30 * DAY_S
    with pytest.raises(TranscriptError, match=r"this machine .* says"):
        ledger.check_study("t", [releases(4)])
