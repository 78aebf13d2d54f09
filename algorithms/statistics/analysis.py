"""What an analysis is: sums over records in a few steps, and what follows from their totals.

Every analysis of a study has its own parts in the exchanges that it takes; step k of all of them is one
secure sum. An analysis keeps nothing itself: what is known of it are named float64 tensors, its *state*.
The server's step (:meth:`Analysis.absorb`, :meth:`Analysis.released`) must give the same bytes on every
machine: see :mod:`secfed.algorithms.statistics.arithmetic`.

What is withheld is withheld from ``released``: it is never in a model, a report or a file. The state holds
the totals, which whoever reads the sums knows anyway.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.columns import Column, Table, find_column
from secfed.algorithms.statistics.checks import Checks
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.options import AnalysisOptions
from secfed.algorithms.statistics.results import Result
from secfed.errors import ConfigError

Values = NDArray[np.float64]
State = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]

DONE: Final = "done"  # 1 once nothing more is to be summed: sites add zeros from then on
STATUS: Final = "status"  # a Reason
MARKS: Final = "marks"  # 1 for every term that is to blame for that there is no result
BLAMED: Final = "blamed"  # of a result that checks withhold: 1 for every declared column that is the reason
NOISE: Final = "noise"  # standard deviation of the noise over the scales of the sums; 0 without [privacy]
WEIGHTS: Final = "weights"  # of each record, where several count as one unit; given beside the state
STEP: Final = "step"  # of the study, from 1, that the result is of; 0 while there is none


@dataclass(frozen=True)
class Part:
    """One field of a sum.

    Attributes:
        bound: largest magnitude that one record adds to an element.
        whole: the bound is that of the site's whole contribution.
    """

    name: str
    shape: tuple[int, ...]
    bound: float = 1.0
    whole: bool = False


@dataclass(frozen=True)
class Rules:
    """What all analyses of a study have in common."""

    columns: tuple[Column, ...]
    max_records: int
    sites: int
    min_cell: int
    min_hospitals: int
    max_parameter_share: float
    level: float
    noisy: bool = False  # whether the sums carry the noise of [privacy]
    replaced: bool = False  # whether that hides which record stands in a place, and not whether one does
    earlier: Mapping[str, Analysis] = field(default_factory=dict)  # analyses that this one may build on


class Analysis(ABC):
    """One analysis of a study; ``first`` is the step of the study that its own step 0 is."""

    kind: ClassVar[str]
    noisy: ClassVar[bool] = False  # whether noise in the sum can hide a record in it
    steps: int = 1
    first: int = 1
    reads: tuple[
        str, ...
    ] = ()  # of the state of an earlier analysis, as NAME/...: given to sites, and to absorb
    needs: tuple[str, ...] = ()  # columns that every record of it must have; tables count what is missing

    def __init__(self, name: str, options: Any, rules: Rules) -> None:
        self.name, self.options, self.rules = name, options, rules
        self._read(options)

    @abstractmethod
    def _read(self, options: Any) -> None:
        """Take the options of the study, and refuse with a ConfigError what does not fit its columns."""

    @abstractmethod
    def parts(self, step: int) -> Sequence[Part]:
        """What is summed in a step, counted from 0: from public facts alone."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """Names and shapes of the state, beside :data:`DONE`, :data:`STATUS` and :data:`STEP`."""

    @abstractmethod
    def contribute(
        self, step: int, table: Table, given: Mapping[str, Values]
    ) -> Mapping[str, Values | float]:
        """One site's part of every sum of a step."""

    @abstractmethod
    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Take the totals of a step into the state, and set what is withheld.

        ``same`` says whether they are of the same hospitals as the totals of the step before.
        """

    @abstractmethod
    def released(self, state: State) -> State:
        """What is told of the state, without what is withheld; only asked where :data:`STATUS` is 0."""

    @abstractmethod
    def result(self, released: Mapping[str, Values]) -> Result:
        """Tables and figures from what was released; here any library may compute."""

    def checks(self) -> Checks:
        """What is checked, without noise, before the result is told; a table checks itself."""
        return Checks()

    @property
    def checked_as(self) -> str:
        """The analysis whose checks decide about this one."""
        return self.name

    def dominated(self, released: State, spans: Sequence[bool]) -> State | None:
        """What may be told where few records hold some of its spans; None if nothing may be."""
        return None if any(spans) else released

    def given(self, step: int) -> Sequence[str]:
        """Names in the state that sites are given before a step, beside :data:`DONE`."""
        del step
        return ()

    def unit_scales(self) -> Mapping[str, float]:
        """Of a noisy analysis: what its parts are divided by, so that a record adds a norm of 1 at most.

        A part that is not named is divided by 1.
        """
        return {}

    def step_share(self, step: int) -> float:
        """What part of this analysis' privacy a step has; 1 in all."""
        del step
        return 1.0 / self.steps

    def noise_in(self, step: int, state: State) -> float:
        """The deviation of the noise in the totals of a step, over :meth:`unit_scales`."""
        return float(state[NOISE]) / math.sqrt(self.step_share(step))

    def withheld(self, reason: Reason, released: Mapping[str, Values]) -> str:
        """What else there is to say about why the result is withheld."""
        del reason, released
        return ""

    # --- for subclasses ---

    def grain(self, bound: float) -> float:
        """The most that rounding moves a total whose records add ``bound`` at most."""
        sites = self.rules.sites
        return sites * sites * bound * self.rules.max_records / 2.0**52

    def column(self, key: str, name: str, kind: str | None = None) -> Column:
        """The column that a key of this analysis names."""
        where = f"algorithm.analyses.{self.name}.{key}"
        try:
            found = find_column(self.rules.columns, name)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}", remedy=error.remedy) from None
        if kind is not None and found.kind != kind:
            want = "numbers" if kind == "number" else "categories"
            raise ConfigError(
                f"{where}: {name!r} is not a column of {want}", remedy="name another column, or declare it so"
            )
        return found

    def two_categories(self, key: str, name: str) -> Column:
        """A column of two categories."""
        found = self.column(key, name, "category")
        if len(found.categories) != 2:
            where = f"algorithm.analyses.{self.name}.{key}"
            raise ConfigError(
                f"{where}: {name!r} has {len(found.categories)} categories",
                remedy="name a column of two categories",
            )
        return found

    @property
    def min_cell(self) -> int:
        """Fewer records than this, but any, are withheld."""
        return self.rules.min_cell

    def too_many(self, parameters: int, records: float) -> bool:
        """Whether an estimate has too many parameters for so many records or events."""
        return parameters > self.rules.max_parameter_share * records


