"""The parties of a simulation: an aggregator and hospitals, with identities made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from secfed.algorithms.framework.base import ServerProgram
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.ledger import Ledger
from secfed.engine.interface import Engine
from secfed.engine.kept_programs import KeptProgram
from secfed.errors import WrongState
from secfed.pipeline.clip import ClippedShare
from secfed.pipeline.noised_algorithm import NoisedAlgorithm
from secfed.pipeline.stage import Stage
from secfed.records.chain_file import BriefChainFile, ChainFile
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.records.transcript import SETTINGS, Transcript
from secfed.runs.run_folder import (
    STUDY_FILE,
    TRANSCRIPT_FILE,
    UNFINISHED_SUMS,
    ledger_file,
    site_folder,
)
from secfed.server.coordinator import StudyRun
from secfed.server.make_run import make_run
from secfed.server.round import Rules
from secfed.simulation.transport import SimulatedTransport
from secfed.simulation.unfinished import Left, Unfinished
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.containment import Failure
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.session import Site
from secfed.site.terms import Terms
from secfed.storage.atomic import write_atomic
from secfed.study.limits import limits_of
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model
from secfed.wire.layout import State

_FILE: Final = partial(ChainFile, synced=False)  # of a run that a crash of the machine ends anyway


@dataclass
class Consortium:
    """Everybody who takes part. Make one with :func:`open_consortium`."""

    terms: Terms
    roster: Roster
    aggregator: Identity  # the aggregator's key
    log: Transcript  # the aggregator's transcript
    logs: Mapping[str, Transcript]  # the sites' transcripts
    start: State | None  # the model that the study begins with; None for the seed's
    clipped: ClippedShare  # how much of updates fixed point clipped
    identities: Mapping[str, Identity] = field(repr=False)  # of the sites
    sites: dict[str, Site] = field(default_factory=dict)  # the hospitals, by name
    programs: dict[str, KeptProgram] = field(default_factory=dict)  # their local work
    # what the hospitals heard of their own failed work
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    run: StudyRun = field(init=False)  # of the study, once they are connected

    def connect(
        self, carrier: SimulatedTransport, out: Path | None, kept: Unfinished | None, stack: ExitStack
    ) -> StudyRun:
        """Join sites and aggregator by a link; the run of the study."""
        study = self.terms.study
        rules = Rules.of(study, self.aggregator, self.roster, self.terms.protection)
        carrier.connect({name: site.handle for name, site in self.sites.items()})
        if out is None or kept is None:
            sums = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-sums-")))
        else:
            sums = out / UNFINISHED_SUMS
        algorithm, start = self.terms.algorithm, self.start
        self.run = make_run(
            algorithm, study.rounds, rules, carrier.ask, self.log, kept, start=start, sums=sums
        )
        return self.run

    def server_program(self) -> ServerProgram:
        """The study's state: the aggregator's, or that of the site that has taken most sums."""
        newest = max(self.sites.values(), key=lambda site: site.sums)
        program = self.run.server or newest.replica
        if program is None:
            raise WrongState("nobody runs this study's server program")
        return program


def open_consortium(
    terms: Terms,
    engine: Engine,
    out: Path | None,
    budgets: Mapping[str, float],
    stack: ExitStack,
    left: Left | None = None,
) -> Consortium:
    """Make all parties and their records.

    Args:
        engine: where local work is done.
        out: folder of the run; None keeps ledgers in a temporary one, and transcripts nowhere.
        budgets: site to epsilon, where that is not the study's own.
        left: what a killed run left in the folder, to go on with.
    """
    study, names = terms.study, terms.sites
    start = load_initial_model(study, terms.algorithm)
    made = Identity.generate if left is None else left.identity
    aggregator = made("aggregator")
    identities = {name: made(name) for name in names}
    roster = Roster.of(aggregator, list(identities.values()))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_roster(out / ROSTER_FILE, roster)  # first: without it nobody can check a run that was stopped
        write_atomic(out / STUDY_FILE, f"{json.dumps(study.identity(), indent=2)}\n".encode())

    def transcript(
        identity: Identity, folder: Path | None, open_file: Callable[[Path], ChainFile]
    ) -> Transcript:
        sink = None if folder is None else folder / TRANSCRIPT_FILE

        def opened(path: Path) -> ChainFile:
            file = open_file(path)
            if left is not None:
                left.cut(path)  # the aggregator's comes first, and its lock keeps others out
            return file

        log = Transcript(
            identity, study=terms.study_id, roster_digest=roster.digest, sink=sink, open_file=opened
        )
        if left is None:
            # Noise from the study's seed protects nobody: whoever reads the record should know.
            log.append(SETTINGS, {**study.settings(len(names)), "simulated": True})
        return stack.enter_context(log)

    folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="secfed-run-")))
    parties = Consortium(
        terms,
        roster,
        aggregator,
        transcript(aggregator, out, _FILE),  # locked as long as the run lasts
        {
            name: transcript(one, out and site_folder(out, name), BriefChainFile)
            for name, one in identities.items()
        },
        start,
        ClippedShare(study.protection.bound),
        identities,
    )
    # Sums with noise have bounds of their own.
    watch = Stage() if isinstance(terms.algorithm, NoisedAlgorithm) else parties.clipped
    limits = limits_of(study, len(names))
    journal = Journal()  # one for all sites: there may be a thousand
    stack.callback(journal.close)
    for name, identity in identities.items():
        failures = parties.failures[name] = []
        ledger = _ledger(study, identity, site_folder(folder, name), budgets.get(name), left)
        program = parties.programs[name] = engine.program(name, failures.append, ledger)
        parties.sites[name] = site = build_site(
            terms,
            Member(identity, roster),
            program,
            limits=limits,
            draws=Draws.seeded(study.seed, name),
            store=NullStore(journal, terms.study_id, f"{name}/"),
            services=Services(
                parties.logs[name],
                failures.append,
                initial_model=lambda: start,
                only_values=True,  # all sites are this researcher's, who wants to see a defect
                watch=watch,
            ),
            ledger=ledger,
        )
        stack.callback(site.close)
    return parties


def _ledger(
    study: Study, identity: Identity, folder: Path, epsilon: float | None, left: Left | None
) -> Ledger | None:
    settings = study.privacy
    if settings is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    limit = settings.epsilon if epsilon is None else epsilon
    budget = Budget(limit, settings.delta, protects=settings.budgeted)
    path = ledger_file(folder, study.data.name)
    if left is not None:
        left.cut(path)
    chosen = accountant(settings.accountant)
    return Ledger(path, identity, study.data.name, [budget], accountant=chosen, open_file=_FILE)
