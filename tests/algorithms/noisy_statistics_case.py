"""One analysis under noise in the sum, its steps played here with noise of a known deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.algorithms.statistics.analysis import DONE, NOISE, STATUS, WEIGHTS, Analysis, Rules
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.kinds import kind_of
from secfed.algorithms.statistics.options import KINDS
from secfed.algorithms.statistics.results import Result

Generator = np.random.Generator


def noisy(declared: Sequence[Column], /, replaced: bool = False, earlier: Any = None, **options: Any) -> Any:
    """The analysis with these options, as ``one``."""
    rules = Rules(tuple(declared), 10_000, 4, 5, 2, 0.33, 0.95, True, replaced, earlier or {})
    given = KINDS[options["kind"]](**options)
    return kind_of(given, noisy=True)("one", given, rules)


def table(declared: Sequence[Column], **values: Any) -> Table:
    """Records with these values; of categories, positions."""
    found = {name: np.asarray(one, np.float64) for name, one in values.items()}
    return Table(tuple(declared), found, len(next(iter(found.values()))))


def played(
    analysis: Analysis,
    records: Table,
    deviation: float,
    rng: Generator,
    more: Mapping[str, Any] | None = None,
) -> tuple[Reason, Result | None, dict[str, torch.Tensor]]:
    """Why there is a result or none, the result, and the state; ``deviation`` is over the scales."""
    shapes = {**analysis.shapes(), DONE: (), STATUS: ()}
    state = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()} | dict(
        more or {}
    )
    for step in range(analysis.steps):
        given = {name: state[name].numpy() for name in (*analysis.given(step), *analysis.reads)}
        totals, step_noise = {}, deviation / math.sqrt(analysis.step_share(step))
        for name, found in analysis.contribute(step, records, given).items():
            value = np.asarray(found)
            spread = step_noise * analysis.unit_scales().get(name, 1.0)
            totals[name] = torch.as_tensor(value + rng.normal(0, spread, value.shape))
        state[NOISE] = torch.tensor(deviation, dtype=torch.float64)
        analysis.absorb(step, totals, state, same=True)
        if float(state[DONE]):
            break
    reason = Reason(int(state[STATUS]))
    if reason is not Reason.RELEASED:
        return reason, None, state
    released = {name: value.numpy() for name, value in analysis.released(state).items()}
    return reason, analysis.result(released), state


def result(analysis: Analysis, records: Table, deviation: float, rng: Generator) -> Mapping[str, Any]:
    """The values of a result that there is."""
    reason, found, _ = played(analysis, records, deviation, rng)
    assert found is not None, reason
    return found.values


def norm(analysis: Analysis, record: Table, given: Mapping[str, Any], step: int = 0) -> float:
    """What one record adds, in the scales; a quarter of it for a record that counts a quarter."""
    sums = analysis.contribute(step, record, given)
    shared = analysis.contribute(step, record, {**given, WEIGHTS: np.array([0.25])})
    for name in sums:
        np.testing.assert_allclose(shared[name], np.asarray(sums[name]) / 4)
    return float(np.linalg.norm(scaled(analysis, sums)))


def scaled(analysis: Analysis, sums: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """All numbers of a step, by their scales."""
    scales = analysis.unit_scales()
    return np.concatenate([np.ravel(value) / scales.get(name, 1.0) for name, value in sums.items()])
