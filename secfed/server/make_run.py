"""The aggregator's side of a study, as its protection wants it: the same call for runs and simulations."""

from __future__ import annotations

from pathlib import Path

from secfed.algorithms.framework.base import Algorithm
from secfed.protection.opened_at_sites import OpenedAtSites
from secfed.records.transcript import Log
from secfed.server.coordinator import Coordinator, Keeper, StudyRun
from secfed.server.opened_rounds import OpenedRounds, SumStore
from secfed.server.round import Ask, Rules
from secfed.storage.atomic import sync_folder
from secfed.wire.layout import State


def make_run(
    algorithm: Algorithm,
    rounds: int,
    rules: Rules,
    ask: Ask,
    log: Log,
    keeper: Keeper | None = None,
    *,
    start: State | None = None,
    sums: Path,
) -> StudyRun:
    """Make the run of one study as its protection wants it; arguments as for :class:`Coordinator`.

    ``start`` matters where the aggregator runs the server program; in the folder ``sums``, made where it is
    needed, it keeps sums that it cannot read.
    """
    protection = rules.protection
    if isinstance(protection, OpenedAtSites):
        sums.mkdir(mode=0o700, exist_ok=True)
        sync_folder(sums.parent)  # a checkpoint names sums in it
        return OpenedRounds(algorithm, rounds, protection, rules, SumStore(sums), ask, log, keeper)
    return Coordinator(algorithm, rounds, rules, ask, log, keeper, start)
