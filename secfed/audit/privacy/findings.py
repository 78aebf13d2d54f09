"""What an audit knows while it verifies: chains, runs, ledgers, and whose keys are believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from secfed.audit.languages import said
from secfed.audit.model_check import FoundModel
from secfed.audit.party import Findings, Party, Problem
from secfed.audit.privacy.files import Found, Source
from secfed.audit.privacy.recompute import Recomputer
from secfed.crypto.identity import Roster
from secfed.dp.accounting.budget import Standing
from secfed.errors import RosterError
from secfed.records.hash_chain import Entry
from secfed.records.roster_file import AGGREGATOR as AGGREGATOR
from secfed.records.roster_file import PINNED_FOLDER, read_roster
from secfed.records.transcript import SETTINGS


@dataclass(frozen=True)
class VerifiedRecord(Party):
    """One chain that was read; without entries if it does not verify."""

    source: Source
    public_bytes: bytes = field(repr=False)  # the key it verifies under; empty if none was found

    @property
    def dataset(self) -> str:
        """From whose budget a ledger pays; empty for any other record."""
        return str(self.entries[0].body.get("dataset", "")) if self.entries else ""

    @property
    def settings(self) -> dict[str, object] | None:
        """The study's settings as a transcript recorded them; None if it did not."""
        return next((dict(entry.body) for entry in self.entries if entry.kind == SETTINGS), None)


@dataclass
class AuditedRun:
    """The transcripts of one run of one study."""

    study: str  # as the transcripts were opened for
    roster: Roster  # that they were verified against
    central: VerifiedRecord | None = None  # the aggregator's
    sites: dict[str, VerifiedRecord] = field(default_factory=dict)
    models: list[FoundModel] = field(default_factory=list)

    @property
    def parties(self) -> list[VerifiedRecord]:
        """Every transcript that is here, the aggregator's first."""
        return ([self.central] if self.central else []) + list(self.sites.values())


@dataclass
class CheckedFolder(Findings):
    """What was found and what is wrong with it."""

    found: Found
    pinned: list[Roster]  # believed, if there are any; else those beside the files
    beside: list[tuple[Path, Roster]] = field(default_factory=list)  # the folder whose records it is for
    used: dict[Roster, None] = field(default_factory=dict)  # something was verified against it; in order
    chains: list[VerifiedRecord] = field(default_factory=list)  # verified or not
    runs: list[AuditedRun] = field(default_factory=list)
    ledgers: list[VerifiedRecord] = field(default_factory=list)  # the longest copy of each
    decisions: list[VerifiedRecord] = field(default_factory=list)  # the longest copy of each decision log
    # file -> line of a payment -> where the budgets stood after it, recomputed
    standings: dict[Path, dict[int, tuple[Standing, ...]]] = field(default_factory=dict)
    recomputer: Recomputer = field(default_factory=Recomputer)
    unchecked: list[Problem] = field(default_factory=list)  # those that only say that a roster is missing

    def __post_init__(self) -> None:
        unused = "{file} is not among the rosters of --roster, and was not used"
        for source in self.found.of(None):
            try:
                roster = read_roster(source.path)
            except RosterError as error:
                self.problem(source.path, None, error.message.removeprefix(f"{source.path}: "))
                continue
            if self.pinned and roster not in self.pinned:
                self.notes.append(said(unused, file=source.path))
            folder = source.path.parent
            self.beside.append((folder.parent if folder.name == PINNED_FOLDER else folder, roster))

    def unknown_roster(self, path: Path, digest: str = "") -> None:
        """A file that cannot be checked, for want of the roster under which it was made."""
        text = (
            "it was not checked: the roster {digest}, under which it was made, is missing; name "
            "it with --roster"
            if digest
            else "it was not checked: a roster is missing; name it with --roster"
        )
        self.problem(path, None, said(text, digest=digest[:16]))
        self.unchecked.append(self.problems[-1])

    def record(
        self, source: Source, owner: str, public_bytes: bytes = b"", entries: tuple[Entry, ...] = ()
    ) -> VerifiedRecord:
        """Remember that a file was read; without entries where it does not verify."""
        chain = VerifiedRecord(owner or "?", source.path, entries, source, public_bytes)
        self.chains.append(chain)
        return chain

    def rosters_for(self, source: Source) -> list[Roster]:
        """Rosters to verify a file against: that which the file names, then the nearest."""
        rosters = self.pinned
        if not rosters:
            parents = source.path.parents
            near = [roster for folder in parents for home, roster in self.beside if home == folder]
            rosters = list(dict.fromkeys([*near, *(roster for _, roster in self.beside)]))
        stated = source.claims.get("roster_digest")
        return sorted(rosters, key=lambda roster: roster.digest.hex() != stated)  # stable
