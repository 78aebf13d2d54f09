"""Verify every transcript of one run: each chain by itself, then one against the other.

1. Every chain verifies under the key that the roster names for its owner.
2. All were opened for the same study and this roster.
3. Every recorded sum carries the aggregator's signature; no exchange of a round was summed twice.
4. Every sum that a site recorded, or followed without being in it, stands in the aggregator's transcript
   with the same specification, survivors and totals; where it was in it, that site among the survivors.
   Without it, no two sites hold different results of one exchange.
5. The models beside the transcripts are those that they name (:mod:`secfed.audit.model_check`).
6. The end of each is there, as far as itself or another one shows it (:mod:`secfed.audit.end_check`).

A survivor that lost its connection before the result arrived has no entry for that sum; this is
counted, not condemned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from secfed.audit.end_check import check_ends
from secfed.audit.languages import Said, said
from secfed.audit.model_check import FoundModel, check_models
from secfed.audit.party import Findings, Party
from secfed.crypto.identity import Roster
from secfed.errors import BadSignature, MalformedMessage, TranscriptError
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import BrokenChain, Entry
from secfed.records.transcript import FOLLOWED, SUMMED, TRANSCRIPT, SumRecord
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder, site_of, sites_folder


@dataclass
class Verdict(Findings):
    """What verifying a run's transcripts found; without problems, they verify."""

    parties: list[Party]  # the aggregator first, then the sites in roster order; no entries in a broken chain
    absent: list[str]  # sites of the roster whose transcript is not here
    models: list[FoundModel] = field(default_factory=list)

    def expected(self, party: Party) -> int:
        """How many sums a party must know of, by the aggregator's transcript."""
        central = self.parties[0]
        recorded = [entry.body.get("survivors") for entry in central.summed]
        if party is central:
            return len(recorded)
        # Survivors that are not a list are a problem already.
        return sum(isinstance(names, list) and party.owner in names for names in recorded)


@dataclass(frozen=True)
class _Sum:
    """A sum that a party was in, or only followed."""

    line: int
    is_own: bool
    record: SumRecord

    @property
    def place(self) -> tuple[int, str]:
        return self.record.round, self.record.exchange

    @property
    def said(self) -> Said:
        """Its round and exchange."""
        text = "round {round}, exchange {exchange!r}"
        return said(text, round=self.record.round, exchange=self.record.exchange)


def compare_run(central: Party, sites: Sequence[Party], roster: Roster, found: Findings) -> list[FoundModel]:
    """Hold the verified transcripts of one run, the aggregator's and those of sites, against each other.

    Returns:
        The models that the transcripts name.
    """
    main, first = _sums(central, roster, found), dict[tuple[int, str], tuple[Party, _Sum]]()
    for site in sites:
        if site.entries:
            own = _sums(site, roster, found)
            if central.entries:
                _compare_sums(central, main, site, own, found)
            else:
                _compare_sites(first, site, own, found)
    check_ends(central, sites, found)
    return check_models(central, sites, roster, found)


def verify_run(folder: Path, roster: Roster) -> Verdict:
    """Verify ``transcript.jsonl`` and ``sites/<site>/transcript.jsonl`` in a run's folder.

    ``TranscriptError``: there is no transcript at all.
    """
    expected = {site: site_folder(folder, site) / TRANSCRIPT_FILE for site in roster.sites}
    paths = {site: path for site, path in expected.items() if path.exists()}
    central = folder / TRANSCRIPT_FILE
    if not paths and not central.exists():
        message = f"{folder}: no transcript here."
        raise TranscriptError(message, remedy="name the folder that secfed simulate --out wrote")
    verdict = Verdict([], [site for site in roster.sites if site not in paths])
    for path in sorted(sites_folder(folder).glob(f"*/{TRANSCRIPT_FILE}")):
        if site_of(path.parent) not in roster.sites:
            verdict.problem(path, None, "the roster has no such site")
    main = Party("aggregator", central, _verified(central, None, roster.aggregator, verdict))
    keys = {site: roster.public(site) for site in paths}
    sites = [Party(site, path, _verified(path, site, keys[site], verdict)) for site, path in paths.items()]
    verdict.parties = [main, *sites]
    verdict.models = compare_run(main, sites, roster, verdict)
    return verdict


