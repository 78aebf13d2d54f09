"""Newton's method over secure sums: one step of the study for each step of the method.

Sites sum score and information at the coefficients that they are given; the server moves the coefficients. A
result is taken from one single step, that in which the score is zero as far as digits go: coefficients,
errors and deviance are of the very hospitals in that sum, whoever was in an earlier one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from secfed.algorithms.statistics.analysis import MARKS, Analysis, Shapes, State, Values, finish, hide, tensor
from secfed.algorithms.statistics.arithmetic import (
    Matrix,
    cholesky,
    dependent,
    dot,
    inverse,
    solve,
)
from secfed.algorithms.statistics.disclosure import NAMING, Reason
from secfed.algorithms.statistics.formula import DesignColumn
from secfed.algorithms.statistics.small_categories import small_columns

_TOLERANCE: Final = 1e-8  # of the last move, in standard errors
_DEPENDENT: Final = 1e-9  # of a column's squares, left once the columns before it are taken out
_RUNNING_OFF: Final = 0.01  # a last move by more, of columns that are at most 1, goes to infinity
FARTHEST: Final = 1e5  # far from any estimate, and within what a broadcast may hold
_SLACK: Final = 1e-9  # an objective that grows by a smaller share has not grown
_HALVINGS: Final = 8


class NewtonAnalysis(Analysis):
    """Coefficients of scaled columns; subclasses say what is summed, and what a result is besides."""

    scales: tuple[float, ...]  # that columns are divided by
    penalty: tuple[float, ...]  # added to the information's diagonal
    per_term: tuple[str, ...]  # what the columns are called
    starts_without: int = 1  # steps that have no objective

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return len(self.scales)

    def shapes(self) -> Shapes:
        """Coefficients, those before, and what a result consists of."""
        p = self.size
        return {
            "beta": (p,),
            "before": (p,),
            "objective": (),
            "halvings": (),
            "changed": (),
            "coefficients": (p,),
            "covariance": (p, p),
            MARKS: (p,),
            **self.numbers(),
        }

    @abstractmethod
    def numbers(self) -> Shapes:
        """What else a result consists of."""

    def given(self, step: int) -> Sequence[str]:
        """The coefficients, once there are some."""
        return ("beta",) if step else ()

    def too_small(
        self,
        state: State,
        totals: Mapping[str, torch.Tensor],
        columns: Sequence[DesignColumn],
        *,
        records: float,
        events: float | None,
    ) -> bool:
        """Whether a category of the formula has few records; the result is withheld then."""
        found = totals["support"].tolist()
        marks = small_columns(found, columns, records=records, events=events, min_cell=self.min_cell)
        if any(marks):
            state[MARKS] = tensor([float(mark) for mark in marks])
            hide(state, Reason.SMALL_CATEGORIES)
        return any(marks)

    def move(
        self,
        step: int,
        state: State,
        score: Sequence[float],
        information: Matrix,
        objective: float | None,
        *,
        same: bool,
        grain: tuple[float, float],
        dispersion: float = 1.0,
        least: float = 0.0,
    ) -> bool:
        """Move the coefficients; whether they were the estimate already, which is then in the state.

        Args:
            objective: -2 log-likelihood or the like, at the coefficients; None where the step is a start that
                gives coefficients without having some.
            same: whether the step before was of the same hospitals.
            grain: the most that rounding moves the score, and the objective.
            dispersion: by which the information is to be divided.
            least: a column with less information than this does not vary.
        """
        p, beta = self.size, state["beta"].tolist()
        score = [score[k] - self.penalty[k] * beta[k] for k in range(p)]
        information = [list(row) for row in information]
        for k in range(p):
            information[k][k] += self.penalty[k]
        if not same and step:
            state["changed"] = tensor(1.0)
        lost = dependent(information, _DEPENDENT, least)
        if lost:
            state[MARKS] = tensor([float(k in lost) for k in range(p)])
            runs_off = step > 0 and not float(state["changed"])
            hide(state, Reason.SEPARATED if runs_off else Reason.DEPENDENT_TERMS)
            return False
        lower = cholesky(information)
        delta = solve(lower, score)
        if objective is not None:
            for k in range(p):
                objective += self.penalty[k] * beta[k] * beta[k]
            variances = inverse(lower)
            rounding = grain[0] * grain[0] * sum(variances[k][k] for k in range(p))
            if dot(score, delta) <= max(_TOLERANCE * _TOLERANCE * dispersion, rounding):
                if max(map(abs, delta)) > _RUNNING_OFF:
                    self._diverged(state, delta)
                    return False
                self._found(state, [b + d for b, d in zip(beta, delta, strict=True)], variances, dispersion)
                return True
            known, grown = float(state["objective"]), False
            if same and step > self.starts_without:
                grown = objective > known + _SLACK * abs(known) + grain[1]
            if grown and float(state["halvings"]) < _HALVINGS:
                before = state["before"].tolist()
                state["beta"] = tensor([(a + b) / 2 for a, b in zip(beta, before, strict=True)])
                state["halvings"] = state["halvings"] + 1
                return self._unfinished(step, state, delta, same=same)
            state["objective"] = tensor(objective)
        state["halvings"] = tensor(0.0)
        state["before"] = state["beta"]
        moved = [b + d for b, d in zip(beta, delta, strict=True)]
        state["beta"] = tensor([min(max(b, -FARTHEST), FARTHEST) for b in moved])
        return self._unfinished(step, state, delta, same=same)

    def _found(self, state: State, beta: Sequence[float], covariance: Matrix, dispersion: float) -> None:
        """Keep the estimate, in the columns' own units too."""
        scales = self.scales
        state["beta"] = tensor(beta)
        state["coefficients"] = tensor([b / s for b, s in zip(beta, scales, strict=True)])
        state["covariance"] = tensor(
            [
                [dispersion * covariance[i][j] / (scales[i] * scales[j]) for j in range(self.size)]
                for i in range(self.size)
            ]
        )
        finish(state)

    def _unfinished(self, step: int, state: State, delta: Sequence[float], *, same: bool) -> bool:
        """In the last step, say why there is no result."""
        if step == self.steps - 1:
            if not same:
                hide(state, Reason.HOSPITALS_CHANGED)
            elif max(map(abs, delta)) > _RUNNING_OFF:
                self._diverged(state, delta)
            else:
                hide(state, Reason.NOT_CONVERGED)
        return False

    def _diverged(self, state: State, delta: Sequence[float]) -> None:
        most = max(map(abs, delta))
        state[MARKS] = tensor([float(abs(one) > most / 4) for one in delta])
        hide(state, Reason.SEPARATED)

    def withheld(self, reason: Reason, released: Mapping[str, Values]) -> str:
        """Which terms are to blame."""
        marks = released.get(MARKS) if reason in NAMING else None
        if marks is None:
            return ""
        return ", ".join(name for name, mark in zip(self.per_term, marks, strict=True) if mark)
