"""The Engine interface: where the local work of a simulation's hospitals runs; and the one in this process.

Whatever the engine, protocol, journals, ledgers, masks and transcripts stay in this process, and local work
is paid for here before it starts. Local work draws from seeds of its site, round and exchange, on one thread
(unless asked otherwise); so model bytes, transcripts and ledgers are the same with every engine, number of
workers and order of completion.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from threadpoolctl import threadpool_limits

from secfed.algorithms.framework.base import Algorithm
from secfed.dp.ledger.ledger import Ledger
from secfed.engine.kept_programs import PROGRAMS_KEPT, KeptProgram, KeptPrograms, MadeWhenNeeded
from secfed.site.containment import Alarm


class Engine(Protocol):
    """Works for the sites of one study.

    Attributes:
        workers: how many sites can work at the same time.
    """

    workers: int

    def program(self, site: str, alarm: Alarm, ledger: Ledger | None) -> KeptProgram:
        """The program of one site.

        Args:
            alarm: told of what failed and added zeros.
            ledger: pays for private local steps; None for a study without any.
        """
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Inline(Engine):
    """One site after the other, in this process; ``programs`` of them are there at a time."""

    workers = 1

    def __init__(self, algorithm: Algorithm, seed: int, programs: int = PROGRAMS_KEPT) -> None:
        self._algorithm, self._seed, self._kept = algorithm, seed, KeptPrograms(programs)

    def program(self, site: str, alarm: Alarm, ledger: Ledger | None) -> KeptProgram:  # noqa: ARG002
        """The algorithm's own; its site contains what fails, and pays."""
        return MadeWhenNeeded(site, partial(self._algorithm.site, site), self._kept, self._seed)

    def close(self) -> None:
        """Nothing was started."""


@contextmanager
def threads_of_torch(threads: int) -> Iterator[None]:
    """So many for torch and NumPy: another number changes the last digits of sums, and with them models."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> None:
    """One for the whole life of a worker, and for libraries that it loads later."""
    torch.set_num_threads(1)
    threadpool_limits(1)
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
