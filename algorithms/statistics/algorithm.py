"""``statistics``: all analyses of a study in one round; step k of each is in the k-th secure sum.

Nothing is trained. The server's model is what is released of every analysis (``NAME/...``), so results
travel, are recorded and verify as any model does; see :mod:`secfed.algorithms.statistics.report`.

How many sums there are, and their sizes, stand in the study: an analysis that is finished earlier is given as
done, and sites add zeros to its parts from then on, so that dropouts afterwards cannot be told from a
difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from secfed.algorithms.data.tabular.column_options import ColumnsOptions
from secfed.algorithms.data.tabular.columns import Table, TableData
from secfed.algorithms.framework.base import (
    Algorithm,
    SiteId,
    SiteProgram,
    UnitBound,
    check_round,
    planned_for,
)
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.unfit import unfit
from secfed.algorithms.statistics.analysis import DONE, WEIGHTS, Analysis, Rules
from secfed.algorithms.statistics.counts import ALL, MISSING
from secfed.algorithms.statistics.differences import read_twice
from secfed.algorithms.statistics.guard import Guard
from secfed.algorithms.statistics.kinds import kind_of
from secfed.algorithms.statistics.options import (
    StatisticsOptions,
)
from secfed.algorithms.statistics.plan import Step, planned
from secfed.algorithms.statistics.server import StatisticsServer
from secfed.algorithms.statistics.together import check_cells, check_ridges, check_steps
from secfed.dp.settings import PrivacySection
from secfed.dp.training.unit_sums import ADDED_UP, UnitSums
from secfed.errors import ConfigError, DataError
from secfed.wire.layout import Exchange, State, Summands


@register("statistics", options=StatisticsOptions)
class Statistics(Algorithm):
    """The analyses of one study."""

    private_units = ()
    summed_units = ("record", "group")

    def __init__(self, setting: Setting, options: StatisticsOptions) -> None:
        study, data = setting.study, setting.data
        if not isinstance(data, TableData):
            raise ConfigError(
                f"data.name: statistics needs a table with declared columns; {study.data.name} has none",
                remedy='use data.name = "columns" or "heart-table"',
            )
        if study.model.name != "none":
            raise ConfigError(
                f"model.name: statistics trains no network, so {study.model.name!r} would have no effect",
                remedy='set model.name = "none"',
            )
        if study.rounds != 1:
            raise ConfigError(
                f"study.rounds: statistics takes one round of sums, not {study.rounds}",
                remedy="set study.rounds = 1",
            )
        _check_names(data)
        if isinstance(study.data, ColumnsOptions):
            _check_columns(study.data.model_dump())
        self.setting, self.options, self.data = setting, options, data
        self.noisy = study.privacy is not None
        replaced = study.privacy is not None and study.privacy.privacy_unit.adjacency.keeps_slots
        self.analyses = analyses_of(options, data, noisy=self.noisy, replaced=replaced)
        self.needs = tuple(dict.fromkeys(name for one in self.analyses for name in one.needs))
        if study.privacy is not None:
            check_privacy(study.privacy, self.analyses)
        guard = None if self.noisy else Guard(self.analyses, rules_of(options, data))
        self.guard = guard if guard is not None and guard.needed else None
        checked = self.analyses if self.guard is None else (*self.analyses, self.guard)
        self.plan = planned(checked, options.max_records, len(setting.sites))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """All steps in round 1; there is nothing to evaluate."""
        check_round(round_number, 1)
        return tuple(step.exchange for step in self.plan) if round_number == 1 else ()

    def step(self, round_number: int, exchange: Exchange) -> Step:
        """What an exchange is for; WrongState if the round has no such exchange."""
        return planned_for(exchange, round_number, self.plan if round_number == 1 else ())

    def server(self) -> StatisticsServer:
        """A fresh server program."""
        return StatisticsServer(self.analyses, self.plan, self.setting.sites, self.guard)

    def site(self, site_id: SiteId) -> StatisticsSite:
        """One site's program, bound to its table."""
        return StatisticsSite(self, self.site_data(site_id))

    def site_data(self, site_id: SiteId) -> Table:
        """One site's table, as far as the sums have room for its records."""
        table = self.data.table(site_id)
        most = self.options.max_records
        # Under noise one record fewer would let another one in; every sum is cut off at its bound.
        if table.records > most and not self.noisy:
            unfit(
                DataError(
                    f"site {site_id!r} has more records than algorithm.max_records",
                    remedy=f"raise it above {most} in the study",
                )
            )
            table = table.take(np.arange(most))
        # All analyses are of the same records: the difference of two would be those that lack a value.
        return table if self.noisy else table.take(table.complete(self.needs))

    def unit_bound(self, exchange: Exchange) -> UnitBound | None:
        """A record, or the records of a unit together, add a norm of 1 to every analysis, in its scales.

        An analysis of several steps divides its privacy among them. In all scales together the noise is the
        same in every sum then: of variance norm^2 / share.
        """
        if not self.noisy:
            return None
        step, scales, whole = self.step(1, exchange), dict[str, float](), 0.0
        for one in step.analyses:
            share = one.step_share(step.number - one.first)
            whole += share
            norms = {part.name: 1.0 for part in one.parts(step.number - one.first)}
            norms |= one.unit_scales()
            # Every analysis has the same privacy: where a step has only a part of it, a record counts less.
            units = {f"{one.name}/{part}": norm / math.sqrt(share) for part, norm in norms.items()}
            scales |= {name: unit for name, unit in units.items() if unit != 1.0}
        return UnitBound(math.sqrt(whole) * ADDED_UP, share=whole / len(self.analyses), scales=scales)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than the server's ``broadcast`` gives."""
        check_shapes(broadcast, self.step(round_number, exchange).given)


