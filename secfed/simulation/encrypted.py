"""A simulation under encrypted protection: sites that hold states, an aggregator that holds none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from secfed.algorithms.framework.base import ServerProgram
from secfed.errors import WrongState
from secfed.protection.encrypted_plan import EncryptedPlan
from secfed.records.transcript import Log
from secfed.server.coordinator import StudyRun
from secfed.server.encrypted_coordinator import EncryptedCoordinator
from secfed.server.encrypted_round import EncryptedRounds, SumStore
from secfed.server.round import Rules
from secfed.simulation.transport import SimulatedTransport
from secfed.site.session import Site
from secfed.site.terms import Terms


def assemble(
    terms: Terms,
    sites: Mapping[str, Site],
    rules: Rules,
    carrier: SimulatedTransport,
    log: Log,
    stack: ExitStack,
) -> tuple[StudyRun, Callable[[], ServerProgram]]:
    """The run, and a view of the newest site's state."""
    chosen = terms.study.protection
    plan = EncryptedPlan.derive(
        terms.algorithm,
        terms.study.rounds,
        terms.sites,
        key_mode=chosen.key_mode,
        scheme=chosen.scheme,
        holder=chosen.key_holder,
    )
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-sums-")))
    rounds = EncryptedRounds(plan, rules, SumStore(folder), carrier.ask)
    run = EncryptedCoordinator(terms.algorithm, terms.study.rounds, rounds, log)

    def newest() -> ServerProgram:
        replica = max(sites.values(), key=lambda site: site.sums).replica
        if replica is None:
            raise WrongState("there is no site to read the state from")
        return replica

    return run, newest
