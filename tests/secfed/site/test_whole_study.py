"""A study opens at a hospital only if the budgets carry it to its end, unless it has paid there before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event, Gaussian, compose
from secfed.dp.accounting.interface import Rdp, statement
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import BudgetExceeded
from secfed.site import runtime
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, study

STEPS = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 8.0, 3)


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(study("masked", "site", 2), tmp_path / "x")
    yield made
    made.close()


@pytest.fixture
def hospital(consortium: Consortium) -> Hospital:
    return consortium.hospitals[VICTIM]


def ledger(hospital: Hospital) -> Ledger:
    assert hospital.open is not None
    assert hospital.open.privacy is not None
    return hospital.open.privacy.ledger


def whole_cost(hospital: Hospital) -> float:
    """Of the noise in the sums; the consortium's studies have no local steps."""
    algorithm, rounds = hospital.terms.algorithm, hospital.terms.study.rounds
    noise = runtime.noise_payments(algorithm, rounds, VICTIM, hospital.terms.sites)
    return statement(noise, 1e-4, Rdp()).epsilon


def limited(hospital: Hospital, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_in_force", lambda *_: (Budget(epsilon, 1e-4, protects="site"),))


def test_noise_in_the_sums_that_does_not_fit_is_refused_at_the_opening(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(hospital, whole_cost(hospital) * 0.99, monkeypatch)
    with pytest.raises(BudgetExceeded, match="the whole of study"):
        hospital.start()
    hospital.open = None
    limited(hospital, whole_cost(hospital), monkeypatch)
    hospital.start()


@pytest.mark.parametrize("dataset", ["wards", "beds"])
def test_a_study_that_has_paid_opens_whatever_it_will_cost(
    dataset: str, consortium: Consortium, hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium.run()
    assert hospital.open is not None
    hospital.dataset = dataset
    limited(hospital, 1e-3, monkeypatch)
    opened = hospital.start()
    opened.check_whole([STEPS])


def test_local_steps_count_beside_the_noise(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Event, ...]] = []
    monkeypatch.setattr(Ledger, "check_study", lambda _self, _study, whole: asked.append(compose(whole)))
    opened = hospital.start()
    opened.check_whole([STEPS])
    opened.check_whole([])  # nothing that was not known at the opening
    noise, both = asked
    assert set(both) == {*noise, STEPS}


def test_lower_budgets_stop_a_running_study_at_a_payment_only(hospital: Hospital) -> None:
    assert hospital.open is not None
    hospital.open.set_budgets([Budget(1e-3, 1e-4)])
    assert ledger(hospital).budgets == (Budget(1e-3, 1e-4),)