class StatisticsSite(SiteProgram):
    """Runs inside one hospital; keeps nothing but the table."""

    def __init__(self, algorithm: Statistics, table: Table) -> None:
        self._algorithm, self._table = algorithm, table
        self._weights: torch.Tensor | None = None  # of each record; 1 if left out

    def use_unit_sums(self, sums: UnitSums) -> None:
        """Nothing is to be clipped: declared bounds hold, and the records of a unit share a weight of 1."""
        self._weights = sums.weights(self._table.records, self._table.patients)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """The part of every analysis that this sum has; zeros for one that is done."""
        step = self._algorithm.step(round_number, exchange)
        given = {name: value.to("cpu").double().numpy() for name, value in broadcast.items()}
        found: dict[str, Any] = {}
        for analysis in step.analyses:
            own = step.number - analysis.first
            start = f"{analysis.name}/"
            part = {name.removeprefix(start): v for name, v in given.items() if name.startswith(start)}
            part |= {name: given[name] for name in analysis.reads}
            if self._weights is not None:
                part[WEIGHTS] = self._weights.numpy()
            sums: Mapping[str, Any]
            if float(part.get(DONE, 0.0)):
                sums = {one.name: np.zeros(one.shape) for one in analysis.parts(own)}
            else:
                sums = analysis.contribute(own, self._table, part)
            found |= {start + name: value for name, value in sums.items()}
        return {
            field.name: torch.as_tensor(np.asarray(found[field.name], np.float64)).reshape(field.shape)
            for field in exchange.layout.fields
        }


def analyses_of(
    options: StatisticsOptions, data: TableData, *, noisy: bool = False, replaced: bool = False
) -> tuple[Analysis, ...]:
    """The analyses in the order of the study, each after those that it builds on."""
    check_cells(options.analyses)
    shared = rules_of(options, data, noisy=noisy, replaced=replaced)
    made: dict[str, Analysis] = {}
    rest: Mapping[str, Any] = dict(options.analyses)
    ordered = sorted(rest, key=lambda name: rest[name].kind == "roc")  # of an analysis, so after all others
    for name in ordered:
        rules = replace(shared, earlier=dict(made))
        made[name] = kind_of(rest[name], noisy=noisy)(name, rest[name], rules)
    if not noisy:
        check_ridges(options.analyses)
        check_steps(made.values())
    return tuple(made[name] for name in rest)


def rules_of(
    options: StatisticsOptions, data: TableData, *, noisy: bool = False, replaced: bool = False
) -> Rules:
    """What all analyses of a study have in common."""
    return Rules(
        columns=tuple(data.columns),
        max_records=options.max_records,
        sites=len(data.sites),
        min_cell=options.min_cell,
        min_hospitals=options.min_hospitals,
        max_parameter_share=options.max_parameter_share,
        level=options.level,
        noisy=noisy,
        replaced=replaced,
    )


def check_privacy(privacy: PrivacySection, analyses: Sequence[Analysis]) -> None:
    """Refuse what no noise in a sum is known to hide, before a record is read."""
    if not privacy.in_sum:
        raise ConfigError(
            "privacy.noise: statistics are sums over all hospitals, which carry their noise",
            remedy='set privacy.noise = "sum", with privacy.unit = "record" or "group"',
        )
    for one in analyses:
        if not one.noisy:
            raise ConfigError(
                f"algorithm.analyses.{one.name}.kind: {one.kind} has no mechanism for noise in the sum",
                remedy="ask for the hazard by kaplan-meier or a poisson glm, or remove [privacy]",
            )
    if "clip_norm" in privacy.model_fields_set:
        raise ConfigError(
            "privacy.clip_norm: has no effect with statistics, whose tables bound every record",
            remedy="remove it",
        )


def _check_names(data: TableData) -> None:
    """Refuse categories that results would confuse with the rows beside them."""
    for column in data.columns:
        for name in sorted({MISSING, ALL}.intersection(column.categories)):
            raise ConfigError(
                f"data.columns.{column.name}.categories: {name!r} names a row of the results",
                remedy=f"give it another name, and set codes for it: {{ other = [{name!r}] }}",
            )


def _check_columns(data: Mapping[str, Any]) -> None:
    """Refuse two declarations of one column, for the same reason, and one that names hospitals."""
    for name, column in (data.get("columns") or {}).items():
        if (column.get("source") or name) == data.get("site_column"):
            raise ConfigError(
                f"data.columns.{name}: reads the column that names a record's hospital",
                remedy="remove it; no statistic may be of one hospital",
            )
    for name, first in read_twice(data.get("columns") or {}):
        raise ConfigError(
            f"data.columns.{name}: reads the same column of the file as {first!r}",
            remedy="declare it once; the difference of two declarations could tell a few records",
        )
