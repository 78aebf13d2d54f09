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

from collections.abc import Iterable, Sequence
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
class _Sums:
    """A party's transcript with the sums in it, and those it only followed: (line, record)."""

    party: Party
    own: list[tuple[int, SumRecord]]
    followed: list[tuple[int, SumRecord]]

    @property
    def every(self) -> list[tuple[int, SumRecord]]:
        """Own and followed sums, by line."""
        return sorted((*self.own, *self.followed), key=lambda found: found[0])


def compare_run(
    central: Party, sites: Sequence[Party], roster: Roster
) -> tuple[list[Problem], list[FoundModel], list[Problem]]:
    """Hold the verified transcripts of one run against each other.

    Args:
        central: the aggregator's; without entries if it is not here or does not verify.
        sites: those of sites, likewise.
        roster: whose keys to believe.

    Returns:
        What is wrong, the models that the transcripts name, and what is worth knowing.
    """
    problems: list[Problem] = []
    notes: list[Problem] = []
    main = _sums(central, roster, problems)
    problems += _double_sums(main)
    for site in sites:
        if site.entries:
            own = _sums(site, roster, problems)
            problems += _double_sums(own)
            problems += _disagreements(main, own) if central.entries else ()
    models = check_models(
        central,
        sites,
        roster,
        lambda path, line, why: problems.append(Problem(path, line, why)),
        lambda path, why: notes.append(Problem(path, None, why)),
    )
    return problems, models, notes


def verify_run(folder: Path, roster: Roster) -> Verdict:
    """Verify the transcripts in a run's folder against a roster.

    Args:
        folder: holds ``transcript.jsonl`` and ``sites/<site>/transcript.jsonl``.
        roster: whose keys to believe.

    Raises:
        TranscriptError: there is no transcript at all.
    """
    here = {site: site_folder(folder, site) / TRANSCRIPT_FILE for site in roster.sites}
    paths = {site: path for site, path in here.items() if path.exists()}
    central = folder / TRANSCRIPT_FILE
    if not paths and not central.exists():
        raise TranscriptError(
            f"{folder}: no transcript here.", remedy="name the folder that secfed simulate --out wrote"
        )
    problems = list(_strangers(folder, roster))
    main = Party("aggregator", central, _verified(central, None, roster.aggregator, problems))
    sites = [
        Party(site, path, _verified(path, site, roster.public(site), problems))
        for site, path in paths.items()
    ]
    found, models, notes = compare_run(main, sites, roster)
    study = str(main.entries[0].body.get("study", "")) if main.entries else ""
    absent = tuple(site for site in roster.sites if site not in paths)
    checked = tuple(_summary(party, main) for party in (main, *sites))
    return Verdict(study, checked, absent, tuple(problems + found), tuple(models), tuple(notes))


def _verified(
    path: Path, owner: str | None, public_bytes: bytes, problems: list[Problem]
) -> tuple[Entry, ...]:
    """The entries of one chain, or none and a problem."""
    try:
        return verify_file(path, public_bytes, TRANSCRIPT, owner=owner)
    except BrokenChain as error:
        problems.append(Problem(path, error.line, error.why))
    except TranscriptError as error:
        problems.append(Problem(path, None, error.message.removeprefix(f"{path}: ")))
    return ()


def _sums(party: Party, roster: Roster, problems: list[Problem]) -> _Sums:
    """The sums of a transcript that was opened for this roster and whose results are the aggregator's."""
    if party.entries and party.entries[0].body.get("roster_digest") != roster.digest.hex():
        problems.append(Problem(party.path, 1, "it was opened for another roster"))
    found = _Sums(party, [], [])
    for number, entry in enumerate(party.entries, start=1):
        if entry.kind not in (SUMMED, FOLLOWED):
            continue
        try:
            record = SumRecord.from_body(entry.body)
            record.check_signature(roster.aggregator)
        except (TranscriptError, BadSignature, MalformedMessage) as error:
            problems.append(Problem(party.path, number, error.message))
            continue
        if not set(record.survivors) <= set(roster.sites):
            problems.append(Problem(party.path, number, "a survivor is not in the roster"))
        (found.own if entry.kind == SUMMED else found.followed).append((number, record))
    return found


def _strangers(folder: Path, roster: Roster) -> Iterable[Problem]:
    """Transcripts of sites that the roster does not know."""
    for path in sorted(sites_folder(folder).glob(f"*/{TRANSCRIPT_FILE}")):
        if site_of(path.parent) not in roster.sites:
            yield Problem(path, None, "the roster has no such site")


def _double_sums(sums: _Sums) -> Iterable[Problem]:
    """Two sums of one exchange could differ by one hospital, and their difference would be its values."""
    first_line: dict[tuple[int, str], int] = {}
    for number, record in sums.every:
        first = first_line.setdefault((record.round, record.exchange), number)
        if first != number:
            yield Problem(sums.party.path, number, f"{_name(record)} was already summed in line {first}")


def _disagreements(main: _Sums, site: _Sums) -> Iterable[Problem]:
    """Where a site's transcript contradicts the aggregator's."""
    path = site.party.path
    if site.party.entries[0].body.get("study") != main.party.entries[0].body.get("study"):
        yield Problem(path, 1, "it was opened for another study than the aggregator's")
    by_spec = {record.spec_digest: (number, record) for number, record in main.own}
    by_place = {(record.round, record.exchange): number for number, record in main.own}
    own = {number for number, _ in site.own}
    for number, record in site.every:
        if number in own and site.party.owner not in record.survivors:
            yield Problem(path, number, f"{_name(record)}: this site is not among the survivors")
        if record.spec_digest not in by_spec:
            other = by_place.get((record.round, record.exchange))
            why = f"another specification than the aggregator's line {other}"
            if other is None:
                why = "the aggregator's transcript has no such sum"
            yield Problem(path, number, f"{_name(record)}: {why}")
            continue
        line, known = by_spec[record.spec_digest]
        for field in ("round", "exchange", "attempt", "survivors", "totals_digest"):
            if getattr(record, field) != getattr(known, field):
                what = field.replace("_", " ")
                yield Problem(
                    path, number, f"{_name(record)}: {what} differs from the aggregator's line {line}"
                )


def _summary(party: Party, main: Party) -> CheckedTranscript:
    sums = sum(entry.kind == SUMMED for entry in party.entries)
    recorded = [entry.body.get("survivors") for entry in main.entries if entry.kind == SUMMED]
    survivors = [names for names in recorded if isinstance(names, list)]  # the others are problems already
    expected = len(recorded) if party is main else sum(party.owner in names for names in survivors)
    head = party.entries[-1].hash if party.entries else b""
    return CheckedTranscript(party.owner, party.path, len(party.entries), sums, expected, head)


def _name(record: SumRecord) -> str:
    return f"round {record.round}, exchange {record.exchange!r}"
