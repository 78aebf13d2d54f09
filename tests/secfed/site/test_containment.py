"""Local work that fails adds zeros for what failed, and says so to nobody but the site."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from secfed.algorithms.framework.base import SiteProgram
from secfed.crypto.refusals import Refusal
from secfed.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    MalformedMessage,
    RangeError,
    TranscriptError,
    WrongState,
)
from secfed.site.containment import MISFIT, NOT_FINITE, Failure, check_broadcast, contained
from secfed.wire.layout import Exchange, Field, Layout, Summands

LAYOUT = Layout(
    (
        Field("update/w", (2, 2), 4.0),
        Field("update/b", (2,), 4.0),
        Field("weight", (), 1.0, 64),
        Field("eval/loss", (), 100.0, 64),
        Field("eval/count", (), 100.0, 64),
    ),
    sites=3,
)
EXCHANGE = Exchange("update", "all", LAYOUT)
SETTLED = {"weight": 0.5, "eval/count": 7.0}


def whole(**changes: Any) -> dict[str, Any]:
    good = {
        "update/w": torch.ones(2, 2),
        "update/b": torch.ones(2),
        "weight": 0.5,
        "eval/loss": 3.0,
        "eval/count": 7.0,
    }
    return good | {name.replace("__", "/"): value for name, value in changes.items()}


def run(
    work: Callable[[], Any], ahead: Callable[[], Summands] = lambda: SETTLED, **more: bool
) -> tuple[dict[str, list[float]], list[Failure]]:
    alarms: list[Failure] = []
    given = contained(3, EXCHANGE, work, ahead, alarms.append, **more)
    assert list(given) == [field.name for field in LAYOUT.fields]
    LAYOUT.encoder(given, None)  # type: ignore[arg-type]  # only checked, not read
    return {name: value.reshape(-1).tolist() for name, value in given.items()}, alarms


GOOD, _ = run(whole)
ZEROED = {**GOOD, "update/w": [0.0] * 4, "update/b": [0.0] * 2, "eval/loss": [0.0]}


def failing(error: BaseException) -> Callable[[], Summands]:
    def work() -> Summands:
        raise error

    return work


def test_good_work_is_left_as_it_is() -> None:
    given, alarms = run(whole)
    assert given["update/w"] == [1.0] * 4
    assert given["weight"] == [0.5]
    assert alarms == []
    value = torch.full((2,), 1e30)
    assert contained(1, EXCHANGE, lambda: whole(update__b=value), dict, alarms.append)["update/b"] is not None
    assert alarms == []  # beyond the bound is no failure: fixed point clips


class Odd(Exception):
    """Of somebody's own code."""


