"""Sections of a report about budgets: in full, payment by payment, and on what they rely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secfed.audit.languages import again, number, say
from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases, releases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Payment, Report, StudySpend

_TEXTS = phrases.TEXTS["budgets"]
_MOST_MECHANISMS = 3


def alike(ledgers: Sequence[LedgerFacts]) -> list[list[int]]:
    """Places of ledgers that look the same in a report: hospitals of one study mostly spend alike."""
    groups: dict[object, list[int]] = {}
    for place, ledger in enumerate(ledgers):
        shown = (
            ledger.dataset,
            tuple(tuple(column.cell(one) for column in _BUDGET_COLUMNS) for one in ledger.amounts),
            tuple((one.study, one.rounds, one.payments, _alone(one)) for one in ledger.studies),
            ledger.limit_changes,
        )
        groups.setdefault(shown, []).append(place)
    return list(groups.values())


def spending(report: Report) -> doc.Section:
    """Per ledger, those that are alike together: its budgets, its figure, and what each study spent."""
    blocks: list[doc.Block] = []
    for places in alike(report.ledgers):
        group = [report.ledgers[place] for place in places]
        ledger = group[0]
        counts = say(" or ").join(number(count, ",") for count in sorted({one.entries for one in group}))
        last = max((one.last_s for one in group if one.last_s is not None), default=None)
        entries = (
            "All studies together. Entries in each ledger: {counts}; the last of {day}."
            if len(group) > 1
            else "All studies together. Entries in the ledger: {counts}; the last of {day}."
        )
        note = say(entries, counts=counts, day=phrases.day(last))
        blocks.append(doc.Heading(_at(", ".join(one.site for one in group), ledger), note))
        blocks.append(doc.table(_BUDGET_COLUMNS, ledger.amounts))
        if ledger.limit_changes:
            times = phrases.plural(ledger.limit_changes, "time")
            text = say("The limits were changed {times}; those in force now are shown.", times=times)
            blocks.append(doc.Text(text))
        if ledger.payments:
            blocks.append(doc.Figure(places[0], _alt(group)))
            merged = [_merged(group, place) for place in range(len(ledger.studies))]
            blocks.append(doc.table(_STUDY_COLUMNS, merged))
        outside = dict.fromkeys(line for one in group for line in releases.uncovered(report, one.site))
        if outside:
            lines = tuple(map(phrases.sentence, outside))
            blocks.append(doc.Alert("warn", say("Not covered by these numbers"), lines))
    if not report.ledgers:
        text = say("No verified ledger in these files: {what}", what=say(releases.NO_PRIVACY))
        blocks.append(doc.Text(phrases.sentence(text)))
    elif any(len(ledger.studies) > 1 for ledger in report.ledgers):
        blocks.append(doc.Text(_TEXTS["alone"]))
    return doc.Section("spending", say("Privacy spent and left"), tuple(blocks))


def _at(sites: str, ledger: LedgerFacts) -> str:
    return say("{sites}, data set {data_set}", sites=sites, data_set=ledger.dataset)


def _merged(group: Sequence[LedgerFacts], place: int) -> StudySpend:
    """One study at ledgers that are alike; sampling rates differ with the number of records."""
    same = [ledger.studies[place] for ledger in group]
    return replace(
        same[0],
        first_s=min(one.first_s for one in same),
        last_s=max(one.last_s for one in same),
        mechanisms=tuple(dict.fromkeys(text for one in same for text in one.mechanisms)),
    )


def accountant_of(amount: Amount) -> str:
    """The accountant of an epsilon and its version; a dash where nothing was spent."""
    return f"{amount.accountant}, {amount.version}" if amount.accountant else phrases.NOTHING


def _alt(group: Sequence[LedgerFacts]) -> str:
    ledger = group[0]
    now = "".join(
        "; "
        + say(
            "{spent} spent of {limit}, {period}",
            spent=phrases.number_up(one.spent),
            limit=phrases.limit(one),
            period=phrases.period(one),
        )
        for one in ledger.amounts
    )
    return say(
        "Epsilon spent at {sites} from data set {data_set} over {payments}{now}.",
        sites=say(" and ").join(one.site for one in group),
        data_set=ledger.dataset,
        payments=phrases.plural(len(ledger.payments), "payment"),
        now=now,
    )


def _mechanisms(spend: StudySpend) -> str:
    more = len(spend.mechanisms) - _MOST_MECHANISMS
    shown = say("; ").join(map(again, spend.mechanisms[:_MOST_MECHANISMS]))
    return say("{shown}; and {count} more", shown=shown, count=more) if more > 0 else shown


def _alone(spend: StudySpend) -> str:
    shown = [
        f"{phrases.number_up(cost.spent)} ({say('delta')} {phrases.delta(cost.delta)}, {cost.adjacency}, "
        f"{cost.accountant})"
        for cost in spend.alone
        if cost.adjacency
    ]
    return say("; ").join(shown) or phrases.NOTHING


def _protects(amount: Amount) -> str:
    return f"{phrases.TEXTS['protects'][amount.protects]}, {phrases.period(amount)}"


_BUDGET_COLUMNS: list[doc.Column[Amount]] = [
    doc.Column("Budget protects", 6, _protects),
    doc.Column("Epsilon limit", 4, phrases.limit, "number"),
    doc.Column("Spent", 3, lambda amount: phrases.number_up(amount.spent), "number"),
    doc.Column("Left", 3, lambda amount: phrases.number_down(amount.left), "number"),
    doc.Column("Delta", 3, lambda amount: phrases.delta(amount.delta), "number"),
    doc.Column("Neighbours", 6, lambda amount: amount.adjacency or phrases.NOTHING),
    doc.Column("Accountant", 8, accountant_of),
]
_STUDY_COLUMNS: list[doc.Column[StudySpend]] = [
    doc.Column("Study", 4, lambda spend: spend.study),
    doc.Column("Rounds", 3, lambda spend: phrases.dashes(spend.rounds)),
    doc.Column("Payments", 4, lambda spend: str(spend.payments), "number"),
    doc.Column("First", 4, lambda spend: phrases.day(spend.first_s)),
    doc.Column("Last", 4, lambda spend: phrases.day(spend.last_s)),
    doc.Column("Mechanism", 7, _mechanisms),
    doc.Column("Epsilon of this study alone", 7, _alone),
]
_PAYMENT_COLUMNS: list[doc.Column[Payment]] = [
    doc.Column("Line", 2, lambda payment: str(payment.line), "number"),
    doc.Column("Date", 4, lambda payment: phrases.day(payment.time_s)),
    doc.Column("Study", 4, lambda payment: payment.study),
    doc.Column("Round", 3, lambda payment: str(payment.round), "number"),
    doc.Column("Exchange", 4, lambda payment: payment.exchange),
    doc.Column("Mechanism", 7, lambda payment: str(again(payment.mechanism))),
]


def payments_appendix(report: Report) -> doc.Section:
    """Every payment with its event, as it is computed again."""
    blocks: list[doc.Block] = [doc.Text(_TEXTS["payments"])]
    for ledger in report.ledgers:
        if ledger.payments:
            heads = ledger.amounts[:2]
            stated = say("; ").join(f"{phrases.period(one)}: {phrases.statement(one)}" for one in heads)
            blocks.append(doc.Heading(_at(ledger.site, ledger), phrases.sentence(stated)))
            totals = [_total_column(amount) for amount in heads]
            blocks.append(doc.table([*_PAYMENT_COLUMNS, *totals], ledger.payments))
    return doc.Section("payments", say("Appendix: every payment"), tuple(blocks), folded=True)


def _total_column(budget: Amount) -> doc.Column[Payment]:
    def spent(payment: Payment) -> str:
        known = payment.spent_under(budget)
        return phrases.NOTHING if known is None else phrases.number_up(known)

    return doc.Column(f"Epsilon {phrases.period(budget)}", 4, spent, "number")  # a word in all languages


def trust(report: Report) -> doc.Section:
    """On what every kind of number relies."""
    used = {amount.relies_on for ledger in report.ledgers for amount in ledger.amounts}
    footings, relies = phrases.TEXTS["footings"], phrases.TEXTS["relies"]
    rows = [(footings[kind], relies[kind]) for kind in footings if kind in used]
    protections = releases.protections_relied_on(report)
    rows += [(say("Protection: {protection}", protection=name), text) for name, text in protections]
    rows += [(say(title), text) for title, text in phrases.TEXTS["trust"].items()]
    block = doc.ReportTable((say("Number"), say("Relies on")), tuple(rows), weights=(3, 9))
    return doc.Section("trust", say("On what each number relies"), (block,))
