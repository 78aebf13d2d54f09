"""What hospitals answer does not depend on their records: traps in the model, numbers that no training has.

Real sites with memories and transcripts, asked as an aggregator asks them. A trap is a finite model within
the study's bound on which the update overflows where some record exceeds a threshold.
"""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanSite
from secfed.crypto.codec import Buffer
from secfed.crypto.refusals import Refusal
from secfed.errors import BudgetExceeded, SecfedError
from secfed.site.opening_session import OpeningSession
from secfed.study.study import Study
from secfed.wire.frames import READY, Task, encode_state
from secfed.wire.layout import Exchange, State, Summands
from tests.secfed.durable_case import NAMES, VICTIM, Consortium, Hospital, study

KINDS = [
    ("plain", None),
    ("masked", None),
    ("masked", "record"),
    ("masked", "site"),
    ("closed", None),
    ("encrypted", None),
]
DEPTH = 8


class Trapdoor(nn.Module):
    """One feature in, and then nothing but factors."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, 1)
        self.factors = nn.ModuleList([nn.Linear(1, 1) for _ in range(DEPTH)])
        self.last = nn.Linear(1, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for factor in self.factors:
            x = torch.relu(factor(x))
        return self.last(x)


def trapdoor(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Trapdoor(input_shape[0], classes)


def trapped(protected: str, unit: str | None) -> Study:
    if protected == "encrypted":
        pytest.importorskip("tenseal")
    return study(protected, unit).replace("model.name", "tests.secfed.site.test_silence:trapdoor")


def armed(consortium: Consortium, *, fires: bool) -> State:
    """A model that overflows at the victim's largest record in some feature, and nowhere else; or nowhere."""
    algorithm: Any = consortium.terms.algorithm
    algorithm = getattr(algorithm, "inner", algorithm)
    data = {name: algorithm.site_data(name) for name in NAMES}
    tops = {name: torch.cat([one.train_x, one.test_x]).amax(0) for name, one in data.items()}
    others = torch.stack([tops[name] for name in NAMES if name != VICTIM]).amax(0)
    found = data[VICTIM].train_x.amax(0)
    feature = int(((found - others) / others.abs().clamp(min=1.0)).argmax())
    assert found[feature] > others[feature]
    threshold = float((found[feature] + others[feature]) / 2) if fires else 1e5
    state = {name: torch.zeros_like(value) for name, value in algorithm.initial.items()}
    state["first.weight"][0, feature] = 1.0
    state["first.bias"][0] = -threshold
    for index in range(DEPTH):
        state[f"factors.{index}.weight"][:] = 1e6
    state["last.weight"][0], state["last.weight"][1] = 1e6, -1e6
    return state


def begin(consortium: Consortium, state: State) -> None:
    """The model that everybody starts from; under encryption the hospitals' own states have it."""
    consortium.start = state
    for hospital in consortium.hospitals.values():
        assert hospital.open is not None
        if isinstance(hospital.open.site, OpeningSession):
            hospital.open.site.replica.begin(state)  # type: ignore[attr-defined]


def seen(consortium: Consortium) -> list[Any]:
    """All that the aggregator has seen, but for digests, signatures and ciphertext."""
    entries = [(kind, body.get("round"), body.get("survivors")) for kind, body in consortium.log]
    frames = [
        (stage, name, reply if reply == READY else None if reply is None else len(reply))
        for stage, name, _, reply in consortium.frames
    ]
    return [entries, frames]


@pytest.mark.parametrize(("protected", "unit"), KINDS)
def test_a_trap_for_one_record_changes_no_answer(protected: str, unit: str | None, tmp_path: Path) -> None:
    views, alarms, paid = [], [], []
    for fires in (False, True):
        with closing(Consortium(trapped(protected, unit), tmp_path / str(fires))) as consortium:
            begin(consortium, armed(consortium, fires=fires))
            consortium.run()
            views.append(seen(consortium))
            alarms.append({name for name in NAMES if consortium.hospitals[name].alarms})
            if unit is not None:
                payments = {name: len(one.payments()) for name, one in consortium.hospitals.items()}
                paid.append(payments)
                assert len(set(payments.values())) == 1
    assert views[0] == views[1]
    assert all(reply is not None for _, _, reply in views[1][1])
    assert [kind for kind, _, _ in views[1][0]] == ["summed"] * len(views[1][0])
    assert paid == paid[:1] * len(paid)
    assert alarms[0] == set()
    if unit != "record":  # there a gradient that is not finite is nothing but a gradient of zero
        assert alarms[1] == {VICTIM}


