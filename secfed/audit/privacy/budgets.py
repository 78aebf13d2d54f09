"""Sections of a report about budgets: at a glance, in full, payment by payment, and on what they rely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases, releases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Payment, Report, StudySpend
from secfed.records.decision_state import REFUSAL

_TEXTS = phrases.TEXTS["budgets"]
_MOST_MECHANISMS = 3
_FOOTINGS = {"local-noise": "Epsilon from noise at the site", "sum-noise": "Epsilon from noise in the sum"}


def summary(report: Report) -> doc.Section:
    """The first page: budgets at a glance, and what must not be overlooked."""
    blocks: list[doc.Block] = []
    if report.ledgers:
        blocks.append(doc.Cards(tuple(_card(report, ledger) for ledger in report.ledgers)))
    blocks += _warnings(report)
    if report.verification.notes:
        notes = phrases.plural(len(report.verification.notes), "note")
        blocks.append(doc.Alert("info", f"{notes} on completeness under Verification"))
    refused = Counter(item.what for item in report.refusals)
    rows = (
        ("Studies in these files", ", ".join(releases.study_names(report)) or "none"),
        ("Sites in these files", ", ".join(report.sites) or "none"),
        ("Finished sums", str(sum(study.sums for study in report.studies))),
        ("Uses of data that a budget refused", str(refused["budget"])),
        ("Refusals in transcripts", str(refused["message"])),
        ("Rounds that were given up", str(refused["round"])),
        ("Messages of the aggregator that agents refused, at least", str(_refused_messages(report))),
    )
    blocks.append(doc.ReportTable(("", ""), rows, weights=(3, 7)))
    return doc.Section("summary", "Summary", tuple(blocks))


def _refused_messages(report: Report) -> int:
    """The newest count of every study and number."""
    counts = {
        (log.site, item.study, item.number): item.count or 1
        for log in report.decisions
        for item in log.decisions
        if item.kind == REFUSAL
    }
    return sum(counts.values())


def _card(report: Report, ledger: LedgerFacts) -> doc.Card:
    """The budget that is closest to its limit stands for the ledger."""
    title = f"{ledger.site} \N{MIDDLE DOT} {ledger.dataset}"
    if not ledger.amounts:
        return doc.Card(title, phrases.NOTHING, "no budget recorded", None, ())
    shown = max(ledger.amounts, key=lambda one: one.spent / one.limit if one.limit else -1.0)
    facts = (
        ("delta", phrases.delta(shown.delta)),
        ("protects", f"one {phrases.hidden(shown)} ({shown.adjacency or 'nothing spent yet'})"),
        ("left", phrases.number_down(shown.left)),
        ("counts", f"{phrases.period(shown)}, all studies together"),
        ("accountant", _accountant(shown)),
    )
    outside = releases.uncovered(report, ledger.site)
    return doc.Card(
        title,
        phrases.number_up(shown.spent),
        f"of epsilon {phrases.limit(shown)}" if shown.limit else "epsilon, no limit",
        None if shown.limit is None else min(1.0, shown.spent / shown.limit),
        facts,
        f"Not covered: {'; '.join(outside)}" if outside else "",
    )


def _warnings(report: Report) -> list[doc.Block]:
    studies = report.studies
    blocks: list[doc.Block] = []

    def warn(tone: doc.Tone, title: str, names: Iterable[str], *lines: str) -> None:
        shown = ", ".join(dict.fromkeys(names))
        if shown:
            blocks.append(doc.Alert(tone, f"{title} {shown}", lines))

    if report.bare:
        title = "Left without noise"
        blocks.append(doc.Alert("warn", title, tuple(releases.bare_lines(report))))
    without = [one.name for one in studies if one.settings_recorded and one.privacy is None]
    warn("warn", "No differential privacy in study", without, _TEXTS["no_privacy"])
    plain = [one.name for one in studies if one.protection == "plain"]
    warn("bad", "Not protected from the aggregator: study", plain, _TEXTS["plain"])
    simulated = sorted(one.name for one in studies if one.simulated and one.privacy)
    warn("info", "Simulated: study", simulated, _TEXTS["simulated"])
    warn("info", "Settings not recorded: study", [one.name for one in studies if not one.settings_recorded])
    with_ledger = {ledger.site for ledger in report.ledgers}
    others = [site for site in report.sites if site not in with_ledger]
    without_ledger = phrases.sentence(f"Without a ledger: {releases.NO_PRIVACY}")
    warn("warn", "No verified ledger in these files:", others, without_ledger)
    return blocks


def spending(report: Report) -> doc.Section:
    """Per ledger: its budgets, its figure, and what each study spent."""
    blocks: list[doc.Block] = []
    for number, ledger in enumerate(report.ledgers):
        entries = f"{ledger.entries:,} entries in the ledger, the last of {phrases.day(ledger.last_s)}"
        blocks.append(
            doc.Heading(f"{ledger.site}, data set {ledger.dataset}", f"All studies together. {entries}.")
        )
        blocks.append(doc.table(_BUDGET_COLUMNS, ledger.amounts))
        if ledger.limit_changes:
            times = phrases.plural(ledger.limit_changes, "time")
            blocks.append(doc.Text(f"The limits were changed {times}; those in force now are shown."))
        if ledger.payments:
            blocks.append(doc.Figure(number, _alt(ledger)))
            blocks.append(doc.table(_STUDY_COLUMNS, ledger.studies))
        outside = releases.uncovered(report, ledger.site)
        if outside:
            lines = tuple(map(phrases.sentence, outside))
            blocks.append(doc.Alert("warn", "Not covered by these numbers", lines))
    if not report.ledgers:
        blocks.append(doc.Text(phrases.sentence(f"No verified ledger in these files: {releases.NO_PRIVACY}")))
    elif any(len(ledger.studies) > 1 for ledger in report.ledgers):
        blocks.append(doc.Text(_TEXTS["alone"]))
    return doc.Section("spending", "Privacy spent and left", tuple(blocks), new_page=True)


def _accountant(amount: Amount) -> str:
    return f"{amount.accountant}, {amount.version}" if amount.accountant else phrases.NOTHING


def _alt(ledger: LedgerFacts) -> str:
    now = "".join(
        f"; {phrases.number_up(one.spent)} spent of {phrases.limit(one)}, {phrases.period(one)}"
        for one in ledger.amounts
    )
    times = phrases.plural(len(ledger.payments), "payment")
    return f"Epsilon spent at {ledger.site} from data set {ledger.dataset} over {times}{now}."


def _mechanisms(spend: StudySpend) -> str:
    more = len(spend.mechanisms) - _MOST_MECHANISMS
    shown = "; ".join(spend.mechanisms[:_MOST_MECHANISMS])
    return f"{shown}; and {more} more" if more > 0 else shown


def _alone(spend: StudySpend) -> str:
    shown = [
        f"{phrases.number_up(cost.spent)} (delta {phrases.delta(cost.delta)}, {cost.adjacency}, "
        f"{cost.accountant})"
        for cost in spend.alone
        if cost.adjacency
    ]
    return "; ".join(shown) or phrases.NOTHING


_BUDGET_COLUMNS: list[doc.Column[Amount]] = [
    doc.Column("Budget protects", 6, lambda amount: f"one {amount.protects}, {phrases.period(amount)}"),
    doc.Column("Epsilon limit", 4, phrases.limit, "number"),
    doc.Column("Spent", 3, lambda amount: phrases.number_up(amount.spent), "number"),
    doc.Column("Left", 3, lambda amount: phrases.number_down(amount.left), "number"),
    doc.Column("Delta", 3, lambda amount: phrases.delta(amount.delta), "number"),
    doc.Column("Neighbours", 6, lambda amount: amount.adjacency or phrases.NOTHING),
    doc.Column("Accountant", 8, _accountant),
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
    doc.Column("Mechanism", 7, lambda payment: payment.mechanism),
]


def payments_appendix(report: Report) -> doc.Section:
    """Every payment with its event, as it is computed again."""
    blocks: list[doc.Block] = [doc.Text(_TEXTS["payments"])]
    for ledger in report.ledgers:
        if ledger.payments:
            heads = ledger.amounts[:2]
            stated = "; ".join(f"{phrases.period(one)}: {phrases.statement(one)}" for one in heads)
            blocks.append(doc.Heading(f"{ledger.site}, data set {ledger.dataset}", phrases.sentence(stated)))
            totals = [_total_column(place, amount) for place, amount in enumerate(heads)]
            blocks.append(doc.table([*_PAYMENT_COLUMNS, *totals], ledger.payments))
    return doc.Section("payments", "Appendix: every payment", tuple(blocks), new_page=True)


def _total_column(place: int, budget: Amount) -> doc.Column[Payment]:
    def spent(payment: Payment) -> str:
        known = place < len(payment.after)
        return phrases.number_up(payment.after[place].spent) if known else phrases.NOTHING

    return doc.Column(f"Epsilon {phrases.period(budget)}", 4, spent, "number")


def trust(report: Report) -> doc.Section:
    """On what every kind of number relies."""
    used = {amount.relies_on for ledger in report.ledgers for amount in ledger.amounts}
    rows = [(title, phrases.TEXTS["relies"][kind]) for kind, title in _FOOTINGS.items() if kind in used]
    rows += [(f"Protection: {name}", text) for name, text in releases.protections_relied_on(report)]
    rows += phrases.TEXTS["trust"].items()
    block = doc.ReportTable(("Number", "Relies on"), tuple(rows), weights=(3, 9))
    return doc.Section("trust", "On what each number relies", (block,))
