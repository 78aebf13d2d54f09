"""A simulation under encrypted protection: sites that hold states, an aggregator that holds none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secfed.algorithms.base import Algorithm, ServerProgram
from secfed.coordinator import StudyRun
from secfed.round import Rules
from secfed.sealed import SealedPlan
from secfed.sealed_coordinator import SealedCoordinator
from secfed.sealed_round import SealedRounds, SumStore
from secfed.sealed_site import SealedSite, newest
from secfed.simulated_link import SimulatedLink
from secfed.study import Study
from secfed.transcript import Log


def assemble(
    study: Study,
    algorithm: Algorithm,
    arguments: Mapping[str, Mapping[str, Any]],
    rules: Rules,
    carrier: SimulatedLink,
    log: Log,
    stack: ExitStack,
) -> tuple[StudyRun, Callable[[], ServerProgram], Mapping[str, SealedSite]]:
    """Make the sites, connect them, and give the run and a view of the state.

    Args:
        study: the study.
        algorithm: built from it.
        arguments: per site, what :class:`secfed.site.Site` takes.
        rules: the aggregator's.
        carrier: the link.
        log: the aggregator's transcript.
        stack: closes worker processes and temporary files.

    Returns:
        The run, a function that gives the server program of an up-to-date *site* (the aggregator has no
        state that could be looked at), and the sites.
    """
    chosen = study.protection
    plan = SealedPlan.derive(
        algorithm,
        study.rounds,
        tuple(arguments),
        key_mode=chosen.key_mode,
        scheme=chosen.scheme,
        holder=chosen.key_holder,
    )
    sites = {
        name: SealedSite(plan=plan, processes=chosen.processes, **given) for name, given in arguments.items()
    }
    for site in sites.values():
        stack.callback(site.close)
    carrier.connect({name: site.handle for name, site in sites.items()})
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-sums-")))
    rounds = SealedRounds(plan, rules, SumStore(folder), carrier.ask)
    return SealedCoordinator(algorithm, study.rounds, rounds, log), partial(newest, sites), sites
