"""The audit report, from signed records only: ledgers, transcripts and decision logs.

    make_report(folders)  -> Report: verified, recomputed, plain values
    to_json, and to_html and to_pdf of secfed.audit.render, write it

Security: a report states what the signed records say. What a site's software did and did not write down,
no record can show; :mod:`secfed.audit.privacy.phrases` says on what each number relies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from secfed import __version__
from secfed.audit.languages import said
from secfed.audit.privacy.check import Progress, check
from secfed.audit.privacy.evidence import (
    FileFacts,
    LedgerFacts,
    Report,
    RosterFacts,
    StudyFacts,
    Verification,
)
from secfed.audit.privacy.findings import CheckedFolder
from secfed.audit.privacy.ledgers import bare_of, ledger_facts
from secfed.audit.privacy.site_files import decision_log_facts
from secfed.audit.privacy.studies import refusals_of, study_facts
from secfed.audit.unsummed_payments import paid_without_sum, shown
from secfed.crypto.identity import fingerprint
from secfed.records.clock import is_ahead
from secfed.records.clock import shown as shown_date
from secfed.records.hash_chain import Entry
from secfed.storage.code_digest import code_digest


def make_report(
    folders: Sequence[Path],
    pinned: Sequence[Path] = (),
    *,
    tick: Progress | None = None,
    seen: Sequence[str] = (),
    owner: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Report:
    """Find, verify and recompute everything under some folders, and gather what a report says.

    ``pinned`` are roster files to believe, with the earlier ones beside them; without any, those in the
    folders are. ``tick`` is called with (done, of) while epsilons are computed; ``seen`` are heads
    (hexadecimal) that an earlier report showed, each of which must still be there; ``owner`` is whose records
    are looked at, where others must not be; ``clock`` dates the report and ends budget periods.

    Raises:
        ConfigError: a folder that does not exist, or ``seen`` holds something that is not a head.
        RosterError: a pinned roster that cannot be used.
        TranscriptError: nothing to report on, or a file that cannot be read.
    """
    state, now_s = check(folders, pinned, tick, seen, owner), int(clock())
    facts = [ledger_facts(state, ledger, now_s) for ledger in state.ledgers]
    ledgers = sorted(facts, key=lambda ledger: (ledger.site, ledger.dataset))
    studies = [study_facts(state, run) for run in state.runs]
    notes = [
        *_unpaid(studies, ledgers),
        *_paid_for_nothing(state),
        *_absent_studies(studies, ledgers),
        *_dated_ahead(state, now_s),
    ]
    return Report(
        made_s=now_s,
        secfed_version=__version__,
        secfed_build=code_digest(),
        folders=tuple(map(str, folders)),
        named_rosters=tuple(map(str, pinned)),
        verification=_verification(state, notes),
        ledgers=tuple(ledgers),
        studies=tuple(studies),
        bare=tuple(item for ledger in state.ledgers for item in bare_of(ledger)),
        refusals=tuple(refusals_of(state)),
        decisions=tuple(decision_log_facts(chain) for chain in state.decisions),
    )


def to_json(report: Report) -> str:
    """The text of ``--json``, newline included."""
    return json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _unpaid(studies: Iterable[StudyFacts], ledgers: Iterable[LedgerFacts]) -> Iterable[str]:
    """Sums of a private study that a site's ledger neither paid for nor noted."""
    with_ledger = {ledger.site for ledger in ledgers}
    for study in studies:
        for left in study.left:
            unpaid = left.sums - left.paid
            if study.privacy is not None and left.site in with_ledger and unpaid and left.privacy != "bare":
                yield said(
                    "{site}, study {study!r}: the ledger has no payment for {unpaid} of {sums} sums of "
                    "exchange {exchange!r}; nothing bounds what they reveal",
                    site=left.site,
                    study=study.name,
                    unpaid=unpaid,
                    sums=left.sums,
                    exchange=left.exchange,
                )


def _paid_for_nothing(state: CheckedFolder) -> Iterable[str]:
    """Payments for exchanges without a sum: what a hospital paid before a round was given up."""
    for run in state.runs:
        for site, chain in run.sites.items():
            for ledger in (ledger for ledger in state.ledgers if ledger.owner == site):
                places = paid_without_sum(ledger.entries, chain.entries, run.study)
                if places and chain.entries:
                    yield said(
                        "{site}, study {study!r}, data set {data_set!r}: {places} paid for, and in no sum "
                        "of this site's transcript; what was paid stays spent",
                        site=site,
                        study=run.study,
                        data_set=ledger.dataset,
                        places=shown(places),
                    )


def _absent_studies(studies: Iterable[StudyFacts], ledgers: Iterable[LedgerFacts]) -> Iterable[str]:
    """Studies that a ledger paid for and whose transcripts are not here."""
    present = {(site, study.name) for study in studies for site in study.parties}
    for ledger in ledgers:
        absent = [repr(spend.study) for spend in ledger.studies if (ledger.site, spend.study) not in present]
        if absent:
            yield said(
                "{site}, data set {data_set!r}: the ledger also paid for {studies}, whose transcripts of "
                "this site are not here; this counts in its budgets",
                site=ledger.site,
                data_set=ledger.dataset,
                studies=", ".join(absent),
            )


def _dated_ahead(state: CheckedFolder, now_s: int) -> Iterable[str]:
    for ledger in state.ledgers:
        for entry in ledger.entries:
            dated_s = entry.body.get("time_s")
            if type(dated_s) is int and is_ahead(dated_s, now_s):
                yield said(
                    "{file}, line {line} is dated {date}, after this audit: a clock was wrong, here or at "
                    "the site; periods of budgets count from such dates",
                    file=ledger.path,
                    line=entry.seq + 1,
                    date=shown_date(dated_s),
                )
                break


def _verification(state: CheckedFolder, notes: Iterable[str]) -> Verification:
    bad = {problem.file for problem in state.problems}

    def file(path: Path, kind: str, digest: str, owner: str = "", entries: Sequence[Entry] = ()) -> FileFacts:
        head = entries[-1].hash.hex() if entries else ""
        return FileFacts(str(path), kind, owner, len(entries), head, digest, str(path) not in bad)

    files = [file(source.path, "roster", source.sha256) for source in state.found.of(None)]
    for chain in state.chains:
        source = chain.source
        kind = source.kind.name if source.kind else ""
        files.append(file(source.path, kind, source.sha256, chain.owner, chain.entries))
    files += [
        file(model.path, "model", model.record.sha256.hex() if model.is_right else "", model.owner)
        for run in state.runs
        for model in run.models
        if model.is_here
    ]
    rosters = tuple(
        RosterFacts(
            roster.digest.hex(),
            fingerprint(roster.aggregator),
            tuple((site, fingerprint(public)) for site, public in roster.members),
        )
        for roster in state.used
    )
    return Verification(
        verified=not state.problems,
        pinned=bool(state.pinned),
        recomputed=state.recomputer.checked,
        problems=tuple(state.problems),
        unchecked=len(state.unchecked),
        notes=tuple(dict.fromkeys([*state.notes, *notes])),
        files=tuple(files),
        rosters=rosters,
    )
