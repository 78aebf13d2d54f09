"""Parts of a hospital's local work: one that fails because of values leaves the others as they are.

A refusal that depends on records would tell about them: whoever broadcasts a model that fails on one kind of
record learns who has one. So whatever goes wrong in a part of the work stays in that part. It contributes
nothing, the other parts go on and pay as planned, and the site adds zeros for what is missing.

Only what every hospital would refuse alike passes: a budget or a ledger (:class:`BudgetExceeded`,
:class:`TranscriptError`), and messages that do not fit the study or its state (:class:`WrongState`,
:class:`MalformedMessage`). Code that runs on records raises none of these because of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, ParamSpec, TypeVar

import torch

from secfed.errors import BudgetExceeded, MalformedMessage, RangeError, TranscriptError, WrongState
from secfed.wire.layout import State

INDEPENDENT_OF_RECORDS: Final = (BudgetExceeded, TranscriptError, WrongState, MalformedMessage)

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_listener: ContextVar[Callable[[Exception], None]] = ContextVar("listener", default=lambda _problem: None)


@contextmanager
def listening(listener: Callable[[Exception], None]) -> Iterator[None]:
    """Tell somebody at this site of every failure inside; in a simulation the listener may raise it.

    Security: which errors there were depends on records. None of it may leave the site.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def failed(problem: Exception) -> None:
    """Say that something failed because of values, and that the work goes on without it."""
    _listener.get()(problem)


def otherwise(
    fallback: _Result, part: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
) -> _Result:
    """What a part gives, or ``fallback`` where it failed because of values.

    Raises:
        BudgetExceeded, TranscriptError, WrongState, MalformedMessage: they do not depend on records.
    """
    try:
        return part(*args, **kwargs)
    except INDEPENDENT_OF_RECORDS:
        raise
    except Exception as problem:  # noqa: BLE001  # which error it is could depend on records
        failed(problem)
        return fallback


def all_finite(finite: torch.Tensor, what: str) -> bool:
    """Whether all are True; says so where not, for values that count as something else from here on.

    Args:
        finite: booleans of any shape.
        what: the values, in words that could be shown to anybody at this site.
    """
    if bool(finite.all()):
        return True
    failed(RangeError(f"{what}: NaN or Inf"))
    return False


def is_finite_tensor(value: torch.Tensor) -> bool:
    """Whether a tensor of any shape holds neither NaN nor Inf."""
    if value.numel() and value.dtype in (torch.float32, torch.float64):
        # Extrema carry NaN and Inf along, without further tensors of this one's size.
        value = torch.stack(torch.aminmax(value))
    return bool(torch.isfinite(value).all())


def is_finite(state: State) -> bool:
    """Whether no tensor holds NaN or Inf: what a site keeps for later rounds must not."""
    return all(is_finite_tensor(value) for value in state.values())
