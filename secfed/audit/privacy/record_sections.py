"""Sections of a report about what hospitals decided, from their decision logs, and about verification."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from secfed.audit.languages import Said, again, say
from secfed.audit.party import Problem
from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases
from secfed.audit.privacy.evidence import DecisionFact, DecisionLogFacts, FileFacts, Report
from secfed.audit.recognised import known_or_own
from secfed.records import decision_state as kinds
from secfed.records.decision_log import DECISIONS

_TEXTS: Final = phrases.TEXTS["decided"]
_SHOWN: Final = 500  # rows of one log; the JSON has all of them
_DIGITS: Final = 16
_AT_ONCE_S: Final = 60
_REFUSALS: Final = (kinds.REFUSED, kinds.BUDGET, kinds.REFUSAL)
_WARNED: Final = (*_REFUSALS, kinds.ALARM, kinds.LIMITED, kinds.MISSED, kinds.RECOVERED)
_BESIDE_POLICY: Final = {"roster": "the pinned roster", "approval": "a person's refusal"}


def decided(report: Report) -> doc.Section:
    """Every decision log, entry by entry; and which ones cannot be believed."""
    several = len({item.owner for item in report.verification.files if item.kind == DECISIONS.name}) > 1
    blocks: list[doc.Block] = list(_broken(report))
    if report.decisions:
        blocks.append(doc.Text(_TEXTS["intro"]))
    for log in report.decisions:
        blocks += _log(log)
    if report.decisions:
        blocks.append(doc.Text(_TEXTS["proof"]))
    elif not blocks:
        blocks.append(doc.Text(_TEXTS["none"]))
    title = say("What these hospitals decided" if several else "What this hospital decided")
    return doc.Section("decided", title, tuple(blocks))


def _broken(report: Report) -> Iterator[doc.Block]:
    """Logs of which nothing is shown, because nothing in them can be relied on."""
    for item in report.verification.files:
        if item.kind == DECISIONS.name and not item.verified:
            why = tuple(in_line(one) for one in report.verification.problems if one.file == item.file)
            title = say("The decision log of {site} DOES NOT VERIFY: do not rely on it", site=item.owner)
            yield doc.Alert("bad", title, why)


def _log(log: DecisionLogFacts) -> Iterator[doc.Block]:
    yield doc.Heading(log.site, say("{file}. Head {head}", file=log.file, head=log.head))
    shown = log.decisions[-_SHOWN:]
    if len(shown) < len(log.decisions):
        count = len(log.decisions)
        text = "The newest {shown} of {count} entries; the report's JSON has all of them."
        yield doc.Text(say(text, shown=_SHOWN, count=count))
    if shown:
        yield doc.table(_COLUMNS, shown, lambda item: "warn" if item.kind in _WARNED else None)
    else:
        yield doc.Text(say("Nothing was decided yet."))


def in_words(item: DecisionFact) -> str:
    """One entry in words."""
    by_policy = any(key not in _BESIDE_POLICY for key in item.keys)
    template = _TEXTS["words"].get(item.kind) or say("{kind} (this version does not know it)")
    short = _short(item.policy)
    words: str = template.format(
        kind=item.kind,
        when=_when(item),
        who=_who(item) or say("a person"),
        policy=short,
        roster=_short(item.roster),
        by_policy=say(" by policy {policy}", policy=short) if by_policy else "",
        keys=", ".join(say(_BESIDE_POLICY[key]) if key in _BESIDE_POLICY else key for key in item.keys),
        number=f" {item.number}" if item.number else "",
        text=known_or_own(item.text),
        count=say(" ({count} times so far)", count=item.count) if item.count and item.count > 1 else "",
        of=item.of,
        entries=item.entries,
        model=say("with" if item.with_model else "without"),
    )
    return words


def _who(item: DecisionFact) -> str:
    """Names, each with the identity provider's own for this person: two of one name are told apart."""
    names = item.by.split(", ")
    if len(names) != len(item.subjects):
        return item.by
    lasting = (subject.rpartition(" ")[2] for subject in item.subjects)
    return ", ".join(f"{name} [{own}]" if own else name for name, own in zip(names, lasting, strict=True))


