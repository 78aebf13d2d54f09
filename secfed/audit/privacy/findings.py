"""What an audit knows while it verifies: chains, runs, ledgers, and whose keys are believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from secfed.audit.model_check import FoundModel
from secfed.audit.privacy.files import Found, Source
from secfed.audit.privacy.recompute import Point, Recomputer
from secfed.audit.transcript_check import Problem
from secfed.crypto.identity import Roster
from secfed.errors import RosterError, TranscriptError
from secfed.records.hash_chain import BrokenChain, ChainType, Entry, verify_chain
from secfed.records.roster_file import PINNED_FOLDER, read_roster
from secfed.records.transcript import SETTINGS, SUMMED, TRANSCRIPT, SumRecord

AGGREGATOR: Final = "aggregator"


@dataclass(frozen=True)
class VerifiedRecord:
    """One chain that was looked at.

    Attributes:
        source: the file.
        owner: a site, or ``aggregator``.
        public_bytes: the key it verifies under; empty if none was found.
        entries: empty if the chain does not verify.
        name: ``transcript``, ``ledger`` or ``decision log``.
    """

    source: Source
    owner: str
    public_bytes: bytes = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    name: str = TRANSCRIPT.name


@dataclass
class AuditedRun:
    """The transcripts of one run of one study.

    Attributes:
        study: its name, as the transcripts were opened for.
        roster: the roster they were verified against.
        central: the aggregator's transcript, if it is here.
        sites: the sites' transcripts that are here.
        models: those that the transcripts name.
    """

    study: str
    roster: Roster
    central: VerifiedRecord | None = None
    sites: dict[str, VerifiedRecord] = field(default_factory=dict)
    models: list[FoundModel] = field(default_factory=list)


@dataclass(frozen=True)
class Book:
    """One ledger.

    Attributes:
        chain: the longest copy that verifies.
        site: its owner.
        dataset: its data set.
        points: where the budgets stood after each payment, recomputed.
        copies: other files with the same history, or the beginning of it.
    """

    chain: VerifiedRecord
    site: str
    dataset: str
    points: tuple[Point, ...] = ()
    copies: tuple[Source, ...] = ()


@dataclass
class CheckedFolder:
    """What was found and what is wrong with it.

    Attributes:
        found: the files.
        named: roster files that the reader named; the keys come from there, or else from the folders.
        rosters: every believed roster that was used.
        chains: every transcript, ledger and decision log, verified or not.
        runs: transcripts by run.
        books: ledgers that verify.
        decisions: decision logs that verify, the longest copy of each.
        recomputer: keeps accountants, for further questions.
        problems: must be empty.
        unchecked: those of them that only say that a roster is missing.
        notes: worth knowing.
    """

    found: Found
    named: tuple[Path, ...]
    rosters: list[Roster] = field(default_factory=list)
    chains: list[VerifiedRecord] = field(default_factory=list)
    runs: list[AuditedRun] = field(default_factory=list)
    books: list[Book] = field(default_factory=list)
    decisions: list[VerifiedRecord] = field(default_factory=list)
    recomputer: Recomputer = field(default_factory=Recomputer)
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, path: Path, line: int | None, why: str) -> None:
        """Add a problem once."""
        made = Problem(path, line, why)
        if made not in self.problems:
            self.problems.append(made)

    def unknown_roster(self, path: Path, digest: str = "") -> None:
        """A file that cannot be checked, for want of the roster under which it was made."""
        which = f"the roster {digest[:16]}, under which it was made," if digest else "a roster"
        self.problem(path, None, f"it was not checked: {which} is missing; name it with --roster")
        self.unchecked.append(self.problems[-1])


class Believed:
    """Which roster to verify a file against.

    Args:
        state: gets problems and notes about rosters.
        pinned: rosters of the reader's, earlier ones included; without any, those found beside the files are
            believed.
    """

    def __init__(self, state: CheckedFolder, pinned: list[Roster]) -> None:
        self._pinned = pinned
        self._state = state
        self._beside: list[tuple[Path, Roster]] = []
        for source in state.found.rosters:
            try:
                roster = read_roster(source.path)
            except RosterError as error:
                state.problem(source.path, None, error.message.removeprefix(f"{source.path}: "))
                continue
            if pinned and roster not in pinned:
                state.notes.append(f"{source.path} is not among the rosters of --roster, and was not used")
            self._beside.append((_home(source.path), roster))

    def rosters_for(self, source: Source) -> list[Roster]:
        """Rosters to try: that which the file names, then the nearest."""
        rosters = self._pinned
        if not rosters:
            parents = source.path.parents
            near = [roster for folder in parents for home, roster in self._beside if home == folder]
            rosters = list(dict.fromkeys([*near, *(roster for _, roster in self._beside)]))
        stated = source.claims.get("roster_digest")
        return sorted(rosters, key=lambda roster: roster.digest.hex() != stated)  # stable

    def use(self, roster: Roster) -> None:
        """Remember that something was verified against it."""
        if roster not in self._state.rosters:
            self._state.rosters.append(roster)


def _home(path: Path) -> Path:
    """The folder whose records a roster file is for."""
    return path.parents[1] if path.parent.name == PINNED_FOLDER else path.parent


def verify_source(
    source: Source, kind: ChainType, public_bytes: bytes, owner: str | None
) -> tuple[tuple[Entry, ...], BrokenChain | None]:
    """The entries of a chain, or what is wrong with it."""
    try:
        return verify_chain(source.lines, public_bytes, kind, owner=owner), None
    except BrokenChain as error:
        return (), error


def sums_of(chain: VerifiedRecord) -> list[tuple[Entry, SumRecord]]:
    """The sums that a verified transcript recorded; unreadable ones are already problems."""
    found = []
    for entry in chain.entries:
        if entry.kind == SUMMED:
            try:
                found.append((entry, SumRecord.from_body(entry.body)))
            except TranscriptError:
                continue
    return found


def settings_of(entries: tuple[Entry, ...]) -> dict[str, object] | None:
    """The study's settings as a transcript recorded them; None if it did not."""
    return next((dict(entry.body) for entry in entries if entry.kind == SETTINGS), None)
