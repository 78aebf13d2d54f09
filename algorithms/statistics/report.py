"""The results of a finished study, from its model, and which hospitals each stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from secfed.algorithms.framework.server_state import part_of
from secfed.algorithms.statistics.analysis import STATUS, STEP, Analysis, Values
from secfed.algorithms.statistics.disclosure import EXPLANATIONS, Reason
from secfed.algorithms.statistics.results import Reported
from secfed.algorithms.statistics.server import ANSWERED


def report_of(
    analyses: Sequence[Analysis], model: Mapping[str, torch.Tensor], sites: Sequence[str]
) -> tuple[Reported, ...]:
    """One entry for each analysis, in the order of the study."""
    answered = model[ANSWERED].numpy()
    return tuple(_reported(one, model, answered, tuple(sites)) for one in analyses)


def _reported(
    analysis: Analysis, model: Mapping[str, torch.Tensor], answered: Values, sites: tuple[str, ...]
) -> Reported:
    own = {name: value.numpy() for name, value in part_of(model, f"{analysis.name}/").items()}
    step, reason = round(float(own[STEP])), Reason(round(float(own[STATUS])))
    rows = answered[analysis.first - 1 : step]
    hospitals = tuple(s for s, there in zip(sites, rows[-1], strict=True) if there) if len(rows) else ()
    changed = bool((rows != rows[-1]).any()) if len(rows) else False
    if reason is not Reason.RELEASED:
        more = analysis.withheld(reason, own)
        text = f"{reason.name.lower()}: {EXPLANATIONS[reason]}" + (f" ({more})" if more else "")
        return Reported(analysis.name, analysis.kind, hospitals, changed, text)
    return Reported(analysis.name, analysis.kind, hospitals, changed, None, analysis.result(own))


def as_json(reported: Sequence[Reported]) -> dict[str, object]:
    """The content of analysis.json: an entry for each analysis, by name."""
    return {one.name: one.to_json() for one in reported}