def positions(values: Values, count: int) -> NDArray[np.int64]:
    """Positions of categories, with ``count`` for a missing value."""
    return np.clip(np.where(np.isnan(values), count, values), 0, count).astype(np.int64)


def cells(values: Values, column: Column, bins: int) -> NDArray[np.int64]:
    """In which of ``bins`` cells of equal width from low to high each number is; a missing one in none: -1.

    A number on an edge is in the cell above it, the highest in the last.
    """
    width = (column.high - column.low) / bins or 1.0
    with np.errstate(invalid="ignore"):
        found = np.floor((values - column.low) / width)
    return np.where(np.isnan(values), -1, np.clip(found, 0, bins - 1)).astype(np.int64)


def tally(
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    shape: tuple[int, int],
    weights: Values | None = None,
) -> Values:
    """How many records are in each cell of a table."""
    flat = np.bincount(rows * shape[1] + columns, weights, minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.float64)


def hide(state: State, reason: Reason) -> None:
    """Withhold the result, and ask for nothing more."""
    state[STATUS] = torch.tensor(float(reason), dtype=torch.float64)
    state[DONE] = torch.ones((), dtype=torch.float64)


def finish(state: State) -> None:
    """The result is there."""
    hide(state, Reason.RELEASED)


def tensor(values: Any) -> torch.Tensor:
    """As float64."""
    return torch.as_tensor(values, dtype=torch.float64)


__all__ = [
    "BLAMED",
    "DONE",
    "MARKS",
    "NOISE",
    "STATUS",
    "STEP",
    "WEIGHTS",
    "Analysis",
    "AnalysisOptions",
    "Part",
    "Rules",
    "Shapes",
    "State",
    "Values",
    "cells",
    "finish",
    "hide",
    "positions",
    "tally",
    "tensor",
]
