"""A simulation under encrypted protection: sites that hold states, an aggregator that holds none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.protection.encrypted_plan import EncryptedPlan
from secfed.records.transcript import Log
from secfed.server.coordinator import StudyRun
from secfed.server.encrypted_coordinator import EncryptedCoordinator
from secfed.server.encrypted_round import EncryptedRounds, SumStore
from secfed.server.round import Rules
from secfed.simulation.transport import SimulatedTransport
from secfed.site.encrypted_session import EncryptedSession, newest
from secfed.study.study import Study


def assemble(
    study: Study,
    algorithm: Algorithm,
    arguments: Mapping[str, Mapping[str, Any]],
    rules: Rules,
    carrier: SimulatedTransport,
    log: Log,
    stack: ExitStack,
) -> tuple[StudyRun, Callable[[], ServerProgram], Mapping[str, EncryptedSession]]:
    """Make the sites, connect them, and give the run and a view of the state.

    Args:
        study: the study.
        algorithm: built from it.
        arguments: per site, what :class:`secfed.site.session.Site` takes.
        rules: the aggregator's.
        carrier: the link.
        log: the aggregator's transcript.
        stack: closes worker processes and temporary files.

    Returns:
        The run, a function that gives the server program of an up-to-date *site* (the aggregator has no
        state that could be looked at), and the sites.
    """
    chosen = study.protection
    plan = EncryptedPlan.derive(
        algorithm,
        study.rounds,
        tuple(arguments),
        key_mode=chosen.key_mode,
        scheme=chosen.scheme,
        holder=chosen.key_holder,
    )
    sites = {
        name: EncryptedSession(plan=plan, processes=chosen.processes, **given)
        for name, given in arguments.items()
    }
    for site in sites.values():
        stack.callback(site.close)
    carrier.connect({name: site.handle for name, site in sites.items()})
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-sums-")))
    rounds = EncryptedRounds(plan, rules, SumStore(folder), carrier.ask)
    return EncryptedCoordinator(algorithm, study.rounds, rounds, log), partial(newest, sites), sites
