"""What a study at a hospital was promised of a budget, from its opening to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event, Gaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger, verify
from secfed.dp.ledger.promises import ENDED, PROMISED, promises
from secfed.errors import BudgetExceeded, TranscriptError
from secfed.records.hash_chain import Entry
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from secfed.site.runtime import SiteStudy
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


def opened(hospital: Hospital) -> SiteStudy:
    assert hospital.open is not None
    return hospital.open


def ledger(hospital: Hospital) -> Ledger:
    privacy = opened(hospital).privacy
    assert privacy is not None
    return privacy.ledger


def entries(hospital: Hospital) -> tuple[Entry, ...]:
    path = ledger_file(hospital.state, "wards")
    return verify(path.read_bytes().splitlines(keepends=True), hospital.identity.public_bytes)


def test_noise_in_the_sums_of_all_rounds_and_all_local_steps_are_promised_and_end(
    consortium: Consortium, hospital: Hospital
) -> None:
    opened(hospital).promise([STEPS])
    ((name, promise),) = promises(entries(hospital)).items()
    assert name == consortium.terms.study_id
    assert STEPS in promise.whole
    assert [event.times for event in promise.whole if event != STEPS] == [2]
    consortium.run()
    opened(hospital).promise([STEPS])
    assert promises(entries(hospital))[name].rest == (STEPS,), "what the sums cost was paid"
    opened(hospital).finish()
    assert not promises(entries(hospital))
    opened(hospital).finish()
    assert [entry.kind for entry in entries(hospital)].count(ENDED) == 1


def test_lower_budgets_end_a_study_that_they_do_not_carry(hospital: Hospital) -> None:
    wide, narrow = (Budget(epsilon, 1e-4) for epsilon in (1e4, 1e-3))
    opened(hospital).set_budgets([wide])
    opened(hospital).promise([STEPS])
    opened(hospital).set_budgets([wide])
    with pytest.raises(BudgetExceeded, match="the whole of study"):
        opened(hospital).set_budgets([narrow])


@pytest.mark.parametrize("how", ["closed", "damaged", "refused"])
def test_a_study_that_ended_without_a_word_in_the_ledger_holds_nothing_back(
    how: str, consortium: Consortium, hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_id = consortium.terms.study_id
    opened(hospital).promise([STEPS])

    def fails(*_: Any) -> None:
        raise TranscriptError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "end", fails)
        if how != "refused":
            opened(hospital).finish()
    assert study_id in promises(entries(hospital))
    path = opened(hospital).folder / TRANSCRIPT_FILE
    if how == "damaged":
        path.write_bytes(path.read_bytes().replace(b'"closed"', b'"cl0sed"'))
    other = opened(hospital)
    whole: tuple[Event, ...] = (STEPS,)
    monkeypatch.setitem(vars(other.terms), "study_id", "another-" + 64 * "0")
    other.promise(whole, refused=lambda one: how == "refused" and one == study_id)
    standing = promises(entries(hospital))
    assert "another-" + 64 * "0" in standing
    assert (study_id in standing) is (how == "damaged")
    kinds = [entry.kind for entry in entries(hospital)]
    assert kinds.count(PROMISED) == 2
    assert kinds.count(ENDED) == (how != "damaged")