@pytest.mark.parametrize("unit", [None, "record", "site"])
@pytest.mark.parametrize("error", [ValueError("4711"), RuntimeError("CUDA out of memory"), MemoryError()])
def test_whatever_the_work_raises_the_answer_is_the_same(
    unit: str | None, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> Summands:
        raise error

    monkeypatch.setattr(WeightedMeanSite, "contribute", failing)
    weights = {"weight": 0.25} if unit != "site" else {}
    monkeypatch.setattr(WeightedMeanSite, "settled", lambda *_: weights, raising=False)
    with closing(Consortium(study("masked", unit), tmp_path)) as consortium:
        hospital = consortium.hospitals[VICTIM]
        assert hospital.handle(task(consortium)) == READY
        (alarm,) = hospital.alarms
        assert alarm.kind == type(error).__name__
        assert "4711" not in str(alarm)
        assert hospital.open is not None
        kept = hospital.open.store.contribution()
        assert kept is not None
        settled = {name: float(value) for name, value in kept[1].items() if name == "weight"}
        assert settled == weights
        assert all(not bool(value.any()) for name, value in kept[1].items() if name != "weight")


def test_a_payment_that_is_refused_is_still_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpaid(*_: object) -> Summands:
        raise BudgetExceeded("nothing is left")

    monkeypatch.setattr(WeightedMeanSite, "contribute", unpaid)
    with closing(Consortium(study("masked", "record"), tmp_path)) as consortium:
        with pytest.raises(BudgetExceeded):
            consortium.hospitals[VICTIM].handle(task(consortium))
        assert consortium.hospitals[VICTIM].alarms == []


def task(consortium: Consortium, change: Any = None) -> Buffer:
    """The task of round 1, its model changed."""
    algorithm = consortium.terms.algorithm
    exchange: Exchange = algorithm.exchanges(1)[0]
    state = dict(algorithm.server().broadcast(1, exchange))
    if change is not None:
        name = next(iter(state))
        state[name] = change(state[name].clone())
    return Task(consortium.terms.study_id, 1, 0, exchange.name, encode_state(state)).encode()


def with_one(value: float) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.reshape(-1)[0] = value
        return tensor

    return change


def answer(hospital: Hospital, frame: Buffer) -> bytes | str:
    try:
        return hospital.handle(frame)
    except SecfedError as error:
        return str(error)


@pytest.mark.parametrize("unit", [None, "record", "site"])
def test_numbers_beyond_the_bound_are_refused_alike_and_before_a_payment(
    unit: str | None, tmp_path: Path
) -> None:
    with closing(Consortium(study("masked", unit), tmp_path)) as consortium:
        for value in (math.nan, math.inf, -math.inf, 1e38, 1.1e6):
            frame = task(consortium, with_one(value))
            answers = {answer(hospital, frame) for hospital in consortium.hospitals.values()}
            assert answers == {str(Refusal.BROADCAST_RANGE.refuse())}
        for hospital in consortium.hospitals.values():
            assert hospital.trained == 0
            assert unit is None or hospital.payments() == []
        frame = task(consortium, with_one(1e-45))  # smaller than any normal number
        assert {answer(hospital, frame) for hospital in consortium.hospitals.values()} == {READY}


def test_a_site_that_the_study_does_not_ask_neither_pays_nor_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "members", lambda *_: [name for name in NAMES if name != VICTIM])
    with closing(Consortium(study("masked", "record"), tmp_path)) as consortium:
        hospital = consortium.hospitals[VICTIM]
        assert answer(hospital, task(consortium)) == str(Refusal.NOT_PLANNED.refuse(VICTIM))
        assert (hospital.trained, hospital.payments()) == (0, [])


@pytest.mark.parametrize("unit", [None, "record", "site"])
def test_another_shape_is_refused_alike_and_before_a_payment(unit: str | None, tmp_path: Path) -> None:
    with closing(Consortium(study("masked", unit), tmp_path)) as consortium:
        frame = task(consortium, lambda tensor: tensor[:1])
        (said,) = {answer(hospital, frame) for hospital in consortium.hospitals.values()}
        assert str(said).startswith("refusal 44")
        for hospital in consortium.hospitals.values():
            assert hospital.trained == 0
            assert unit is None or hospital.payments() == []
        # Nothing was noted either: the honest broadcast of the same exchange is worked on.
        assert {answer(hospital, task(consortium)) for hospital in consortium.hospitals.values()} == {READY}


def test_the_study_may_set_another_bound(tmp_path: Path) -> None:
    chosen = study("masked", None)
    assert chosen.replace("protection.broadcast_bound", 1e6).digest() == chosen.digest()
    wide = chosen.replace("protection.broadcast_bound", 1e9)
    assert wide.digest() != chosen.digest()
    with closing(Consortium(wide, tmp_path)) as consortium:
        assert answer(consortium.hospitals[VICTIM], task(consortium, with_one(1e8))) == READY
        assert "refusal 43" in str(answer(consortium.hospitals[NAMES[0]], task(consortium, with_one(1e10))))


def test_under_encryption_the_own_state_is_checked_likewise(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    with closing(Consortium(study("encrypted", None), tmp_path)) as consortium:
        algorithm: Any = consortium.terms.algorithm
        begin(consortium, {name: value + 2e6 for name, value in algorithm.initial.items()})
        consortium.run()
        refused = [stage for stage, _, _, reply in consortium.frames if reply is None]
        assert len(refused) >= len(NAMES)
        assert all("refusal 43" in stage for stage in refused)