def _verified(path: Path, owner: str | None, public_bytes: bytes, found: Findings) -> tuple[Entry, ...]:
    """The entries of one chain, or none and a problem."""
    try:
        return verify_file(path, public_bytes, TRANSCRIPT, owner=owner)
    except BrokenChain as error:
        found.problem(path, error.line, error.why)
    except TranscriptError as error:
        found.problem(path, None, error.message.removeprefix(f"{path}: "))
    return ()


def _sums(party: Party, roster: Roster, found: Findings) -> list[_Sum]:
    """The sums in a transcript, which must be opened for this roster and hold the aggregator's results.

    Two sums of one exchange could differ by one hospital, and their difference would be its values.
    """
    if party.entries and party.entries[0].body.get("roster_digest") != roster.digest.hex():
        found.problem(party.path, 1, "it was opened for another roster")
    sums = []
    for line, entry in enumerate(party.entries, start=1):
        if entry.kind not in (SUMMED, FOLLOWED):
            continue
        try:
            record = SumRecord.from_body(entry.body)
            record.check_signature(roster.aggregator)
        except (TranscriptError, BadSignature, MalformedMessage) as error:
            found.problem(party.path, line, error.message)
            continue
        if not set(record.survivors) <= set(roster.sites):
            found.problem(party.path, line, "a survivor is not in the roster")
        sums.append(_Sum(line, entry.kind == SUMMED, record))
    first: dict[tuple[int, str], int] = {}
    for one in sums:
        line = first.setdefault(one.place, one.line)
        if line != one.line:
            found.problem(
                party.path, one.line, said("{sum} was already summed in line {line}", sum=one.said, line=line)
            )
    return sums


def _compare_sites(
    first: dict[tuple[int, str], tuple[Party, _Sum]], site: Party, own: list[_Sum], found: Findings
) -> None:
    """Where the aggregator gave two sites different sums, which needs no transcript of its own to show."""
    for one in own:
        other, known = first.setdefault(one.place, (site, one))
        if site.study == other.study and one.record.result_signature != known.record.result_signature:
            text = "{sum}: the aggregator signed two results of this exchange; see {other}'s line {line}"
            why = said(text, sum=one.said, other=other.owner, line=known.line)
            found.problem(site.path, one.line, why)


def _compare_sums(main: Party, summed: list[_Sum], site: Party, own: list[_Sum], found: Findings) -> None:
    """Where a site's transcript contradicts the aggregator's."""
    if site.study != main.study:
        found.problem(site.path, 1, "it was opened for another study than the aggregator's")
    by_spec = {one.record.spec_digest: one for one in summed if one.is_own}
    by_place = {one.place: one.line for one in summed if one.is_own}
    for one in own:
        if one.is_own and site.owner not in one.record.survivors:
            why = said("{sum}: this site is not among the survivors", sum=one.said)
            found.problem(site.path, one.line, why)
        known = by_spec.get(one.record.spec_digest)
        if known is None:
            text = "{sum}: the aggregator's transcript has no such sum"
            if one.place in by_place:
                text = "{sum}: another specification than the aggregator's line {line}"
            why = said(text, sum=one.said, line=by_place.get(one.place))
            found.problem(site.path, one.line, why)
            continue
        for name in ("round", "exchange", "attempt", "survivors", "totals_digest"):
            if getattr(one.record, name) != getattr(known.record, name):
                found.problem(site.path, one.line, _differs(one, name, known))
        indices = {one.record.exchange_index, known.record.exchange_index} - {None}  # older versions had none
        if len(indices) > 1:
            found.problem(site.path, one.line, _differs(one, "exchange_index", known))


def _differs(one: _Sum, name: str, known: _Sum) -> Said:
    text = "{sum}: {field} differs from the aggregator's line {line}"
    return said(text, sum=one.said, field=name.replace("_", " "), line=known.line)
