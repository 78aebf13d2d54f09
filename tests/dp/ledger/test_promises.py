"""A study that begins can be finished: all that it will pay is promised before it pays first."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import Rdp, statement
from secfed.dp.ledger.ledger import BUDGETS, REFUSED, SPENT, Ledger
from secfed.dp.ledger.promises import ENDED, PROMISED, promises
from secfed.errors import BudgetExceeded, TranscriptError
from secfed.records.hash_chain import Entry
from tests.dp.wards import ADD, DAY_S, Clock, book, kinds, read


def releases(count: int, noise: float = 4.0) -> Gaussian:
    return Gaussian(ADD, noise, count)


def epsilon(*events: Event) -> float:
    return statement(events, 1e-5, Rdp()).epsilon


FOUR, EIGHT = epsilon(releases(4)), epsilon(releases(8))


def pay(ledger: Ledger, study: str, number: int, event: Event | None = None) -> Entry:
    return ledger.spend(event or releases(1), study=study, round_number=number, exchange="update")


def left(path: Path) -> dict[str, int]:
    return {
        study: sum(event.times for event in promise.rest) for study, promise in promises(read(path)).items()
    }


def test_a_study_that_fits_only_in_part_is_refused_before_its_first_payment(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(FOUR, 1e-5))
    with pytest.raises(
        BudgetExceeded, match="the whole of study 's' would exceed the record budget"
    ) as error:
        ledger.promise("s", [releases(5)])
    assert "data.budget" in error.value.remedy
    assert kinds(path) == ["opened", BUDGETS, REFUSED]
    refused = read(path)[-1].body
    assert [event["count"] for event in refused["whole"]] == [5]
    assert refused["budgets"] == [Budget(FOUR, 1e-5).to_value()]
    ledger.promise("s", [releases(4)])
    for number in range(1, 5):
        pay(ledger, "s", number)
    assert kinds(path)[3:] == [PROMISED, *[SPENT] * 4]


def test_a_refusal_is_recorded_once_and_known_without_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(FOUR, 1e-5))
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            ledger.promise("s", [releases(8)])
    before = kinds(path)
    assert before.count(REFUSED) == 1
    with pytest.raises(BudgetExceeded, match="the whole of study 's'"):
        ledger.check_study("s")  # no data has to be read for it
    assert kinds(path) == before
    raised = book(path, Budget(EIGHT, 1e-5))
    raised.check_study("s")
    raised.promise("s", [releases(8)])
    with pytest.raises(BudgetExceeded):
        book(path, Budget(FOUR, 1e-5)).promise("s", [releases(8)])
    assert kinds(path).count(REFUSED) == 2, "it was let in between"


def test_what_open_studies_still_need_is_given_to_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(EIGHT, 1e-5))
    ledger.promise("one", [releases(5)])
    pay(ledger, "one", 1)
    pay(ledger, "one", 2)
    assert left(path) == {"one": 3}
    with pytest.raises(BudgetExceeded, match="'two', beside what was promised to one, would exceed"):
        ledger.promise("two", [releases(4)])
    ledger.promise("two", [releases(3)])
    assert left(path) == {"one": 3, "two": 3}
    for number in (3, 4, 5):
        pay(ledger, "one", number)
    for number in (1, 2, 3):
        pay(ledger, "two", number)
    with pytest.raises(BudgetExceeded):
        pay(ledger, "two", 4)


def test_what_a_study_did_not_use_is_free_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(EIGHT, 1e-5))
    ledger.promise("one", [releases(8)])
    pay(ledger, "one", 1)
    ledger.end("one")
    ledger.end("one")
    ledger.end("nobody")
    assert kinds(path)[2:] == [PROMISED, SPENT, ENDED]
    ledger.promise("two", [releases(7)])
    with pytest.raises(BudgetExceeded):
        ledger.promise("three", [releases(1)])


def test_a_study_that_is_over_without_having_said_so_here_holds_nothing_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(EIGHT, 1e-5))
    ledger.promise("one", [releases(4)])
    ledger.promise("two", [releases(4)])
    asked: list[str] = []

    def is_over(study: str) -> bool:
        asked.append(study)
        return study == "one"

    ledger.promise("three", [releases(4)], is_over=is_over)
    assert asked == ["one", "two"]
    assert left(path) == {"two": 4, "three": 4}
    assert kinds(path)[-2:] == [ENDED, PROMISED]


def test_a_promise_again_writes_nothing_and_counts_what_was_paid(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    book(path, Budget(FOUR, 1e-5)).promise("s", [releases(4)])
    for number in (1, 2, 3, 4):
        pay(book(path, Budget(FOUR, 1e-5)), "s", number)
        book(path, Budget(FOUR, 1e-5)).promise("s", [releases(1), releases(3)])
    assert kinds(path).count(PROMISED) == 1
    assert left(path) == {"s": 0}


def test_a_study_that_began_before_there_were_promises_is_promised_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(FOUR, 1e-5))
    pay(ledger, "s", 1)
    ledger.promise("s", [releases(4)])
    assert left(path) == {"s": 3}


def test_the_older_promise_goes_first_where_budgets_were_lowered(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    wide = book(path, Budget(EIGHT, 1e-5))
    wide.promise("one", [releases(4)])
    wide.promise("two", [releases(4)])
    pay(wide, "two", 1)
    narrow = book(path, Budget(epsilon(releases(5)), 1e-5))
    narrow.check_study("one")
    narrow.promise("one", [releases(4)])
    with pytest.raises(BudgetExceeded, match="beside what was promised to one"):
        narrow.check_study("two")
    with pytest.raises(BudgetExceeded):
        narrow.promise("two", [releases(4)])


def test_other_records_meanwhile_leave_as_large_a_part_of_the_study_to_pay(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    before, after = PoissonSampledGaussian(ADD, 0.1, 1.0, 40), PoissonSampledGaussian(ADD, 0.05, 0.9, 84)
    ledger = book(path, Budget(50.0, 1e-5))
    ledger.promise("s", [before])
    ledger.promise("t", [before])
    for number in (1, 2, 3):
        pay(ledger, "s", number, before.repeated(10))
    ledger.promise("s", [after])
    assert left(path) == {"s": 21, "t": 40}, "a quarter; and it is still the older one"
    pay(ledger, "s", 4, after.repeated(21))
    assert left(path) == {"s": 0, "t": 40}
    ledger.promise("s", [before])
    assert left(path) == {"s": 0, "t": 40}


def test_of_a_budget_with_a_period_the_rest_counts_as_paid_now(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger", Clock()
    ledger = book(path, Budget(FOUR, 1e-5, period_days=10), clock=clock)
    ledger.promise("s", [releases(4)])
    pay(ledger, "s", 1)
    with pytest.raises(BudgetExceeded):
        ledger.promise("t", [releases(2)])
    clock.now_s += 11 * DAY_S  # the payment is forgotten, the promise is not
    ledger.check_study("s")
    ledger.promise("t", [releases(1)])
    with pytest.raises(BudgetExceeded):
        ledger.promise("u", [releases(1)])


def test_a_study_that_pays_nothing_is_promised_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(0.001, 1e-5))
    ledger.promise("s", [])
    assert kinds(path) == ["opened", BUDGETS]


def test_nothing_is_promised_by_a_clock_that_is_wrong(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger", Clock()
    ledger = book(path, Budget(8.0, 1e-5), clock=clock)
    pay(ledger, "s", 1)
    clock.now_s -= 30 * DAY_S
    with pytest.raises(TranscriptError, match=r"this machine .* says"):
        ledger.promise("s", [releases(4)])


def test_a_promise_that_cannot_be_read_is_no_reason_to_pay() -> None:
    body = {"study": "s", "whole": [{"event": "x"}], "rest": []}
    broken = Entry(1, bytes(32), PROMISED, body, bytes(32), bytes(64))
    with pytest.raises(TranscriptError, match="about a promise is incomplete"):
        promises([broken])
