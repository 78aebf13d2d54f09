"""Verify every transcript of one run: each chain by itself, then one against the other.

1. Every chain verifies under the key that the roster names for its owner.
2. All were opened for the same study and this roster.
3. Every recorded sum carries the aggregator's signature; no exchange of a round was summed twice.
4. Every sum that a site recorded, or followed without being in it, stands in the aggregator's transcript
   with the same specification, survivors and totals; where it was in it, that site among the survivors.
5. The models beside the transcripts are those that they name (:mod:`secfed.audit.model_check`).

A survivor that lost its connection before the result arrived has no entry for that sum; this is
counted, not condemned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from secfed.audit.model_check import FoundModel, Party, check_models
from secfed.crypto.identity import Roster
from secfed.errors import BadSignature, MalformedMessage, TranscriptError
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import BrokenChain, Entry
from secfed.records.transcript import FOLLOWED, SUMMED, TRANSCRIPT, SumRecord
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder, site_of, sites_folder


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or worth knowing.

    Attributes:
        path: the file.
        line: first bad line, counted from 1; None if the file as a whole is meant.
        why: what is wrong, without file and line.
    """

    path: Path
    line: int | None
    why: str

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}" if self.line else str(self.path)
        return f"{where}: {self.why}"


@dataclass(frozen=True)
class CheckedTranscript:
    """One transcript that was looked at.

    Attributes:
        owner: its owner.
        path: its file.
        entries: entries that verify; 0 if the chain is broken.
        sums: how many of them record a sum.
        expected: sums the owner must know of, by the aggregator's transcript.
        head: hash of the last entry; empty if the chain is broken.
    """

    owner: str
    path: Path
    entries: int
    sums: int
    expected: int
    head: bytes


@dataclass(frozen=True)
class Verdict:
    """What verifying a run's transcripts found.

    Attributes:
        study: name of the study, empty if the aggregator's transcript does not verify.
        checked: the aggregator first, then the sites in roster order.
        absent: sites of the roster whose transcript is not here.
        problems: everything that is wrong; empty means verified.
        models: those that the transcripts name.
        notes: worth knowing.
    """

    study: str
    checked: tuple[CheckedTranscript, ...]
    absent: tuple[str, ...]
    problems: tuple[Problem, ...]
    models: tuple[FoundModel, ...] = ()
    notes: tuple[Problem, ...] = ()


@dataclass
class _Book:
    """One transcript with its sums, and those it only followed, picked out: (line, record)."""

    owner: str
    path: Path
    entries: tuple[Entry, ...]
    sums: list[tuple[int, SumRecord]]
    followed: list[tuple[int, SumRecord]]

    @property
    def told(self) -> list[tuple[int, SumRecord]]:
        """Every sum that its owner was told of, in order."""
        return sorted((*self.sums, *self.followed), key=lambda found: found[0])


def verify_run(folder: Path, roster: Roster) -> Verdict:
    """Verify the transcripts in a run's folder against a roster.

    Args:
        folder: holds ``transcript.jsonl`` and ``sites/<site>/transcript.jsonl``.
        roster: whose keys to believe.

    Raises:
        TranscriptError: there is no transcript at all.
    """
    problems: list[Problem] = []
    here = {site: site_folder(folder, site) / TRANSCRIPT_FILE for site in roster.sites}
    paths = {site: path for site, path in here.items() if path.exists()}
    central = folder / TRANSCRIPT_FILE
    if not paths and not central.exists():
        raise TranscriptError(
            f"{folder}: no transcript here.", remedy="name the folder that secfed simulate --out wrote"
        )
    problems.extend(_strangers(folder, roster))
    main = _read(central, None, roster.aggregator, roster, problems)
    books = {site: _read(path, site, roster.public(site), roster, problems) for site, path in paths.items()}
    if main is not None:
        problems.extend(_double_sums(main))
        for book in books.values():
            problems.extend(_disagreements(main, book) if book is not None else ())
    parties = [_party(site, paths[site], book) for site, book in books.items()]
    notes: list[Problem] = []
    models = check_models(
        _party("aggregator", central, main),
        parties,
        roster,
        lambda path, line, why: problems.append(Problem(path, line, why)),
        lambda path, why: notes.append(Problem(path, None, why)),
    )
    checked = [_summary("aggregator", central, main, main)]
    checked += [_summary(site, paths[site], book, main) for site, book in books.items()]
    study = str(main.entries[0].body.get("study", "")) if main is not None else ""
    absent = tuple(site for site in roster.sites if site not in paths)
    return Verdict(study, tuple(checked), absent, tuple(problems), tuple(models), tuple(notes))


