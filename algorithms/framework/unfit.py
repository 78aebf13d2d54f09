"""Values that do not fit the study's [data]: an error in a simulation, a public default at a hospital.

The study's author chooses [data]: limits, scales, categories, labels. If a hospital refused a study because
one value does not fit, the author could ask for study after study, which cost nothing, and find any value by
bisection. So at a hospital such a value counts as a public default, the number of records stays what it is,
and its own people hear of it. In a simulation all records belong to whoever runs it, and an error is better.

    a number                       missing; where nothing is imputed, 0 after scaling
    a category or a finding        none of them
    a label                        class 0
    an image                       blank: 0 everywhere, after normalising
    a report, or a token in it     no words; the token for an unknown word
    a patient's name               all records without one count as one patient
    no training record at all      one blank record, which adds zeros where records are to be hidden

What does not follow from single values stays an error at both: files, columns, arrays, shapes and types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from secfed.errors import DataError

_listener: ContextVar[Callable[[DataError], None] | None] = ContextVar("unfit values", default=None)


@contextmanager
def counted_as_defaults(listener: Callable[[DataError], None] | None) -> Iterator[None]:
    """Inside, values that do not fit count as their defaults: for loading at a hospital.

    Without a listener they are errors, as outside: to try how something could be read.

    Security: what the listener is told depends on records, and must not leave the hospital.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def unfit(error: DataError) -> None:
    """Say that a value does not fit. Where this returns, the caller goes on with the default.

    Raises:
        DataError: the given one, outside :func:`counted_as_defaults`.
    """
    listener = _listener.get()
    if listener is None:
        raise error
    listener(error)


def zero_if_not_finite(values: torch.Tensor) -> torch.Tensor:
    """The values, with 0 for NaN and infinite ones."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def first_class_if_unknown(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """The labels, with 0 for those that are not 0 .. classes - 1."""
    return torch.where((labels >= 0) & (labels < classes), labels, 0)
