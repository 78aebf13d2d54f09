"""The server's half of ``statistics``; sees totals only, and releases less than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from secfed.algorithms.framework.base import Metrics, ServerProgram, SiteId, planned_for
from secfed.algorithms.framework.server_state import copies, model_of, part_of
from secfed.algorithms.statistics.analysis import BLAMED, DONE, MARKS, NOISE, STATUS, STEP, Analysis
from secfed.algorithms.statistics.disclosure import BLAMING, NAMING, UNESTIMATED, Reason
from secfed.algorithms.statistics.guard import Guard
from secfed.algorithms.statistics.plan import Step, declared
from secfed.wire.layout import Exchange, State, Totals

DECLARED = "declared"  # bytes as float64: what a study must declare for its results to be read by it
ANSWERED = "answered"  # [steps, sites] float64: 1 where a site is in the sum of a step


class StatisticsServer(ServerProgram):
    """The state of every analysis, by ``NAME/...``."""

    def __init__(
        self, analyses: Sequence[Analysis], plan: Sequence[Step], sites: Sequence[SiteId], guard: Guard | None
    ) -> None:
        self._analyses, self._plan, self._sites = tuple(analyses), tuple(plan), tuple(sites)
        self._guard = guard
        self._state: dict[str, torch.Tensor] = {
            ANSWERED: torch.zeros(len(plan), len(sites), dtype=torch.float64)
        }
        for analysis in (*analyses, *([guard] if guard else [])):
            own = {**analysis.shapes(), DONE: (), STATUS: (), STEP: ()}
            self._state |= {
                f"{analysis.name}/{name}": torch.zeros(shape, dtype=torch.float64)
                for name, shape in own.items()
            }
            self._state[f"{analysis.name}/{STATUS}"] += Reason.UNFINISHED

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this step needs, and no more."""
        return {name: self._state[name].clone() for name in self._step(round_number, exchange).given}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one step of every analysis that is not done."""
        step = self._step(round_number, exchange)
        row = self._state[ANSWERED][step.number - 1]
        for column, site in enumerate(self._sites):
            row[column] = float(site in totals.survivors)
        unfinished = any(not float(self._state[f"{one.name}/{DONE}"]) for one in self._analyses)
        for analysis in step.analyses:
            own = part_of(self._state, f"{analysis.name}/")
            if bool(own[DONE]):
                continue
            before = self._state[ANSWERED][step.number - 2] if step.number > 1 else row
            own[STEP] = torch.tensor(float(step.number), dtype=torch.float64)
            own |= {name: self._state[name] for name in analysis.reads}
            if NOISE in own:
                own[NOISE] = torch.tensor(totals.noise, dtype=torch.float64)
            found = part_of(totals, f"{analysis.name}/")
            analysis.absorb(step.number - analysis.first, found, own, same=torch.equal(before, row))
            self._state |= {
                f"{analysis.name}/{name}": value for name, value in own.items() if name not in analysis.reads
            }

        if self._guard is not None and unfinished:
            self._check_again(self._guard, row)

    def _check_again(self, guard: Guard, row: torch.Tensor) -> None:
        """Where hospitals changed while an analysis went on, what was checked is not of its result."""
        own = part_of(self._state, f"{guard.name}/")
        if float(own[DONE]) and not torch.equal(self._row(own), row):
            guard.restart(own)
            self._state |= {f"{guard.name}/{name}": value for name, value in own.items()}

    def _row(self, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Who answered in the step that a result is of."""
        return self._state[ANSWERED][round(float(own[STEP])) - 1]

    def _guarded(self, analysis: Analysis, own: Mapping[str, torch.Tensor]) -> tuple[Reason, list[bool]]:
        """What the checks say of an analysis as a whole, and which of its spans few records hold."""
        guard = self._guard
        if guard is None:
            return Reason.RELEASED, []
        found = part_of(self._state, f"{guard.name}/")
        if not float(found[DONE]) or not torch.equal(self._row(found), self._row(own)):
            return Reason.HOSPITALS_CHANGED, []
        spans = guard.dominated_spans(analysis.checked_as, found)
        return guard.reason(analysis.checked_as, found), spans

    def _unestimated(self, analysis: Analysis, own: Mapping[str, torch.Tensor]) -> State:
        """Why there is no estimate, and by which terms; of few records, that would tell about them."""
        reason, spans = self._guarded(analysis, own)
        if reason in (Reason.RELEASED, Reason.FEW_HOSPITALS) and any(spans):
            reason = Reason.DOMINATED
        if reason is not Reason.RELEASED:
            status = torch.tensor(float(reason), dtype=torch.float64)
            return {STATUS: status, **self._blamed(analysis, reason)}
        return {name: own[name] for name in (MARKS,) if name in own and float(own[STATUS]) in NAMING}

    def _checked(self, analysis: Analysis, own: Mapping[str, torch.Tensor]) -> tuple[Reason, State]:
        """What is told of a result, and why not more."""
        released = analysis.released(dict(own))
        reason, spans = self._guarded(analysis, own)
        told = analysis.dominated(released, spans) if reason is not Reason.HOSPITALS_CHANGED else {}
        if reason in (Reason.RELEASED, Reason.FEW_HOSPITALS) and told is None:
            reason = Reason.DOMINATED  # what a record decides its hospital does, too
        if reason is not Reason.RELEASED or told is None:
            return reason, self._blamed(analysis, reason)
        return reason, told

    def _blamed(self, analysis: Analysis, reason: Reason) -> State:
        """Of what the checks withhold, the columns that they do it for."""
        if self._guard is None or reason not in BLAMING:
            return {}
        found = part_of(self._state, f"{self._guard.name}/")
        names = self._guard.blamed(analysis.checked_as, reason, found)
        marks = [float(column.name in names) for column in analysis.rules.columns]
        return {BLAMED: torch.tensor(marks, dtype=torch.float64)}

    def _step(self, round_number: int, exchange: Exchange) -> Step:
        return planned_for(exchange, round_number, self._plan if round_number == 1 else ())

    def model(self) -> State:
        """What is released of every analysis, its status and step, who answered, and which study it is of."""
        model = {ANSWERED: self._state[ANSWERED].clone(), DECLARED: declared(self._analyses, self._sites)}
        for analysis in self._analyses:
            own = copies(part_of(self._state, f"{analysis.name}/"))
            kept = {STATUS: own[STATUS], STEP: own[STEP]}
            builds_on = analysis.checked_as != analysis.name and float(own[STEP]) > 0
            if float(own[STATUS]) == Reason.RELEASED:
                reason, told = self._checked(analysis, own)
                kept |= {STATUS: torch.tensor(float(reason), dtype=torch.float64), **told}
            elif float(own[STATUS]) in UNESTIMATED or builds_on:
                kept |= self._unestimated(analysis, own)
            elif float(own[STATUS]) in NAMING and MARKS in own:
                kept[MARKS] = own[MARKS]
            if float(kept[STATUS]) != Reason.RELEASED:
                # In which step it ended says whether there was an estimate.
                kept[STEP] = torch.tensor(float(analysis.first + analysis.steps - 1), dtype=torch.float64)
            model |= {f"{analysis.name}/{name}": value for name, value in kept.items()}
        return model

    def metrics(self) -> Mapping[int, Metrics]:
        """None: results are in the model."""
        return {}

    def save(self) -> State:
        """The state."""
        return copies(self._state)

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._state = model_of(state, self._state, start="")
