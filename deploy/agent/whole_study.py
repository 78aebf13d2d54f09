"""A study is begun only if budgets carry it to its end: known once the data has been read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from secfed.deploy.agent.training import TrainingProcess
from secfed.dp.accounting.events import Event
from secfed.site.runtime import SiteStudy

PLANNED_S: Final = 600.0  # so long a refused study is refused again without reading the data


class WholeStudies:
    """Loads the data of studies; what each will pay is remembered for a while."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._plans: dict[str, tuple[tuple[Event, ...], float]] = {}  # by study: its steps, and until when

    def load(self, opened: SiteStudy, training: TrainingProcess) -> None:
        """Read the data now, not in the first round; BudgetExceeded where budgets do not carry the study."""
        study = opened.terms.study_id
        steps, until_s = self._plans.get(study, ((), 0.0))
        if self._now_s() < until_s:
            opened.check_whole(steps)
        training.start()
        self._plans[study] = training.planned, self._now_s() + PLANNED_S
        opened.check_whole(training.planned)
