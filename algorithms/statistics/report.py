"""The results of a finished study, from its model, and which hospitals each stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from secfed.algorithms.framework.server_state import part_of
from secfed.algorithms.statistics.analysis import BLAMED, STATUS, STEP, Analysis, Values
from secfed.algorithms.statistics.disclosure import EXPLANATIONS, Reason
from secfed.algorithms.statistics.plan import declared
from secfed.algorithms.statistics.results import Reported, Result, ResultTable
from secfed.algorithms.statistics.server import ANSWERED, DECLARED
from secfed.errors import DataError

_OF_GROUPS: Final = (
    "numbers of records are of groups: the records of one share a weight of 1, and intervals are around the "
    "number of groups"
)


def report_of(
    analyses: Sequence[Analysis],
    model: Mapping[str, torch.Tensor],
    sites: Sequence[str],
    *,
    grouped: bool = False,
) -> tuple[Reported, ...]:
    """One entry for each analysis, in the order of the study.

    Args:
        analyses: of the study.
        model: of the finished study.
        sites: of the study.
        grouped: whether several records count as one.

    Raises:
        DataError: the model is of a study that declares something else.
    """
    found = model.get(DECLARED)
    if found is None or not torch.equal(found, declared(analyses, sites)):
        raise DataError(
            "the model is of a study that declares other analyses, columns or hospitals",
            remedy="name the study file that it was run with",
        )
    answered = model[ANSWERED].numpy()
    reported = tuple(_reported(one, model, answered, tuple(sites)) for one in analyses)
    return tuple(replace(one, result=_of_groups(one.result)) for one in reported) if grouped else reported


def _of_groups(result: Result) -> Result:
    """The same in words that say what is counted."""

    def titled(table: ResultTable) -> ResultTable:
        columns = tuple("groups" if name == "records" else name for name in table.columns)
        return replace(
            table, title=table.title.replace("Records by", "Groups of records by"), columns=columns
        )

    figures = tuple(
        replace(one, title=one.title.replace("Records by", "Groups of records by"), y="groups")
        if one.y == "records"
        else one
        for one in result.figures
    )
    tables = tuple(titled(table) for table in result.tables)
    return replace(result, tables=tables, figures=figures, notes=(*result.notes, _OF_GROUPS))


def _reported(
    analysis: Analysis, model: Mapping[str, torch.Tensor], answered: Values, sites: tuple[str, ...]
) -> Reported:
    own = {name: value.numpy() for name, value in part_of(model, f"{analysis.name}/").items()}
    step, reason = round(float(own[STEP])), Reason(round(float(own[STATUS])))
    rows = answered[analysis.first - 1 : step]
    hospitals = tuple(s for s, there in zip(sites, rows[-1], strict=True) if there) if len(rows) else ()
    changed = bool((rows != rows[-1]).any()) if len(rows) else False
    if reason is not Reason.RELEASED:
        blamed = zip(analysis.rules.columns, own.get(BLAMED, ()), strict=False)
        names = [column.name for column, mark in blamed if mark]
        more = "; ".join(filter(None, (analysis.withheld(reason, own), ", ".join(names))))
        text = f"{reason.name.lower()}: {EXPLANATIONS[reason]}" + (f" ({more})" if more else "")
        return Reported(analysis.name, analysis.kind, hospitals, changed, text)
    return Reported(analysis.name, analysis.kind, hospitals, changed, None, analysis.result(own))


def as_json(reported: Sequence[Reported]) -> dict[str, object]:
    """The content of analysis.json: an entry for each analysis, by name."""
    return {one.name: one.to_json() for one in reported}