def place(item: DecisionFact) -> str:
    """Round, exchange and attempt."""
    if item.round is None:
        return phrases.NOTHING
    named = f", {item.exchange}" if item.exchange else ""
    attempt = say(", attempt {number}", number=item.attempt) if item.attempt else ""
    return f"{say('round {numbers}', numbers=item.round)}{named}{attempt}"


def _when(item: DecisionFact) -> str:
    """When a person decided, if that was not when it was recorded."""
    if item.decided_s is None or abs(item.time_s - item.decided_s) <= _AT_ONCE_S:
        return ""
    return say(" on {moment}", moment=phrases.moment(item.decided_s))


def _short(digest: str) -> str:
    return digest[:_DIGITS] or say("(not recorded)")


_COLUMNS: list[doc.Column[DecisionFact]] = [
    doc.Column("Recorded", 4, lambda item: phrases.moment(item.time_s)),
    doc.Column("Study", 4, lambda item: item.study or phrases.NOTHING),
    doc.Column("Decision", 9, in_words),
    doc.Column("Where", 4, place),
    doc.Column("Line", 2, lambda item: str(item.line), "number"),
]
_FILE_COLUMNS: list[doc.Column[FileFacts]] = [
    doc.Column("File", 6, lambda item: item.file, "digest"),
    doc.Column("Kind", 4, lambda item: say(item.kind)),
    doc.Column("Owner", 4, lambda item: phrases.parties([item.owner])),
    doc.Column("Entries", 3, lambda item: str(item.entries or ""), "number"),
    doc.Column("Head", 6, lambda item: item.head, "digest"),
    doc.Column("SHA-256 of the file", 6, lambda item: item.sha256, "digest"),
    doc.Column("Result", 4, lambda item: say("verified" if item.verified else "BAD")),
]


def verification(report: Report) -> doc.Section:
    """What was checked, what was wrong, and how to check it again."""
    check = report.verification
    blocks: list[doc.Block] = []
    if check.problems:
        blocks.append(doc.Alert("bad", say("Problems"), tuple(map(in_line, check.problems))))
    else:
        text = (
            "Every chain and signature verifies, the transcripts agree, and every recorded epsilon is "
            "what its events give ({count:,} computed again)."
            if check.pinned
            else "Every chain and signature verifies under keys from these folders, the transcripts "
            "agree, and every recorded epsilon is what its events give ({count:,} computed again)."
        )
        blocks.append(doc.Alert("good" if check.pinned else "warn", say(text, count=check.recomputed)))
    if check.notes:
        blocks.append(
            doc.Alert("info", say("Worth knowing"), tuple(f"{again(note)}." for note in check.notes))
        )
    if not check.pinned:
        blocks.append(doc.Text(phrases.TEXTS["verification"]["unpinned"]))
    for roster in check.rosters:
        rows = ((say("aggregator"), roster.aggregator), *roster.sites)
        blocks.append(doc.Heading(say("Roster"), say("Digest {digest}", digest=roster.digest)))
        headers = say("Party"), say("Fingerprint of its key")
        blocks.append(doc.ReportTable(headers, rows, digests=(1,), weights=(3, 9)))
    blocks.append(doc.Text(say("Whoever holds these files can check them again, without a network:")))
    rosters = [part for name in report.named_rosters for part in ("--roster", name)]
    blocks.append(doc.Code((f"secfed audit verify {shlex.join([*report.folders, *rosters])}",)))
    return doc.Section("verification", say("Verification"), tuple(blocks))


def in_line(one: Problem) -> str:
    """A problem in the language of the moment."""
    where = say("{file}, line {line}", file=one.file, line=one.line) if one.line else one.file
    return say("{where}: {why}", where=where, why=_why(one.why))


def _why(why: str) -> str:
    if isinstance(why, Said):
        return str(again(why))
    known = say(why)
    return known if known != why else known_or_own(why)


def files_appendix(report: Report) -> doc.Section:
    """Every file that was read, with its digest."""
    blocks = (
        doc.Text(say("To compare a file with its digest: {command}", command="sha256sum FILE")),
        doc.table(_FILE_COLUMNS, report.verification.files, lambda item: None if item.verified else "bad"),
    )
    return doc.Section("files", say("Appendix: files and their digests"), blocks, folded=True)
