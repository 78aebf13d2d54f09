"""What every check works on: one party's verified transcript, and findings that name a file and a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from secfed.errors import TranscriptError
from secfed.records.hash_chain import Entry
from secfed.records.transcript import FOLLOWED, SUMMED, SumRecord, closing


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    file: str
    line: int | None  # first bad line, counted from 1; None if the file as a whole is meant
    why: str  # without file and line

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.why}"


@dataclass(kw_only=True)
class Findings:
    """What checks found: a problem must not be so, a note is something that a reader should know."""

    problems: list[Problem] = field(default_factory=list)
    _known: set[Problem] = field(default_factory=set, repr=False)
    notes: list[str] = field(default_factory=list)

    def problem(self, path: Path, line: int | None, why: str) -> None:
        """Add a problem once."""
        made = Problem(str(path), line, why)
        if made not in self._known:
            self._known.add(made)
            self.problems.append(made)


@dataclass(frozen=True)
class Party:
    """One party's transcript."""

    owner: str  # a site, or "aggregator"
    path: Path
    entries: tuple[Entry, ...] = field(repr=False)  # verified; empty if it is missing or does not verify

    @property
    def study(self) -> str:
        """As the transcript was opened for; empty without entries."""
        return str(self.entries[0].body.get("study", "")) if self.entries else ""

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that its end is there."""
        return bool(self.entries) and closing(self.entries) is None

    @property
    def summed(self) -> list[Entry]:
        """The entries about sums that this party is in."""
        return [entry for entry in self.entries if entry.kind == SUMMED]

    @property
    def taken(self) -> int:
        """How many sums this party is in or has followed."""
        return sum(entry.kind in (SUMMED, FOLLOWED) for entry in self.entries)

    @property
    def sums(self) -> Iterator[tuple[Entry, SumRecord]]:
        """Those of them that can be read; the others are problems already."""
        for entry in self.summed:
            try:
                yield entry, SumRecord.from_body(entry.body)
            except TranscriptError:
                continue