def _party(owner: str, path: Path, book: _Book | None) -> Party:
    return Party(owner, path, () if book is None else book.entries)


def _read(
    path: Path, owner: str | None, public_bytes: bytes, roster: Roster, problems: list[Problem]
) -> _Book | None:
    """One verified chain, or None and a problem."""
    try:
        entries = verify_file(path, public_bytes, TRANSCRIPT, owner=owner)
    except BrokenChain as error:
        problems.append(Problem(path, error.line, error.why))
        return None
    except TranscriptError as error:
        problems.append(Problem(path, None, error.message.removeprefix(f"{path}: ")))
        return None
    if entries[0].body.get("roster_digest") != roster.digest.hex():
        problems.append(Problem(path, 1, "it was opened for another roster"))
    book = _Book(owner or "aggregator", path, entries, [], [])
    for number, entry in enumerate(entries, start=1):
        if entry.kind not in (SUMMED, FOLLOWED):
            continue
        try:
            record = SumRecord.from_body(entry.body)
            record.check_signature(roster.aggregator)
        except (TranscriptError, BadSignature, MalformedMessage) as error:
            problems.append(Problem(path, number, error.message))
            continue
        if not set(record.survivors) <= set(roster.sites):
            problems.append(Problem(path, number, "a survivor is not in the roster"))
        (book.sums if entry.kind == SUMMED else book.followed).append((number, record))
    return book


def _strangers(folder: Path, roster: Roster) -> Iterable[Problem]:
    """Transcripts of sites that the roster does not know."""
    for path in sorted(sites_folder(folder).glob(f"*/{TRANSCRIPT_FILE}")):
        if site_of(path.parent) not in roster.sites:
            yield Problem(path, None, "the roster has no such site")


def _double_sums(book: _Book) -> Iterable[Problem]:
    """Two sums of one exchange could differ by one hospital, and their difference would be its values."""
    seen: dict[tuple[int, str], int] = {}
    for number, record in book.told:
        first = seen.setdefault((record.round, record.exchange), number)
        if first != number:
            yield Problem(book.path, number, f"{_name(record)} was already summed in line {first}")


def _disagreements(main: _Book, site: _Book) -> Iterable[Problem]:
    """Where a site's transcript contradicts the aggregator's."""
    if site.entries[0].body.get("study") != main.entries[0].body.get("study"):
        yield Problem(site.path, 1, "it was opened for another study than the aggregator's")
    by_spec = {record.spec_digest: (number, record) for number, record in main.sums}
    by_place = {(record.round, record.exchange): number for number, record in main.sums}
    yield from _double_sums(site)
    own = {number for number, _ in site.sums}
    for number, record in site.told:
        if number in own and site.owner not in record.survivors:
            yield Problem(site.path, number, f"{_name(record)}: this site is not among the survivors")
        if record.spec_digest not in by_spec:
            other = by_place.get((record.round, record.exchange))
            why = f"another specification than the aggregator's line {other}"
            if other is None:
                why = "the aggregator's transcript has no such sum"
            yield Problem(site.path, number, f"{_name(record)}: {why}")
            continue
        line, known = by_spec[record.spec_digest]
        for field in ("round", "exchange", "attempt", "survivors", "totals_digest"):
            if getattr(record, field) != getattr(known, field):
                what = field.replace("_", " ")
                yield Problem(
                    site.path, number, f"{_name(record)}: {what} differs from the aggregator's line {line}"
                )


def _summary(owner: str, path: Path, book: _Book | None, main: _Book | None) -> CheckedTranscript:
    sums = main.sums if main is not None else []
    expected = len(sums) if book is main else sum(owner in record.survivors for _, record in sums)
    if book is None:
        return CheckedTranscript(owner, path, 0, 0, expected, b"")
    return CheckedTranscript(owner, path, len(book.entries), len(book.sums), expected, book.entries[-1].hash)


def _name(record: SumRecord) -> str:
    return f"round {record.round}, exchange {record.exchange!r}"
