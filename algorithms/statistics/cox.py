"""``cox``: proportional hazards on the study's time grid, with Efron's or Breslow's treatment of ties.

Each step sums, by time, the relative hazards of the records that leave then, with their first and second
moments over the terms; who is at risk follows from the totals. Hazards are relative to the mean record, and
one beyond e^6 times it is cut off: if any is at the estimate, the result is withheld.

Source: Cox 1972; Breslow 1974; Efron 1977; Therneau and Grambsch 2000, section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Table
from secfed.algorithms.metrics.exact_logarithm import logarithm
from secfed.algorithms.statistics.analysis import Part, Shapes, State, Values, hide, tensor
from secfed.algorithms.statistics.arithmetic import Matrix, dot, four_digits
from secfed.algorithms.statistics.checks import (
    Checks,
    category_sets,
    crossings_of,
    event_of,
    factors_of,
    formula_of,
    grouped_of,
    numbers_of,
    pairs_of,
    squares_of,
)
from secfed.algorithms.statistics.disclosure import Reason, is_small
from secfed.algorithms.statistics.estimates import estimates
from secfed.algorithms.statistics.formula import design
from secfed.algorithms.statistics.glm import INTERCEPT
from secfed.algorithms.statistics.newton import FARTHEST, NewtonAnalysis
from secfed.algorithms.statistics.options import CoxOptions
from secfed.algorithms.statistics.results import Result, ResultTable
from secfed.algorithms.statistics.small_categories import support, support_part
from secfed.algorithms.statistics.survival import Times, at_risk
from secfed.errors import ConfigError

_CONSTANT: Final = 1e-9  # the variance of a scaled column, below which it does not vary
_AT_A_TIME: Final = 4096  # records
_LARGEST: Final = 6.0  # logarithm of a hazard over the mean record's
_LARGEST_HAZARD: Final = 403.4287934927351  # e^6


class Cox(NewtonAnalysis):
    """One model."""

    kind = "cox"
    starts_without = 0

    def _read(self, options: CoxOptions) -> None:
        self.times = Times(self, options)
        where = f"algorithm.analyses.{self.name}.formula"
        try:
            self.design = design(options.formula, self.rules.columns)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}", remedy=error.remedy) from None
        if self.design.response is not None:
            raise ConfigError(f"{where}: has an outcome", remedy="write terms only; time and event are keys")
        terms = [self.design.terms[position] for position in self.design.term_of]
        self.kept = [k for k, term in enumerate(terms) if term != INTERCEPT]
        if not self.kept:
            raise ConfigError(f"{where}: has no term", remedy="name a column")
        self.efron, self.steps, self.formula = options.ties == "efron", options.max_steps, options.formula
        self.needs = (*self.design.needs, *self.times.needs)
        self.columns = [self.design.columns[k] for k in self.kept]
        self.per_term = tuple(self.design.names[k] for k in self.kept)
        self.scales = tuple(self.design.bounds[k] or 1.0 for k in self.kept)
        self.penalty = tuple(options.ridge / scale**2 for scale in self.scales)

    def parts(self, step: int) -> Sequence[Part]:
        """Hazards of those who leave, and of those with the event; events; and their terms."""
        del step
        p, largest = self.size, _LARGEST_HAZARD
        shape = (self.times.count, 1 + p + p * (p + 1) // 2)
        parts = [
            Part("leaving", shape, largest),
            Part("events", (self.times.count,)),
            Part("terms", (p,)),
            Part("columns", (p,)),
            Part("records", ()),
            Part("beyond", ()),
            support_part(self.columns),
        ]
        return [*parts, Part("tied", shape, largest)] if self.efron else parts

    def checks(self) -> Checks:
        """Of its terms and events, whose sums by term are told."""
        numbers, outcome = numbers_of(self.design), event_of(self.times.event)
        alone = all(number.category for number in numbers)
        tables = crossings_of(self.design, self.times.event, alone=alone)
        spans = (*pairs_of((*numbers, outcome)), *squares_of(numbers))
        event, numbers = self.times.event, (*numbers, outcome)
        nested = tuple((*one, event) for one in category_sets(self.design) if one) if alone else ()
        return Checks(
            tables,
            numbers,
            spans,
            grouped_of((*factors_of(self.design), outcome)),
            nested=nested,
            formula=formula_of(self.design, numbers),
        )

    def numbers(self) -> Shapes:
        """Records, events and log-likelihoods with and without terms; what hazards are relative to."""
        return {"numbers": (4,), "offset": (), "null": ()}

    def given(self, step: int) -> Sequence[str]:
        """The coefficients, and their sum at the mean record."""
        return ("beta", "offset") if step else ()

    def contribute(
        self, step: int, table: Table, given: Mapping[str, Values]
    ) -> Mapping[str, Values | float]:
        """Sums over complete records."""
        x = self.design.matrix(table, self.times.needs)[:, self.kept] / np.array(self.scales)
        where, events = self.times.of(table, self.design.complete(table, self.times.needs))
        eta = x @ given["beta"] - float(given["offset"]) if step else np.zeros(len(x))
        hazard = np.exp(np.clip(eta, -_LARGEST, _LARGEST))
        rows, columns = np.tril_indices(self.size)
        count = self.times.count
        leaving = np.zeros((count, 1 + self.size + len(rows)))
        tied = np.zeros_like(leaving)
        for start in range(0, len(x), _AT_A_TIME):  # the products of all records at once can take gigabytes
            part = slice(start, start + _AT_A_TIME)
            some, happened = x[part], events[part]
            moments = np.column_stack([np.ones(len(some)), some, some[:, rows] * some[:, columns]])
            moments *= hazard[part, None]
            np.add.at(leaving, where[part], moments)
            if self.efron:
                np.add.at(tied, where[part][happened], moments[happened])
        found: dict[str, Values | float] = {
            "leaving": leaving,
            "events": np.bincount(where[events], minlength=count).astype(np.float64),
            "terms": x[events].sum(axis=0),
            "columns": x.sum(axis=0),
            "records": float(len(x)),
            "support": support(x, events, self.columns),
            "beyond": float((np.abs(eta) > _LARGEST).sum()),
        }
        if self.efron:
            found["tied"] = tied
        return found

    def absorb(self, step: int, totals: Mapping[str, torch.Tensor], state: State, *, same: bool) -> None:
        """Check what may be estimated, and move."""
        records, p = float(round(float(totals["records"]))), self.size
        events = [float(round(d)) for d in totals["events"].tolist()]
        died = sum(events)
        if (
            records < self.min_cell
            or is_small(died, self.min_cell)
            or is_small(records - died, self.min_cell)
        ):
            return hide(state, Reason.FEW_RECORDS)
        if not died:
            return hide(state, Reason.NO_VARIATION)
        if self.too_many(p, died):
            return hide(state, Reason.MANY_PARAMETERS)
        if self.too_small(state, totals, self.columns, records=records, events=died):
            return None
        beta, terms, offset = state["beta"].tolist(), totals["terms"].tolist(), float(state["offset"])
        score, information, logs, least = self._sums(totals, events, terms)
        # Rounding of hazards, at all times together, over the mean number at risk.
        moved = 2.0 * died * math.sqrt(self.times.count) * self.grain(_LARGEST_HAZARD) / least
        objective = 2.0 * (logs - (dot(beta, terms) - offset * died))
        if step == 0:
            state["null"] = tensor(-objective / 2)
        found = self.move(
            step,
            state,
            score,
            information,
            objective,
            same=same,
            grain=(moved, moved),
            least=_CONSTANT * died,
        )
        means = [one / records for one in totals["columns"].tolist()]
        offset = dot(means, state["beta"].tolist())
        state["offset"] = tensor(min(max(offset, -FARTHEST), FARTHEST))
        if found:
            if round(float(totals["beyond"])):
                return hide(state, Reason.OUT_OF_RANGE)
            null = math.nan if float(state["changed"]) else float(state["null"])
            state["numbers"] = tensor([records, died, four_digits(-objective / 2), four_digits(null)])
        return None

    def _sums(
        self, totals: Mapping[str, torch.Tensor], events: Sequence[float], terms: Sequence[float]
    ) -> tuple[list[float], Matrix, float, float]:
        """Score, information, the sum of logarithms of hazards at risk, and their harmonic mean."""
        p, count = self.size, self.times.count
        at = [at_risk(column) for column in totals["leaving"].T.tolist()]
        tied = totals["tied"].tolist() if self.efron else [[0.0] * len(at)] * count
        score, logs, inverses = list(terms), 0.0, 0.0
        information = [[0.0] * p for _ in range(p)]
        for j in range(count):
            d = round(events[j])
            weight = 1.0 if self.efron else float(d)  # Breslow's ties are alike
            for tie in range(d if self.efron else min(d, 1)):
                share = tie / d if self.efron else 0.0
                sums = [at[k][j] - share * tied[j][k] for k in range(len(at))]
                total = sums[0]
                if not total > 0.0:
                    continue
                logs += weight * logarithm(total)
                inverses += weight / total
                means = [one / total for one in sums[1 : p + 1]]
                position = p + 1
                for a in range(p):
                    score[a] -= weight * means[a]
                    for b in range(a + 1):
                        information[a][b] += weight * (sums[position] / total - means[a] * means[b])
                        information[b][a] = information[a][b]
                        position += 1
        return score, information, logs, sum(events) / inverses if inverses else 1.0

    def released(self, state: State) -> State:
        """Coefficients, covariance, and how many records and events."""
        return {name: state[name] for name in ("coefficients", "covariance", "numbers")}

    def result(self, released: Mapping[str, Values]) -> Result:
        """A line for each coefficient."""
        n, died, logs, null = (float(one) for one in released["numbers"])
        found = estimates(
            self.per_term,
            released["coefficients"],
            released["covariance"],
            level=self.rules.level,
            degrees=None,
            exponentiated="hazard ratio",
            title=f"hazard ~ {self.formula}",
        )
        values = {
            "formula": self.formula,
            "ties": "efron" if self.efron else "breslow",
            **found.values,
            "covariance": released["covariance"],
            "n": round(n),
            "events": round(died),
            "log_likelihood": logs,
            "null_log_likelihood": null,
        }
        fit = ResultTable(
            "Fit",
            ("n", "events", "log-likelihood", "without terms"),
            ((round(n), round(died), logs, null),),
        )
        return Result(values, (*found.tables, fit), found.figures)
