"""The ledger: written first, never torn for good, never overspent, never silently rolled back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from secfed.crypto.identity import Identity
from secfed.dp.accounting.budget import Budget, Standing
from secfed.dp.accounting.events import Gaussian, PoissonSampledGaussian, Skellam
from secfed.dp.accounting.interface import Pld, Rdp, Statement, statement
from secfed.dp.accounting.unit import Adjacency, Unit
from secfed.dp.ledger import ledger as ledger_module
from secfed.dp.ledger.ledger import BUDGETS, REFUSED, SPENT, Ledger, spent_of, verify
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import BudgetExceeded, ConfigError, TranscriptError
from secfed.records.hash_chain import BrokenChain
from tests.dp.ledger_child import IDENTITY, NOW_S
from tests.dp.toys import CROSS_ENTROPY, mechanism, mlp, parameters, sgd, table
from tests.dp.wards import ADD, DAY_S, HIDES, REPLACE, ZERO, Clock, audit, book, kinds, lines, read, spend


def test_an_entry_says_everything_an_auditor_needs(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(8.0, 1e-5, period_days=365))
    event = PoissonSampledGaussian(ADD, 0.1, 1.5, 30)
    entry = ledger.spend(event, study="heart", round_number=4, exchange="update")
    found = read(tmp_path / "ledger")[-1]
    assert found == entry
    standing = statement([event], 1e-5, Rdp())
    assert json.loads(found.line())["body"] == {
        "study": "heart",
        "round": 4,
        "exchange": "update",
        "event": {
            "event": "poisson-sampled-gaussian/1",
            "adjacency": "add-or-remove-record",
            "sampling_rate": 0.1,
            "noise_multiplier": 1.5,
            "steps": 30,
        },
        "record_private": False,
        "time_s": NOW_S,
        "after": [
            {
                "epsilon": 8.0,
                "delta": 1e-5,
                "period_days": 365,
                "protects": "record",
                "spent": {
                    "epsilon": standing.epsilon,
                    "adjacency": "add-or-remove-record",
                    "accountant": "rdp",
                    "version": standing.version,
                },
            }
        ],
    }


def test_spending_composes_across_studies_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for study in ("one", "two"):
        book(path).spend(Gaussian(ADD, 8.0, 5), study=study, round_number=1, exchange="update")
    (standing,) = book(path).standings()
    assert standing.epsilon == statement([Gaussian(ADD, 8.0, 10)], 1e-5, Rdp()).epsilon
    assert kinds(path) == ["opened", BUDGETS, SPENT, SPENT]


def test_a_budget_refuses_before_it_is_exceeded_and_records_the_refusal(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(2.5, 1e-5))
    spend(ledger, sigma=4.0, count=3)
    with pytest.raises(BudgetExceeded, match="data set 'wards': round 2 of study 's'") as error:
        spend(ledger, sigma=4.0, count=3, round_number=2)
    assert "epsilon 2.5" in error.value.message
    assert error.value.remedy
    assert kinds(tmp_path / "ledger")[-1] == REFUSED
    (standing,) = ledger.standings()
    assert standing.epsilon == statement([Gaussian(ADD, 4.0, 3)], 1e-5, Rdp()).epsilon
    spend(ledger, sigma=400.0, round_number=3)  # something smaller still fits


def test_no_noise_never_fits_a_budget(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(None, 1e-5))
    with pytest.raises(BudgetExceeded):
        spend(ledger, sigma=0.0)
    spend(ledger, sigma=0.3)  # large, finite, and without a limit only recorded


def test_a_period_forgets_what_is_older(tmp_path: Path) -> None:
    clock = Clock()
    ledger = book(tmp_path / "ledger", Budget(2.5, 1e-5, period_days=365), Budget(9.0, 1e-5), clock=clock)
    spend(ledger, sigma=4.0, count=3)
    with pytest.raises(BudgetExceeded, match="per 365 days"):
        spend(ledger, sigma=4.0, count=3)
    clock.now_s += 364 * DAY_S
    with pytest.raises(BudgetExceeded):
        spend(ledger, sigma=4.0, count=3)
    clock.now_s += 2 * DAY_S
    spend(ledger, sigma=4.0, count=3)
    yearly, whole = ledger.standings()
    assert yearly.epsilon < 2.5 < whole.epsilon


def test_a_clock_that_is_set_back_does_not_reopen_a_period(tmp_path: Path) -> None:
    clock = Clock()
    ledger = book(tmp_path / "ledger", Budget(2.5, 1e-5, period_days=10), clock=clock)
    spend(ledger, sigma=4.0, count=3)
    clock.now_s -= 3000
    with pytest.raises(BudgetExceeded):
        spend(ledger, sigma=4.0, count=3)
    times = [entry.body["time_s"] for entry in read(tmp_path / "ledger")[1:]]
    assert times == sorted(times)


def test_nothing_is_paid_while_entries_are_dated_ahead_of_the_clock(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger", Clock()
    ledger = book(path, Budget(2.5, 1e-5, period_days=365), clock=clock)
    clock.now_s += 400 * DAY_S
    ledger.spend(Gaussian(ADD, 4.0, 3), study="s", round_number=1, exchange="update", release="a/1")
    clock.now_s -= 400 * DAY_S
    before = path.read_bytes()
    for sigma in (4.0, 400.0):  # also of what the budget covers
        with pytest.raises(
            TranscriptError,
            match=r"line 3 is dated 2028-02-19 08:00 UTC; the clock of this machine.* 400 days earlier",
        ) as told:
            spend(ledger, sigma=sigma)
    assert str(path) in told.value.message
    assert told.value.message.endswith("says 2027-01-15 08:00 UTC, 400 days earlier")
    assert told.value.remedy.startswith("set that clock")
    assert "another name in policy.toml" in told.value.remedy
    assert path.read_bytes() == before
    # What was paid is not paid again, and what stands there is still counted.
    assert ledger.spend(Gaussian(ADD, 4.0, 3), study="s", round_number=1, exchange="update", release="a/1")
    (standing,) = ledger.standings()
    assert standing.epsilon == statement([Gaussian(ADD, 4.0, 3)], 1e-5, Rdp()).epsilon
    clock.now_s += 400 * DAY_S - 3000  # two clocks differ by a little
    spend(ledger, sigma=400.0)


@pytest.mark.parametrize("now_s", [1e18, -5.0, 253_402_300_800.0, float("nan")])
def test_a_clock_that_tells_no_date_is_named(tmp_path: Path, now_s: float) -> None:
    clock = Clock()
    ledger = book(tmp_path / "ledger", clock=clock)
    before = (tmp_path / "ledger").read_bytes()
    clock.now_s = now_s
    for use in (lambda: spend(ledger), ledger.standings, lambda: book(tmp_path / "other", clock=clock)):
        with pytest.raises(TranscriptError, match=r"the clock of this machine .* says") as caught:
            use()
        assert str(tmp_path) in caught.value.message
        assert caught.value.remedy == "set that clock"
    assert (tmp_path / "ledger").read_bytes() == before


def test_site_noise_costs_records_unless_they_were_already_private(tmp_path: Path) -> None:
    event = Skellam(ZERO, 1000.0, 1e5, 1e8, 1)
    budgets = (Budget(50.0, 1e-5), Budget(50.0, 1e-5, protects=Unit.SITE))
    for record_private in (False, True):
        ledger = book(tmp_path / f"ledger-{record_private}", *budgets)
        ledger.spend(event, study="s", round_number=1, exchange="update", record_private=record_private)
        record, site = ledger.standings()
        assert site.epsilon == statement([event], 1e-5, Rdp()).epsilon
        if record_private:
            assert record.epsilon == 0.0
        else:
            assert record.epsilon == statement([event.restated(REPLACE)], 1e-5, Rdp()).epsilon
            assert record.epsilon > site.epsilon


@pytest.mark.parametrize(("one", "other"), [(ADD, REPLACE), (HIDES, REPLACE), (HIDES, ADD)])
def test_records_spent_under_two_relations_are_stated_under_replace(
    tmp_path: Path, one: Adjacency, other: Adjacency
) -> None:
    ledger = book(tmp_path / "ledger", Budget(50.0, 1e-5), accountant=Pld(1e-3))
    for relation in (one, other):
        ledger.spend(Gaussian(relation, 8.0, 1), study="t", round_number=1, exchange="update")
    (standing,) = ledger.standings()
    assert standing.spent is not None
    assert standing.spent.adjacency is REPLACE
    assert standing.epsilon == Pld(1e-3).epsilon([Gaussian(REPLACE, 8.0, 2)], 1e-5)


def test_changed_limits_are_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for epsilon in (8.0, 8.0, 3.0, 8.0):
        book(path, Budget(epsilon, 1e-5))
    recorded = [entry.body["budgets"][0]["epsilon"] for entry in read(path) if entry.kind == BUDGETS]
    assert recorded == [8.0, 3.0, 8.0]
    assert Budget.from_value(read(path)[1].body["budgets"][0]) == Budget(8.0, 1e-5)


def test_a_ledger_belongs_to_one_site_and_one_data_set(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    book(path)
    with pytest.raises(TranscriptError, match="another data set"):
        Ledger(path, IDENTITY, "other", (Budget(8.0, 1e-5),))
    with pytest.raises(BrokenChain):
        Ledger(path, Identity.generate("clinic"), "wards", (Budget(8.0, 1e-5),))


@pytest.mark.parametrize("where", ["hash", "epsilon", "reorder", "remove", "foreign"])
def test_any_change_is_found_and_named(tmp_path: Path, where: str) -> None:
    path = tmp_path / "ledger"
    ledger = book(path)
    for number in range(3):
        spend(ledger, round_number=number + 1)
    entries = lines(path)
    if where == "hash":
        entries[2] = entries[2].replace(b'"round":1', b'"round":7')
    elif where == "epsilon":
        entries[3] = entries[3].replace(b'"noise_multiplier":20.0', b'"noise_multiplier":99.0')
    elif where == "reorder":
        entries[2], entries[3] = entries[3], entries[2]
    elif where == "remove":
        del entries[3]
    else:
        other = Ledger(tmp_path / "forged", Identity.generate("clinic"), "wards", (Budget(8.0, 1e-5),))
        assert other.head
        entries[2:] = lines(tmp_path / "forged")[1:]
    with pytest.raises(BrokenChain) as error:
        verify(entries, IDENTITY.public_bytes)
    assert error.value.line == {"hash": 3, "epsilon": 4, "reorder": 3, "remove": 4, "foreign": 3}[where]
    path.write_bytes(b"".join(entries))
    with pytest.raises(BrokenChain):
        spend(book(path))


def test_an_audit_recomputes_every_epsilon(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = book(path, Budget(8.0, 1e-5), Budget(5.0, 1e-6, period_days=30))
    for number in range(3):
        spend(ledger, sigma=10.0, round_number=number + 1)
    audit(read(path), Rdp())
    honest = ledger_module.standing

    def half(*arguments):  # type: ignore[no-untyped-def]
        found = honest(*arguments)
        return replace(found, spent=replace(found.spent, epsilon=found.epsilon / 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "standing", half)
        spend(ledger, sigma=10.0, round_number=4)
    with pytest.raises(AssertionError, match=r"line 6: .*the events give"):
        audit(read(path), Rdp())
    assert len(spent_of(read(path))) == 4


def test_the_ledger_pays_before_private_training_touches_anything(tmp_path: Path) -> None:
    ledger = book(tmp_path / "ledger", Budget(2.0, 1e-5), accountant=Rdp())
    model = mlp()
    spender = ledger.spender(study="s", round_number=1, exchange="update")
    private = PrivateTraining(mechanism(sigma=4.0, rate=0.5), engine="loop", spend=spender)
    private.run(model, sgd(model), CROSS_ENTROPY, table(), steps=2)
    assert spent_of(read(tmp_path / "ledger"))[0].event == mechanism(sigma=4.0, rate=0.5).event(2)
    before = parameters(model)
    with pytest.raises(BudgetExceeded):
        private.run(model, sgd(model), CROSS_ENTROPY, table(), steps=500)
    assert torch.equal(parameters(model), before)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Budget(0.0, 1e-5), "epsilon"),
        (lambda: Budget(float("inf"), 1e-5), "epsilon"),
        (lambda: Budget(1.0, 0.0), "delta"),
        (lambda: Budget(1.0, 1e-5, period_days=0), "period"),
        (lambda: Budget(1.0, 1e-5, protects=Unit.GROUP), "records or sites"),
        (lambda: Budget.from_value({"epsilon": 1.0}), "cannot be read"),
    ],
)
def test_impossible_budgets_are_refused(make, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=why):
        make()


@pytest.mark.parametrize(
    "body", [{}, {"time_s": 1.5, "record_private": False}, {"time_s": 1, "record_private": False}]
)
def test_entries_that_cannot_be_read_are_not_skipped(body: dict[str, object]) -> None:
    with pytest.raises(TranscriptError):
        ledger_module.Spent.from_body(body)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_an_epsilon_that_is_no_number_exceeds_every_budget(limit: float | None) -> None:
    spent = Statement(float("nan"), 1e-5, ADD, "pld", "1")
    assert Standing(Budget(limit, 1e-5), spent).exceeded


def test_what_was_refused_last_is_refused_again_before_anything_is_done(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger", Clock()
    ledger = book(path, Budget(2.5, 1e-5, period_days=10), clock=clock)
    spend(ledger, sigma=4.0, count=3)
    ledger.check_study("s")
    with pytest.raises(BudgetExceeded):
        spend(ledger, sigma=4.0, count=3, round_number=2)
    before = kinds(path)
    with pytest.raises(BudgetExceeded, match="the next payment of study 's'"):
        ledger.check_study("s")
    ledger.check_study("another")
    assert kinds(path) == before, "asking writes nothing"
    book(path, Budget(9.0, 1e-5), clock=clock).check_study("s")  # the policy permits more
    clock.now_s += 11 * DAY_S
    book(path, Budget(2.5, 1e-5, period_days=10), clock=clock).check_study("s")  # the period is over
    clock.now_s -= 30 * DAY_S
    with pytest.raises(TranscriptError, match=r"this machine .* says"):
        ledger.check_study("s")
