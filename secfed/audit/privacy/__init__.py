"""The audit report, from signed records only: ledgers, transcripts and decision logs.

    make_report(folders)  -> Report: verified, recomputed, plain values
    to_json, to_html, to_pdf of secfed.audit.privacy, report_html, report_pdf write it

Security: a report states what the signed records say. What a site's software did and did not write down,
no record can show; :mod:`secfed.audit.privacy.phrases` says on what each number relies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from secfed import __version__
from secfed.audit.model_check import FoundModel
from secfed.audit.privacy.check import Progress, check
from secfed.audit.privacy.decision_section import decision_log_facts
from secfed.audit.privacy.evidence import (
    FileFacts,
    LedgerFacts,
    ProblemFact,
    Report,
    RosterFacts,
    StudyFacts,
    Verification,
)
from secfed.audit.privacy.findings import Book, CheckedFolder
from secfed.audit.privacy.ledgers import bare_of, ledger_facts
from secfed.audit.privacy.studies import refusals_of, study_facts
from secfed.audit.unsummed_payments import paid_without_sum, shown
from secfed.crypto.identity import Roster, fingerprint
from secfed.records.clock import is_ahead
from secfed.records.clock import shown as shown_date


def make_report(
    folders: Sequence[Path],
    pinned: Sequence[Path] = (),
    *,
    tick: Progress | None = None,
    seen: Sequence[str] = (),
    clock: Callable[[], float] = time.time,
) -> Report:
    """Find, verify and recompute everything under some folders, and gather what a report says.

    Args:
        folders: searched recursively.
        pinned: roster files to believe, with the earlier ones kept beside them; without any, those found in
            the folders are.
        tick: told (done, of) while epsilons are computed again.
        seen: heads that an earlier report showed, hexadecimal; each must still be in one of the chains.
        clock: seconds since 1970; dates the report and ends the periods of budgets.

    Raises:
        ConfigError: a folder that does not exist, or a head that is none.
        RosterError: a pinned roster that cannot be used.
        TranscriptError: nothing to report on, or a file that cannot be read.
    """
    return gather(check(folders, pinned, tick, seen), int(clock()))


def gather(state: CheckedFolder, now_s: int) -> Report:
    """The report on what was checked."""
    ledgers = tuple(
        sorted(
            (ledger_facts(state, book, now_s) for book in state.books),
            key=lambda item: (item.site, item.dataset),
        )
    )
    studies = tuple(study_facts(state, run) for run in state.runs)
    more = [
        *_unpaid(studies, ledgers),
        *_for_nothing(state),
        *_elsewhere(studies, ledgers),
        *_ahead(state.books, now_s),
    ]
    return Report(
        made_s=now_s,
        secfed_version=__version__,
        folders=tuple(str(folder) for folder in state.found.folders),
        named_rosters=tuple(str(path) for path in state.named),
        verification=_verification(state, more),
        ledgers=ledgers,
        studies=studies,
        bare=tuple(item for book in state.books for item in bare_of(book)),
        refusals=tuple(refusals_of(state)),
        decisions=tuple(decision_log_facts(chain) for chain in state.decisions),
    )


def to_json(report: Report) -> str:
    """The text of ``--json``, newline included."""
    return json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _unpaid(studies: Iterable[StudyFacts], ledgers: Iterable[LedgerFacts]) -> Iterable[str]:
    """Sums of a private study that a site's ledger neither paid for nor noted."""
    kept = {ledger.site for ledger in ledgers}
    for study in studies:
        for left in study.left:
            open_sums = left.sums - left.paid
            if study.privacy is None or left.site not in kept or not open_sums or left.privacy == "bare":
                continue
            yield (
                f"{left.site}, study {study.name!r}: the ledger has no payment for {open_sums} of "
                f"{left.sums} sums of exchange {left.exchange!r}; nothing bounds what they reveal"
            )


def _for_nothing(state: CheckedFolder) -> Iterable[str]:
    """Payments for exchanges that came to no sum: what a hospital paid before a round was given up."""
    for run in state.runs:
        for site, chain in run.sites.items():
            for book in (book for book in state.books if book.site == site):
                places = paid_without_sum(book.chain.entries, chain.entries, run.study)
                if places and chain.entries:
                    yield (
                        f"{site}, study {run.study!r}, data set {book.dataset!r}: {shown(places)} paid for, "
                        "and in no sum of this site's transcript; what was paid stays spent"
                    )


def _elsewhere(studies: Iterable[StudyFacts], ledgers: Iterable[LedgerFacts]) -> Iterable[str]:
    """Studies that a ledger paid for and whose transcripts are not here."""
    here = {(site, study.name) for study in studies for site in study.parties}
    for ledger in ledgers:
        absent = [spend.study for spend in ledger.studies if (ledger.site, spend.study) not in here]
        if absent:
            names = ", ".join(repr(name) for name in absent)
            yield (
                f"{ledger.site}, data set {ledger.dataset!r}: the ledger also paid for {names}, whose "
                "transcripts of this site are not here; this counts in its budgets"
            )


def _ahead(books: Iterable[Book], now_s: int) -> Iterable[str]:
    """Ledgers that claim to come from the future."""
    for book in books:
        for entry in book.chain.entries:
            dated_s = entry.body.get("time_s")
            if type(dated_s) is int and is_ahead(dated_s, now_s):
                yield (
                    f"{book.chain.source.path}, line {entry.seq + 1} is dated {shown_date(dated_s)}, after "
                    "this audit: a clock was wrong, here or at the site; periods of budgets count from such "
                    "dates"
                )
                break


def _verification(state: CheckedFolder, more: Iterable[str]) -> Verification:
    bad = {problem.path for problem in state.problems}
    files = [
        FileFacts(str(source.path), "roster", "", 0, "", source.sha256, source.path not in bad)
        for source in state.found.rosters
    ]
    for chain in state.chains:
        files.append(
            FileFacts(
                file=str(chain.source.path),
                kind=chain.name,
                owner=chain.owner,
                entries=len(chain.entries),
                head=chain.entries[-1].hash.hex() if chain.entries else "",
                sha256=chain.source.sha256,
                verified=chain.source.path not in bad,
            )
        )
    for run in state.runs:
        files.extend(_model(model, bad) for model in run.models if model.is_here)
    return Verification(
        verified=not state.problems,
        pinned=bool(state.named),
        recomputed=state.recomputer.checked,
        problems=tuple(ProblemFact(str(one.path), one.line, one.why) for one in state.problems),
        unchecked=len(state.unchecked),
        notes=tuple(dict.fromkeys([*state.notes, *more])),
        files=tuple(files),
        rosters=tuple(_roster(roster) for roster in state.rosters),
    )


def _model(model: FoundModel, bad: set[Path]) -> FileFacts:
    digest = model.record.sha256.hex() if model.is_right else ""
    return FileFacts(str(model.path), "model", model.owner, 0, "", digest, model.path not in bad)


def _roster(roster: Roster) -> RosterFacts:
    sites = tuple((site, fingerprint(public)) for site, public in roster.members)
    return RosterFacts(roster.digest.hex(), fingerprint(roster.aggregator), sites)
