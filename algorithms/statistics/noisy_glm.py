"""``glm`` with ``family = "binomial"`` or ``"poisson"`` under noise in the sum: Newton's noisy steps.

    step 1      score and information where no column matters: a start, and a first move from it
    step 2, ..  score and information at the coefficients; the last move is what is told

How many steps there are is known, and all are paid, beforehand. The last one has half of the privacy: once
the coefficients are near, its move ends where they should be but for the noise of its own score, whatever
noise led there. With information H, score s and noise u and U in them, the move (H + U)^-1 (s + u) is off by

    H^-1 (u - U move),    of variance H^-1 (t^2 I + r^2 (|move|^2 I + move move' - diag(move^2))) H^-1

to first order, t and r being the deviations of u and of U; sampling adds H^-1.

A record adds its residual times its columns, and its weight times their products. Columns are centred and
divided by their declared bounds; of a binomial outcome a record whose residual is m has no weight above
m (1 - m), and of a Poisson outcome both are the largest outcome at most, which predictions are clipped at.

Source: McCullagh and Nelder 1989, section 2.5; van der Vaart 1998, section 5.7 (one step from a near start);
Karwa and Vadhan 2018 and Sheffet 2017 for noise in sufficient statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.metrics.exact_logarithm import logarithm
from secfed.algorithms.statistics.analysis import (
    NOISE,
    WEIGHTS,
    Analysis,
    Part,
    Shapes,
    State,
    Values,
    finish,
    hide,
    tensor,
)
from secfed.algorithms.statistics.arithmetic import Matrix, cholesky, solve, symmetric
from secfed.algorithms.statistics.bounded_design import BoundedDesign, predictions, products_norm
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.estimates import estimates
from secfed.algorithms.statistics.newton import FARTHEST
from secfed.algorithms.statistics.options import GlmOptions
from secfed.algorithms.statistics.results import Result

_MOST_STEPS: Final = 5  # each costs privacy; the first is two in one, and Newton's method doubles digits
_LAST_SHARE: Final = 0.5
_ABOVE_NOISE: Final = 1.0  # norms of the noise matrix by which the smallest eigenvalue is above it
_FARTHEST_MOVE: Final = 8.0  # of a prediction in one step
_NEAR: Final = 2.0  # the last move of a prediction, so that what the move leaves out is small
_RAREST: Final = 1e-4  # a start's mean, as a share of the largest outcome
# Of residual m and weight m (1 - m): m^2 + (m (1 - m) / w)^2 is 1 at most for this w; see the tests.
_GOLDEN: Final = ((1 + math.sqrt(5)) / 2) ** -2.5


class NoisyGlm(Analysis):
    """One model."""

    kind = "glm"
    noisy = True

    def _read(self, options: GlmOptions) -> None:
        self.bounded = BoundedDesign(self.name, options, self.rules)
        self.design, self.family_name = self.bounded.design, options.family
        self.steps, self.size = min(options.max_steps, _MOST_STEPS), self.bounded.size
        self.largest = self.design.outcome_interval[1] if options.family == "poisson" else 1.0

    def step_share(self, step: int) -> float:
        """Half for the last step."""
        return _LAST_SHARE if step == self.steps - 1 else (1.0 - _LAST_SHARE) / (self.steps - 1)

    def unit_scales(self) -> Mapping[str, float]:
        """Of residual and weight as they can be together, times the norms of columns and products."""
        squares = self.bounded.squares
        score, information = math.sqrt(squares), products_norm(squares)
        if self.family_name == "binomial":
            return {"score": score, "information": _GOLDEN * information}
        both = math.sqrt(2) * self.largest
        return {"score": both * score, "information": both * information}

    def parts(self, step: int) -> Sequence[Part]:
        """Score, and the lower triangle of the information."""
        del step
        weight = 0.25 if self.family_name == "binomial" else self.largest
        triangle = self.size * (self.size + 1) // 2
        return Part("score", (self.size,), self.largest), Part("information", (triangle,), weight)

    def shapes(self) -> Shapes:
        """Coefficients, the last move, information and the deviation of the noise over its scales."""
        p = self.size
        return {"beta": (p,), "move": (p,), "information": (p * (p + 1) // 2,), NOISE: ()}

    def given(self, step: int) -> Sequence[str]:
        """The coefficients, once there are some."""
        return ("beta",) if step else ()

    def contribute(self, step: int, table: Table, given: Mapping[str, Values]) -> Mapping[str, Values]:
        """Sums over complete records."""
        z, y = self.coordinates(table), np.clip(self.design.outcome(table), 0.0, self.largest)
        mean, weight = self._mean(self.predicted(z, given["beta"]) if step else np.zeros(len(y)))
        residual = np.clip(y - mean, -self.largest, self.largest)
        if WEIGHTS in given:
            kept = given[WEIGHTS][self.design.complete(table)]
            residual, weight = kept * residual, kept * weight
        information = z.T @ (z * weight[:, None])
        return {"score": z.T @ residual, "information": information[np.tril_indices(self.size)]}

    def coordinates(self, table: Table) -> Values:
        """The columns that coefficients of the state belong to."""
        return self.bounded.columns(table)

    def predicted(self, columns: Values, beta: Values) -> Values:
        """Linear predictions of bounded columns."""
        return predictions(columns, np.clip(beta, -FARTHEST, FARTHEST))

    def _mean(self, predicted: Values) -> tuple[Values, Values]:
        """Mean and weight of each record."""
        if self.family_name == "binomial":
            mean = 1 / (1 + np.exp(-np.clip(predicted, -40.0, 40.0)))
            return mean, mean * (1 - mean)
        mean = np.minimum(np.exp(np.minimum(predicted, 1 + math.log(self.largest))), self.largest)
        return mean, mean

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Move; in the last step, tell where that led unless noise could have made the sums."""
        del same
        score, information = totals["score"].tolist(), symmetric(totals["information"].tolist(), self.size)
        # The norm of a symmetric matrix of such noise is about twice the root of its size.
        noise = self.noise_in(step, state) * self.unit_scales()["information"] * 2.0 * math.sqrt(self.size)
        beta, last = state["beta"].tolist(), step == self.steps - 1
        if step == 0:
            start = self._start(beta, score, information)
            if start is None:
                return hide(state, Reason.TOO_NOISY)
            noise *= start
        sound = _factor(information, -_ABOVE_NOISE * noise) is not None
        lower = _factor(information, 0.0 if sound else noise)
        if lower is None or (last and not sound):
            return hide(state, Reason.TOO_NOISY)
        move = solve(lower, score)
        length = sum(map(abs, move))
        if last and length > _NEAR:
            return hide(state, Reason.TOO_NOISY)
        if length > _FARTHEST_MOVE:
            move = [one * _FARTHEST_MOVE / length for one in move]
        state["beta"] = tensor([b + one for b, one in zip(beta, move, strict=True)])
        if last:
            state["move"], state["information"] = tensor(move), totals["information"].clone()
            finish(state)
        return None

    def _start(self, beta: list[float], score: list[float], information: Matrix) -> float | None:
        """Change coefficients and sums to those of an intercept that gives the mean of all outcomes.

        What weights were multiplied by; None where there is no mean.
        """
        at, binomial = self.bounded.at, self.family_name == "binomial"
        mean, weight = (0.5, 0.25) if binomial else (min(1.0, self.largest), min(1.0, self.largest))
        if not information[at][at] > 0.0:
            return None
        sums = [one / weight for one in information[at]]
        least = _RAREST * self.largest
        found = min(max(mean + score[at] / sums[at], least), self.largest - least)
        beta[at] = logarithm(found / (1.0 - found) if binomial else found)
        factor = (found * (1.0 - found) if binomial else found) / weight
        for j in range(self.size):
            score[j] -= (found - mean) * sums[j]
            information[j] = [one * factor for one in information[j]]
        return factor

    def released(self, state: State) -> State:
        """Where the noisy sums led, and what its errors follow from."""
        return {name: state[name] for name in self.shapes()}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A line for each coefficient, with errors of sampling and noise together."""
        p, scales = self.size, self.unit_scales()
        t = float(released[NOISE]) / math.sqrt(_LAST_SHARE)
        move = released["move"]
        inverse = np.linalg.inv(np.array(symmetric(released["information"].tolist(), p)))
        shaken = (t * scales["score"]) ** 2 * np.eye(p)
        moved = move @ move * np.eye(p) + np.outer(move, move) - np.diag(move * move)
        shaken += (t * scales["information"]) ** 2 * moved
        noise, back = inverse @ shaken @ inverse, self.bounded.back()
        covariance = back @ (inverse + noise) @ back.T
        found = estimates(
            self.design.names,
            back @ released["beta"],
            covariance,
            level=self.rules.level,
            degrees=None,
            exponentiated="odds ratio" if self.family_name == "binomial" else "rate ratio",
            title=self.design.formula,
        )
        values = {
            "formula": self.design.formula,
            "family": self.family_name,
            **found.values,
            "covariance": covariance,
            "noise_errors": np.sqrt(np.diag(back @ noise @ back.T)),
            "steps": self.steps,
            "noise_deviation": t * scales["score"],
        }
        note = f"{self.steps} steps with the noise of [privacy]; errors and intervals include it"
        return Result(values, found.tables, found.figures, (note,))


def _factor(matrix: Matrix, added: float) -> Matrix | None:
    """Cholesky's factor of a matrix with so much added to its diagonal; None where there is none."""
    try:
        return cholesky(
            [[one + (added if i == j else 0.0) for j, one in enumerate(row)] for i, row in enumerate(matrix)]
        )
    except ArithmeticError:
        return None