@pytest.mark.parametrize(
    "error",
    [
        RangeError("x"),
        DataError("x"),
        ConfigError("two engines disagree"),
        WrongState("an exchange before this one failed"),
        ZeroDivisionError(),
        OverflowError(),
        ValueError(),
        RuntimeError("CUDA out of memory"),
        MemoryError(),
        torch.linalg.LinAlgError(),  # type: ignore[attr-defined]
        OSError(28, "No space left on device"),
        AssertionError(),
        Odd("patient 7"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_any_error_of_the_work_leaves_weights_and_counts_and_zeros(error: Exception) -> None:
    given, alarms = run(failing(error))
    assert given == ZEROED
    (alarm,) = alarms
    assert alarm == Failure(3, "update", ("update", "eval"), type(error).__name__)
    assert "patient" not in str(alarm)


@pytest.mark.parametrize("error", [BudgetExceeded("spent"), TranscriptError("the ledger is full")])
def test_a_payment_that_is_refused_passes(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(failing(error))
    with pytest.raises(type(error)):
        run(whole, failing(error))


def test_a_broadcast_of_another_shape_passes_as_one_refusal() -> None:
    with pytest.raises(MalformedMessage) as caught:
        run(failing(MalformedMessage("parameter 'w' has another shape")))
    assert Refusal.of(caught.value) is Refusal.BROADCAST_SHAPE
    with pytest.raises(MalformedMessage) as again:  # by a training process, and then by the agent
        run(failing(caught.value))
    assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_ends_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(failing(error))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_number_that_is_not_finite_takes_its_group_with_it(bad: float, dtype: torch.dtype) -> None:
    given, alarms = run(lambda: whole(update__b=torch.tensor([1.0, bad], dtype=dtype)))
    assert given == {**GOOD, "update/w": [0.0] * 4, "update/b": [0.0] * 2}
    assert alarms == [Failure(3, "update", ("update",), NOT_FINITE)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "one",
        torch.ones(3),
        torch.ones(2, 1),
        [1.0, 2.0, 3.0],
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2).to_sparse(),
        object(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_does_not_fit_its_field_takes_its_group_with_it(value: object) -> None:
    given, alarms = run(lambda: whole(update__b=value))
    assert given == {**GOOD, "update/w": [0.0] * 4, "update/b": [0.0] * 2}
    assert alarms == [Failure(3, "update", ("update",), MISFIT)]
    with pytest.raises(RangeError, match="do not match the layout: update/b"):
        run(lambda: whole(update__b=value), only_values=True)


def test_missing_and_unknown_fields() -> None:
    missing = {name: value for name, value in whole().items() if name != "eval/loss"}
    given, alarms = run(lambda: {**missing, "secret": torch.ones(5)})
    assert given == {**GOOD, "eval/loss": [0.0]}
    assert alarms == [Failure(3, "update", ("secret", "eval"), MISFIT)]
    given, _ = run(lambda: None)
    assert given == ZEROED


def test_what_is_settled_wins_over_what_the_work_says_of_it() -> None:
    given, alarms = run(lambda: whole(weight=math.nan, eval__count=9.0))
    assert given == GOOD
    assert alarms == []
    given, _ = run(whole, lambda: {"weight": 0.25, "of another exchange": 1.0})
    assert given == {**GOOD, "weight": [0.25]}


def test_settled_values_that_cannot_be_are_zeros() -> None:
    given, alarms = run(failing(ValueError()), lambda: {"weight": math.nan, "eval/count": 7.0})
    assert given == {**ZEROED, "weight": [0.0]}
    assert alarms[0] == Failure(3, "update", ("weight",), NOT_FINITE)
    given, alarms = run(whole, failing(ValueError()))
    assert given == GOOD
    assert [alarm.kind for alarm in alarms] == ["ValueError"]


@pytest.mark.parametrize("error", [RangeError("x"), DataError("x"), ZeroDivisionError()])
def test_in_a_simulation_values_are_contained(error: Exception) -> None:
    assert run(failing(error), only_values=True)[0] == ZEROED
    assert run(lambda: whole(eval__loss=math.nan), only_values=True)[0] == {**GOOD, "eval/loss": [0.0]}


@pytest.mark.parametrize("error", [TypeError("a bug"), RuntimeError("a bug"), ConfigError("x"), Odd()])
def test_and_defects_are_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(failing(error), only_values=True)


def test_a_program_without_settled_values_has_none() -> None:
    class Program(SiteProgram):
        def contribute(self, *_: object) -> Summands:
            return {}

    class Settling(Program):
        def settled(self, round_number: int, exchange: Exchange) -> Summands:
            return {"weight": float(round_number)} if exchange is EXCHANGE else {}

    assert Program().settled(2, EXCHANGE) == {}
    assert Settling().settled(2, EXCHANGE) == {"weight": 2.0}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, math.nan]),
        torch.tensor(math.inf),
        torch.tensor([-math.inf], dtype=torch.float64),
        torch.tensor([1e38]),
        torch.tensor([-1.01e6]),
        torch.tensor([math.nan], dtype=torch.bfloat16),
        torch.tensor([60000.0, math.inf], dtype=torch.float16),
        torch.tensor([2**62]),
        torch.tensor([1j]),
    ],
    ids=str,
)
def test_a_broadcast_beyond_the_bound_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(MalformedMessage) as caught:
        check_broadcast({"fine": torch.zeros(2), "w": tensor}, 1e6)
    assert Refusal.of(caught.value) is Refusal.BROADCAST_RANGE


def test_a_broadcast_within_it_is_not() -> None:
    check_broadcast(
        {
            "denormal": torch.tensor([1e-45, -1e-45]),
            "edge": torch.tensor([1e6, -1e6]),
            "empty": torch.zeros(0),
            "mask": torch.tensor([True]),
            "count": torch.tensor([7]),
            "half": torch.tensor([65504.0], dtype=torch.float16),
        },
        1e6,
    )
