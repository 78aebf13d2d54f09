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

from secfed.audit.model_check import FoundModel, check_models
from secfed.audit.party import Party, Problem
from secfed.crypto.identity import Roster
from secfed.errors import BadSignature, MalformedMessage, TranscriptError
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import BrokenChain, Entry
from secfed.records.transcript import FOLLOWED, SUMMED, TRANSCRIPT, SumRecord
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder, site_of, sites_folder


@dataclass(frozen=True)
class CheckedTranscript:
    """One transcript that was read; of a broken chain, only owner, path and expected sums are known."""

    owner: str
    path: Path
    entries: int
    sums: int  # entries that record a sum
    expected: int  # sums the owner must know of, by the aggregator's transcript
    head: bytes  # hash of the last entry


@dataclass(frozen=True)
class Verdict:
    """What verifying a run's transcripts found."""

    study: str  # empty if the aggregator's transcript does not verify
    checked: tuple[CheckedTranscript, ...]  # the aggregator first, then the sites in roster order
    absent: tuple[str, ...]  # sites of the roster whose transcript is not here
    problems: tuple[Problem, ...]  # empty means verified
    models: tuple[FoundModel, ...] = ()
    notes: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _Sum:
    """A sum that a party was in, or only followed."""

    line: int
    is_own: bool
    record: SumRecord

    @property
    def place(self) -> tuple[int, str]:
        return self.record.round, self.record.exchange

    def __str__(self) -> str:
        return f"round {self.record.round}, exchange {self.record.exchange!r}"


def compare_run(
    central: Party, sites: Sequence[Party], roster: Roster
) -> tuple[list[Problem], list[FoundModel], list[Problem]]:
    """Hold the verified transcripts of one run, the aggregator's and those of sites, against each other.

    Returns:
        What is wrong, the models that the transcripts name, and what is worth knowing.
    """
    problems: list[Problem] = []
    notes: list[Problem] = []
    main = _sums(central, roster, problems)
    for site in sites:
        if site.entries:
            own = _sums(site, roster, problems)
            problems += _disagreements(central, main, site, own) if central.entries else ()
    models = check_models(central, sites, roster, problems, notes)
    return problems, models, notes


def verify_run(folder: Path, roster: Roster) -> Verdict:
    """Verify ``transcript.jsonl`` and ``sites/<site>/transcript.jsonl`` in a run's folder.

    Raises:
        TranscriptError: there is no transcript at all.
    """
    expected = {site: site_folder(folder, site) / TRANSCRIPT_FILE for site in roster.sites}
    paths = {site: path for site, path in expected.items() if path.exists()}
    central = folder / TRANSCRIPT_FILE
    if not paths and not central.exists():
        raise TranscriptError(
            f"{folder}: no transcript here.", remedy="name the folder that secfed simulate --out wrote"
        )
    problems = [
        Problem(path, None, "the roster has no such site")
        for path in sorted(sites_folder(folder).glob(f"*/{TRANSCRIPT_FILE}"))
        if site_of(path.parent) not in roster.sites
    ]
    main = Party("aggregator", central, _verified(central, None, roster.aggregator, problems))
    sites = [
        Party(site, path, _verified(path, site, roster.public(site), problems))
        for site, path in paths.items()
    ]
    differences, models, notes = compare_run(main, sites, roster)
    absent = tuple(site for site in roster.sites if site not in paths)
    checked = tuple(_summary(party, main) for party in (main, *sites))
    return Verdict(main.study, checked, absent, (*problems, *differences), tuple(models), tuple(notes))


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


def _sums(party: Party, roster: Roster, problems: list[Problem]) -> list[_Sum]:
    """The sums in a transcript, which must be opened for this roster and hold the aggregator's results.

    Two sums of one exchange could differ by one hospital, and their difference would be its values.
    """
    if party.entries and party.entries[0].body.get("roster_digest") != roster.digest.hex():
        problems.append(Problem(party.path, 1, "it was opened for another roster"))
    sums = []
    for line, entry in enumerate(party.entries, start=1):
        if entry.kind not in (SUMMED, FOLLOWED):
            continue
        try:
            record = SumRecord.from_body(entry.body)
            record.check_signature(roster.aggregator)
        except (TranscriptError, BadSignature, MalformedMessage) as error:
            problems.append(Problem(party.path, line, error.message))
            continue
        if not set(record.survivors) <= set(roster.sites):
            problems.append(Problem(party.path, line, "a survivor is not in the roster"))
        sums.append(_Sum(line, entry.kind == SUMMED, record))
    first: dict[tuple[int, str], int] = {}
    for one in sums:
        line = first.setdefault(one.place, one.line)
        if line != one.line:
            problems.append(Problem(party.path, one.line, f"{one} was already summed in line {line}"))
    return sums


def _disagreements(main: Party, summed: list[_Sum], site: Party, own: list[_Sum]) -> Iterable[Problem]:
    """Where a site's transcript contradicts the aggregator's."""
    if site.entries[0].body.get("study") != main.entries[0].body.get("study"):
        yield Problem(site.path, 1, "it was opened for another study than the aggregator's")
    by_spec = {one.record.spec_digest: one for one in summed if one.is_own}
    by_place = {one.place: one.line for one in summed if one.is_own}
    for one in own:
        if one.is_own and site.owner not in one.record.survivors:
            yield Problem(site.path, one.line, f"{one}: this site is not among the survivors")
        known = by_spec.get(one.record.spec_digest)
        if known is None:
            why = "the aggregator's transcript has no such sum"
            if one.place in by_place:
                why = f"another specification than the aggregator's line {by_place[one.place]}"
            yield Problem(site.path, one.line, f"{one}: {why}")
            continue
        for field in ("round", "exchange", "attempt", "survivors", "totals_digest"):
            if getattr(one.record, field) != getattr(known.record, field):
                what = f"{field.replace('_', ' ')} differs from the aggregator's line {known.line}"
                yield Problem(site.path, one.line, f"{one}: {what}")


def _summary(party: Party, main: Party) -> CheckedTranscript:
    recorded = [entry.body.get("survivors") for entry in main.summed]
    expected = len(recorded)
    if party is not main:  # survivors that are not a list are a problem already
        expected = sum(isinstance(names, list) and party.owner in names for names in recorded)
    head = party.entries[-1].hash if party.entries else b""
    return CheckedTranscript(party.owner, party.path, len(party.entries), len(party.summed), expected, head)
