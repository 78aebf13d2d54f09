"""``glm``: linear, logistic and Poisson regression, equal to those of the pooled records.

    step 1      weights and working outcomes where predictions begin with the outcomes
    step 2, ..  score, information and deviance at the coefficients, until the score is zero

Columns are divided by the largest magnitude that their declared bounds allow. Records with a missing value
in a column of the formula are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.metrics.exact_logarithm import logarithm
from secfed.algorithms.statistics.analysis import Part, Shapes, State, Values, hide, tensor
from secfed.algorithms.statistics.arithmetic import four_digits, symmetric
from secfed.algorithms.statistics.checks import (
    Checks,
    crossings_of,
    factors_of,
    formula_of,
    grouped_of,
    numbers_of,
    outcome_of,
    pairs_of,
    squares_of,
)
from secfed.algorithms.statistics.disclosure import Reason, is_small
from secfed.algorithms.statistics.estimates import estimates
from secfed.algorithms.statistics.families import FAMILIES
from secfed.algorithms.statistics.formula import design
from secfed.algorithms.statistics.newton import NewtonAnalysis
from secfed.algorithms.statistics.options import GlmOptions
from secfed.algorithms.statistics.results import Result, ResultTable
from secfed.algorithms.statistics.small_categories import support, support_part
from secfed.errors import ConfigError

INTERCEPT = "1"  # the term


class Glm(NewtonAnalysis):
    """One model."""

    kind = "glm"

    def _read(self, options: GlmOptions) -> None:
        where = f"algorithm.analyses.{self.name}.formula"
        try:
            self.design = design(options.formula, self.rules.columns)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}", remedy=error.remedy) from None
        if self.design.response is None:
            raise ConfigError(f"{where}: has no outcome", remedy="write it as outcome ~ terms")
        self._check_outcome(options, where)
        self.family_name = options.family
        self.family = FAMILIES[options.family](*self.design.outcome_interval)
        self.steps, self.per_term = options.max_steps, self.design.names
        self.needs = self.design.needs
        self.scales = tuple(bound or 1.0 for bound in self.design.bounds)
        terms = [self.design.terms[position] for position in self.design.term_of]
        self.intercept = INTERCEPT in terms
        self.penalty = tuple(
            0.0 if term == INTERCEPT else options.ridge / scale**2
            for term, scale in zip(terms, self.scales, strict=True)
        )

    def _check_outcome(self, options: GlmOptions, where: str) -> None:
        left, (low, high) = self.design.left, self.design.outcome_interval
        count = len(left.categories) if left is not None else 0
        plain = left is not None and left.text.isidentifier()  # an expression could single out a person
        fits = {
            "binomial": count == 2 or (plain and (low, high) == (0.0, 1.0)),
            "poisson": not count and low >= 0,
            "gaussian": not count,
        }
        wanted = {
            "binomial": "two categories, or a column of numbers 0 and 1",
            "poisson": "numbers from 0",
            "gaussian": "numbers",
        }
        if not fits[options.family]:
            raise ConfigError(
                f"{where}: the outcome {self.design.response!r} does not fit family = {options.family!r}",
                remedy=f"use an outcome of {wanted[options.family]}, or another family",
            )

    def parts(self, step: int) -> Sequence[Part]:
        """Score, information and deviance, and what says how many records they are of."""
        del step
        residual, weight, deviance = self.family.bounds()
        p = self.size
        return (
            Part("score", (p,), residual),
            Part("information", (p * (p + 1) // 2,), weight),
            Part("deviance", (), deviance),
            Part("records", ()),
            Part("outcomes", (), self.family.largest if self.family.scale == 1.0 else 1.0),
            Part("extra", (), self.family.null_bound()),
            Part("beyond", ()),
            support_part(self.design.columns),
        )

    def checks(self) -> Checks:
        """Coefficients and covariance tell sums of outcomes, too: an outcome is a number like others."""
        numbers, binomial = numbers_of(self.design), self.family_name == "binomial"
        outcome = outcome_of(self.design)
        event = self.design.left.columns[0] if binomial and self.design.left is not None else None
        alone = all(number.category for number in numbers)
        grouped, numbers = grouped_of((*factors_of(self.design), *outcome)), (*numbers, *outcome)
        tables = crossings_of(self.design, event, alone=alone)
        squared = [one for one in numbers if self.family_name == "gaussian" or one not in outcome]
        spans = (*pairs_of(numbers), *squares_of(squared))
        return Checks(tables, numbers, spans, grouped, formula=formula_of(self.design, numbers))

    def numbers(self) -> Shapes:
        """How many records, their deviance, sums of outcomes, and the step."""
        return {"numbers": (4,)}

    def contribute(
        self, step: int, table: Table, given: Mapping[str, Values]
    ) -> Mapping[str, Values | float]:
        """Sums over complete records."""
        x = self.coordinates(table)
        y = self.design.outcome(table) / self.family.scale
        if self.family_name == "binomial":
            y = (y > 0.5).astype(np.float64)  # what the checks are of
        deviance = beyond = 0.0
        if step:
            terms = self.family.terms(x @ given["beta"], y)
            residual, weight = terms.residual, terms.weight
            deviance, beyond = float(terms.deviance.sum()), float(terms.beyond.sum())
        else:
            weight, residual = self.family.start(y)
        information = x.T @ (x * weight[:, None])
        return {
            "score": x.T @ residual,
            "information": information[np.tril_indices(self.size)],
            "deviance": deviance,
            "records": float(len(y)),
            "outcomes": float(y.sum()),
            "extra": float(self.family.null_terms(y).sum()),
            "beyond": beyond,
            "support": support(x, y > 0.5, self.design.columns),  # of a binomial outcome
        }

    def coordinates(self, table: Table) -> Values:
        """The columns that coefficients of the state belong to."""
        found: Values = self.design.matrix(table) / np.array(self.scales)
        return found

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Check what may be estimated, and move."""
        records, outcomes = float(round(float(totals["records"]))), float(totals["outcomes"])
        reason = self._refused(records, outcomes)
        if reason is not None:
            return hide(state, reason)
        events = float(round(outcomes)) if self.family_name == "binomial" else None
        if self.too_small(state, totals, self.design.columns, records=records, events=events):
            return None
        deviance, dispersion = float(totals["deviance"]), 1.0
        if self.family_name == "gaussian":
            dispersion = deviance / (records - self.size)
            if step and not deviance > 1e-18 * records:
                return hide(state, Reason.NO_VARIATION)
        score = totals["score"].tolist()
        information = symmetric(totals["information"].tolist(), self.size)
        objective = deviance if step else None
        residual, _, part = self.family.bounds()
        grain = self.grain(residual), self.grain(part)
        if self.move(
            step, state, score, information, objective, same=same, grain=grain, dispersion=dispersion
        ):
            if round(float(totals["beyond"])):
                return hide(state, Reason.OUT_OF_RANGE)
            scale = self.family.scale
            state["coefficients"] = state["coefficients"] * scale
            state["covariance"] = state["covariance"] * (scale * scale)
            fit = self._fit(records, deviance * scale * scale, outcomes, float(totals["extra"]))
            state["numbers"] = tensor([records, fit[0], outcomes, fit[1]])
        return None

    def _fit(self, records: float, deviance: float, outcomes: float, extra: float) -> tuple[float, float]:
        """Deviance, and what that of the intercept follows from: of counts, four digits.

        Sums of logarithms of counts in full digits would tell how many records have each count.
        """
        if self.family_name != "poisson":
            return deviance, extra
        least = outcomes * logarithm(outcomes / records)
        return four_digits(deviance), least + four_digits(2 * (extra - least)) / 2

    def _refused(self, records: float, outcomes: float) -> Reason | None:
        if records <= max(self.min_cell - 1, self.size):
            return Reason.FEW_RECORDS
        rarer = records
        if self.family_name == "binomial":
            rarer = min(float(round(outcomes)), records - round(outcomes))
            if rarer == 0:
                return Reason.NO_VARIATION
            if is_small(rarer, self.min_cell):
                return Reason.FEW_RECORDS
        if self.family_name == "poisson" and round(outcomes) == 0:
            return Reason.NO_VARIATION
        return Reason.MANY_PARAMETERS if self.too_many(self.size, rarer) else None

    def released(self, state: State) -> State:
        """Coefficients, covariance, and how many records."""
        return {name: state[name] for name in ("coefficients", "covariance", "numbers")}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A line for each coefficient, and the deviance."""
        n, deviance, outcomes, extra = (float(one) for one in released["numbers"])
        left = n - self.size
        found = estimates(
            self.per_term,
            released["coefficients"],
            released["covariance"],
            level=self.rules.level,
            degrees=left if self.family_name == "gaussian" else None,
            exponentiated={"binomial": "odds ratio", "poisson": "rate ratio"}.get(self.family_name),
            title=self.design.formula,
        )
        null = self.family.null_deviance(n, outcomes, extra) if self.intercept else None
        values = {
            "formula": self.design.formula,
            "family": self.family_name,
            **found.values,
            "covariance": released["covariance"],
            "n": round(n),
            "deviance": deviance,
            "df_residual": round(left),
            "null_deviance": null,
        }
        if self.family_name == "gaussian":
            values["dispersion"] = deviance / left
        fit = ResultTable(
            "Fit", ("n", "deviance", "df", "null deviance"), ((round(n), deviance, round(left), null),)
        )
        return Result(values, (*found.tables, fit), found.figures)
