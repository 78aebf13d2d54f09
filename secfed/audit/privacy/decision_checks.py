"""The section of a report about what hospitals decided, from their decision logs."""

from __future__ import annotations

from typing import Final

from secfed.audit.privacy import phrases
from secfed.audit.privacy.document import Alert, Block, Heading, ReportTable, Section, Text, Tone
from secfed.audit.privacy.evidence import DecisionFact, DecisionLogFacts, Report
from secfed.records import decision_state as kinds
from secfed.records.decision_log import DECISIONS

_SHOWN: Final = 500  # rows of one log; the JSON has all of them
_DIGITS: Final = 16
_AT_ONCE_S: Final = 60
_WARNED: Final = (
    kinds.REFUSED,
    kinds.BUDGET,
    kinds.REFUSAL,
    kinds.ALARM,
    kinds.LIMITED,
    kinds.MISSED,
    kinds.RECOVERED,
)
_BESIDE_POLICY: Final = {"roster": "the pinned roster", "approval": "a person's refusal"}


def decided(report: Report) -> Section:
    """Every decision log, entry by entry; and which ones cannot be believed."""
    several = len({item.owner for item in report.verification.files if item.kind == DECISIONS.name}) > 1
    blocks: list[Block] = list(_broken(report))
    if report.decisions:
        blocks.append(
            Text(
                "Each agent signs what its hospital decided, in order: which studies its people approved or "
                "refused, which ones its policy let in, under which policy and roster, and which messages of "
                "the aggregator it refused, with their numbers (SECURITY.md explains each)."
            )
        )
    for log in report.decisions:
        blocks += _log(log)
    if report.decisions:
        blocks.append(
            Text(
                "What this proves: nothing inside a log was changed, left out or moved. The hospital holds "
                "the key, so only a head that was shown earlier proves to others that nothing is missing at "
                "the end and that there is no second log. Keep this page: secfed audit verify --seen HEAD "
                "finds a later log that lacks a head of today."
            )
        )
    elif not blocks:
        blocks.append(
            Text(
                "No decision log is among these files. Agents keep one in their state folder, as "
                "decisions.jsonl; simulations keep none."
            )
        )
    title = "What these hospitals decided" if several else "What this hospital decided"
    return Section("decided", title, tuple(blocks), new_page=bool(report.decisions))


def _broken(report: Report) -> list[Block]:
    """Logs of which nothing is shown, because nothing in them can be relied on."""
    found: list[Block] = []
    for item in report.verification.files:
        if item.kind == DECISIONS.name and not item.verified:
            why = tuple(
                f"{one.file}{f', line {one.line}' if one.line else ''}: {one.why}"
                for one in report.verification.problems
                if one.file == item.file
            )
            title = f"The decision log of {item.owner} DOES NOT VERIFY: do not rely on it"
            found.append(Alert("bad", title, why))
    return found


def _log(log: DecisionLogFacts) -> list[Block]:
    note = f"{log.file}. Head {log.head}"
    blocks: list[Block] = [Heading(log.site, note)]
    shown = log.decisions[-_SHOWN:]
    if len(shown) < len(log.decisions):
        blocks.append(
            Text(f"The newest {_SHOWN} of {len(log.decisions)} entries; the report's JSON has all of them.")
        )
    if not shown:
        blocks.append(Text("Nothing was decided yet."))
        return blocks
    rows = tuple(
        (phrases.moment(item.time_s), item.study, said(item), place(item), str(item.line)) for item in shown
    )
    tones: tuple[tuple[int, Tone], ...] = tuple(
        (row, "warn") for row, item in enumerate(shown) if item.kind in _WARNED
    )
    headers = ("Recorded", "Study", "Decision", "Where", "Line")
    blocks.append(ReportTable(headers, rows, numbers=(4,), weights=(4, 4, 9, 4, 2), tones=tones))
    return blocks


def said(item: DecisionFact) -> str:
    """One entry in words."""
    match item.kind:
        case kinds.APPROVED:
            return f"approved by a person{_when(item)}"
        case kinds.REJECTED:
            return f"refused by a person{_when(item)}"
        case kinds.WITHDRAWN:
            return f"approval withdrawn{_when(item)}"
        case kinds.LIFTED:
            return "refusal by a person lifted"
        case kinds.ACCEPTED:
            return f"begun, as policy {_short(item.policy)} and roster {_short(item.roster)} permit"
        case kinds.REFUSED:
            named = ", ".join(_BESIDE_POLICY.get(key, key) for key in item.keys)
            by_policy = any(key not in _BESIDE_POLICY for key in item.keys)
            return f"not permitted{f' by policy {_short(item.policy)}' if by_policy else ''}: {named}"
        case kinds.BUDGET:
            return f"a use of data that its budget did not cover was refused{_count(item)}"
        case kinds.REFUSAL:
            number = f"refusal {item.number}" if item.number else "refusal"
            return f"{number}: {item.text}{_count(item)}"
        case kinds.ALARM:
            return f"local work failed, and what failed added nothing: {item.text}{_count(item)}"
        case kinds.FINISHED:
            return f"over, {'with' if item.with_model else 'without'} a model at this site"
        case kinds.ROSTER:
            return f"roster pinned: {_short(item.roster)}"
        case kinds.POLICY:
            return f"policy in force: {_short(item.policy)}"
        case kinds.LIMITED:
            what = f"{item.of} {item.number}" if item.number else item.of
            return f"more entries of this kind on this day are left out ({what})"
        case kinds.MISSED:
            return f"{item.entries} entries before this one could not be written"
        case kinds.RECOVERED:
            return "an unfinished last line was dropped after a crash"
    return f"{item.kind} (this version does not know it)"


def place(item: DecisionFact) -> str:
    """Round, exchange and attempt."""
    if item.round is None:
        return phrases.NOTHING
    named = f", {item.exchange}" if item.exchange else ""
    attempt = f", attempt {item.attempt}" if item.attempt else ""
    return f"round {item.round}{named}{attempt}"


def _when(item: DecisionFact) -> str:
    """When a person decided, if that was not when it was recorded."""
    if item.decided_s is None or abs(item.time_s - item.decided_s) <= _AT_ONCE_S:
        return ""
    return f" on {phrases.moment(item.decided_s)}"


def _count(item: DecisionFact) -> str:
    return f" ({item.count} times so far)" if item.count and item.count > 1 else ""


def _short(digest: str) -> str:
    return digest[:_DIGITS] or "(not recorded)"
