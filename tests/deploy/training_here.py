"""Training without a process of its own, for tests of everything around it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from secfed.algorithms.framework.base import SiteProgram
from secfed.engine.trainer import Trainer
from secfed.engine.wire import Job, Tensors
from secfed.wire.layout import Exchange, State, Summands


class TrainingHere(SiteProgram):
    """What stands in for a training process: the same work, one site at a time, with what the site kept."""

    one_at_a_time = threading.Lock()  # training seeds the random numbers of its whole process

    def __init__(self, job: Job, *, stored: Callable[[], Tensors], **_: object) -> None:
        self.job, self._stored = job, stored
        self.kept: Tensors = {}
        self.deaths, self.planned = 0, ()

    def contribute(self, number: int, exchange: Exchange, broadcast: State) -> Summands:
        unused: Any = None
        with self.one_at_a_time:
            trainer = Trainer(self.job, unused, self._stored())  # as if the last process had died
            head = {"round": number, "exchange": exchange.name}
            summands, self.kept, _ = trainer.contribute(head, broadcast)
        return summands

    def save(self) -> State:
        return self.kept

    def start(self) -> None: ...

    def close(self) -> None: ...

    def stop(self) -> None: ...
