"""The secure sums of a study of statistics, from public facts alone: what is in which, and how large."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch

from secfed.algorithms.statistics.analysis import DONE, Analysis, Shapes
from secfed.wire.layout import Exchange, Field, Layout

_BITS: Final = 64  # coefficients must be those of the pooled records to the ninth digit


@dataclass(frozen=True)
class Step:
    """One sum: its number from 1, the analyses in it, and what sites are given before it."""

    number: int
    exchange: Exchange
    analyses: tuple[Analysis, ...]
    given: Shapes


def declared(analyses: Sequence[Analysis], sites: Sequence[str]) -> torch.Tensor:
    """A digest of what results are read by: hospitals, columns, rules and options of every analysis."""
    content: list[object] = [list(sites)]
    for one in analyses:
        rules = {key: value for key, value in vars(one.rules).items() if key not in ("columns", "earlier")}
        columns = [asdict(column) for column in one.rules.columns]
        options = one.options.model_dump(mode="json", exclude_defaults=True)
        content.append([one.name, one.kind, options, rules, columns])
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return torch.tensor(list(digest), dtype=torch.float64)


def planned(analyses: Sequence[Analysis], max_records: int, sites: int) -> tuple[Step, ...]:
    """The sums in order."""
    last = max(analysis.first + analysis.steps - 1 for analysis in analyses)
    return tuple(_step(number, analyses, max_records, sites) for number in range(1, last + 1))


def _step(number: int, analyses: Sequence[Analysis], max_records: int, sites: int) -> Step:
    active = tuple(one for one in analyses if one.first <= number < one.first + one.steps)
    fields, given = [], Shapes()
    for analysis in active:
        own = number - analysis.first
        for part in analysis.parts(own):
            bound = part.bound if part.whole else part.bound * max_records
            fields.append(Field(f"{analysis.name}/{part.name}", part.shape, bound, _BITS))
        shapes = analysis.shapes()
        if number > 1:
            given[f"{analysis.name}/{DONE}"] = ()
        given |= {f"{analysis.name}/{name}": shapes[name] for name in analysis.given(own)}
        for full in analysis.reads:
            other, _, name = full.partition("/")
            known = next(one.shapes() for one in analyses if one.name == other)
            given[full] = known.get(name, ())
    exchange = Exchange(f"step-{number:02}", "all", Layout(tuple(fields), sites=sites))
    return Step(number, exchange, active, given)
