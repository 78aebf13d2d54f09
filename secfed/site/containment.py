"""Local work that fails on values adds zeros for what failed, and only the hospital hears of it. Sans-I/O.

Whether a hospital answers must not depend on its records: an aggregator can broadcast a finite model on
which the update overflows exactly where some record has a property, and would read from a refusal who has
such a record. So a task is answered alike whatever the work came to:

    settled     weights and counts: what the program adds whatever its values do
    base        zeros of every field, overlaid with what is settled
    work        the program's contribution; any failure gives the base
    groups      fields that share the part of their name before the first "/"; one that is missing, of another
                shape, or not finite gives its whole group the base's values

What still passes does not depend on records (:data:`PASSING`); docs/adr/015-silence.md has the reasons.

Security: zeros hide in a sum only. What one contribution was, masks and encryption hide; that it was zeros,
nothing here tells but the alarm, which must stay at the hospital.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto.refusals import Refusal
from secfed.errors import BudgetExceeded, DataError, MalformedMessage, RangeError, TranscriptError
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import is_finite_tensor, listening

# What a site program may refuse for. Each follows from the study, the broadcast and the ledger alone.
PASSING: Final = (
    BudgetExceeded,  # the ledger does not cover the payment; it is made before a record is touched
    TranscriptError,  # the ledger cannot be read or written: a full disk, an older copy, a wrong clock
    MalformedMessage,  # the broadcast has other names or shapes than the study; it leaves as refusal 44
)

# What values alone bring about; in a simulation anything else is a defect that somebody wants to see.
VALUE_ERRORS: Final = (
    RangeError,
    DataError,
    ArithmeticError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]  # torch does not list it
    np.linalg.LinAlgError,
)

NOT_FINITE: Final = "NaN or Inf"
MISFIT: Final = "missing, unknown or of another shape"
PART: Final = "a part of the work"
LOADING: Final = "loading"  # in the place of an exchange, with round 0: before any work
DATA: Final = "data"
UNFIT: Final = "values that do not fit [data] count as defaults; see training.log"


@dataclass(frozen=True)
class Failure:
    """What an alarm says. It depends on records: it stays at the hospital."""

    round: int  # round, exchange: 0 and :data:`LOADING` for values that do not fit the study
    exchange: str
    fields: tuple[str, ...]  # groups of fields that got the base's values
    kind: str  # what went wrong: the error's class, :data:`NOT_FINITE` or :data:`MISFIT`

    def __str__(self) -> str:
        if self.exchange == LOADING and not self.round:
            return f"{self.exchange}: {self.kind}"
        what = ", ".join(self.fields)
        return f"round {self.round}, exchange {self.exchange!r}: {what} added nothing ({self.kind})"


Alarm = Callable[[Failure], None]


def contained(
    round_number: int,
    exchange: Exchange,
    work: Callable[[], Summands],
    settled: Callable[[], Summands],
    alarm: Alarm,
    *,
    only_values: bool = False,
) -> dict[str, torch.Tensor]:
    """Summands that fit the exchange's layout and are finite, whatever the work does.

    Args:
        settled: what it adds whatever its values do; asked first.
        alarm: told of every failure; must not raise.
        only_values: let failures through that values alone do not explain. For simulations, where all sites
            belong to whoever runs them, and a defect should be seen.

    Returns:
        float32 or float64 on the CPU, in the layout's order. A value beyond a field's bound is not a
        failure: fixed point clips it.

    Raises:
        BudgetExceeded, TranscriptError: a payment was refused.
        MalformedMessage: refusal 44.
        Exception: only with ``only_values``.
    """
    fields = {field.name: field for field in exchange.layout.fields}

    def failed(names: Iterable[str], kind: str) -> None:
        alarm(Failure(round_number, exchange.name, tuple(dict.fromkeys(map(_group, names))), kind))

    def attempt(run: Callable[[], Summands], names: Iterable[str]) -> Mapping[str, Any] | None:
        try:
            return dict(run())
        except MalformedMessage as error:
            if Refusal.of(error) is Refusal.BROADCAST_SHAPE:
                raise  # it was contained in a training process
            raise Refusal.BROADCAST_SHAPE.refuse(error.message) from error
        except PASSING:
            raise
        except Exception as error:
            if only_values and not isinstance(error, VALUE_ERRORS):
                raise
            failed(names, type(error).__name__)
            return None

    sure: dict[str, torch.Tensor] = {}
    for name, value in (attempt(settled, ["what is settled"]) or {}).items():
        if name not in fields:
            continue  # of another exchange
        found = _usable(value, fields[name].shape)
        if isinstance(found, str):
            failed([name], found)
        else:
            sure[name] = found
    base = {name: sure.get(name, torch.zeros(field.shape)) for name, field in fields.items()}
    left = [name for name in fields if name not in sure]
    heard: set[str] = set()

    def hear(problem: Exception) -> None:  # of a part that failed, whose rest goes on
        if only_values and not isinstance(problem, VALUE_ERRORS):
            raise problem
        heard.add(type(problem).__name__)

    with listening(hear):
        given = attempt(work, left)
    for kind in sorted(heard):
        failed([PART], kind)
    if given is None:
        return base
    usable: dict[str, torch.Tensor] = {}
    wrong: dict[str, list[str]] = {MISFIT: sorted(set(given) - set(fields)), NOT_FINITE: []}
    for name in left:
        found = _usable(given.get(name), fields[name].shape)
        if isinstance(found, str):
            wrong[found].append(name)
        else:
            usable[name] = found
    if wrong[MISFIT] and only_values and not heard:
        raise RangeError(f"summands do not match the layout: {', '.join(wrong[MISFIT])}")
    for kind, names in wrong.items():
        if names:
            failed(names, kind)
    gone = {_group(name) for names in wrong.values() for name in names}
    return base | {name: value for name, value in usable.items() if _group(name) not in gone}


def check_broadcast(state: State, bound: float) -> None:
    """Refuse a broadcast with a number that is not finite, or beyond what the study permits.

    Every site refuses it alike, before it pays or touches a record.
    """
    for tensor in state.values():
        if not tensor.numel():
            continue
        if tensor.is_complex():
            raise Refusal.BROADCAST_RANGE.refuse()
        # Rarer types have no extrema; float64 holds their numbers (of long integers, those near the bound).
        wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float64)
        low, high = torch.aminmax(wide)  # NaN is both, and compares as outside
        if not (-bound <= float(low) and float(high) <= bound):
            raise Refusal.BROADCAST_RANGE.refuse()


def check_fits(algorithm: Algorithm, round_number: int, exchange: Exchange, state: State) -> None:
    """Refuse a broadcast with other names or shapes than the study's.

    Every site refuses it alike, before it notes the task, pays or touches a record; so an honest broadcast
    can still follow.
    """
    try:
        algorithm.check_broadcast(round_number, exchange, state)
    except MalformedMessage as error:
        raise Refusal.BROADCAST_SHAPE.refuse(error.message) from error


def _group(name: str) -> str:
    return name.partition("/")[0]


def _usable(value: object, shape: tuple[int, ...]) -> torch.Tensor | str:
    """The value as fixed point takes it, or what is wrong with it."""
    try:
        dtype = None if isinstance(value, torch.Tensor) else torch.float64
        tensor = torch.as_tensor(value, dtype=dtype).detach().cpu()
        if tuple(tensor.shape) != shape or tensor.is_complex() or tensor.layout is not torch.strided:
            return MISFIT
        if tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.to(torch.float64)
        if not is_finite_tensor(tensor):
            return NOT_FINITE
    except Exception:  # noqa: BLE001 - torch raises different errors for what is not a number, and for a failing device
        return MISFIT
    return tensor
