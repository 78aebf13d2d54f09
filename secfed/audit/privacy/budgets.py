"""Sections of a report about budgets: at a glance, in full, payment by payment, and on what they rely."""

from __future__ import annotations

from collections.abc import Iterable

from secfed.audit.privacy import phrases
from secfed.audit.privacy.document import (
    Alert,
    Block,
    Card,
    Cards,
    Figure,
    Heading,
    ReportTable,
    Section,
    Text,
)
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Report, StudySpend
from secfed.audit.privacy.releases import NO_PRIVACY, bare_lines, study_names, uncovered
from secfed.records.decision_state import REFUSAL

_MOST_MECHANISMS = 3


def summary(report: Report) -> Section:
    """The first page: budgets at a glance, and what must not be overlooked."""
    blocks: list[Block] = []
    if report.ledgers:
        blocks.append(Cards(tuple(_card(report, ledger) for ledger in report.ledgers)))
    blocks += _warnings(report)
    if report.verification.notes:
        notes = phrases.plural(len(report.verification.notes), "note")
        blocks.append(Alert("info", f"{notes} on completeness under Verification"))
    budget, message, aborted = (
        sum(item.what == what for item in report.refusals) for what in ("budget", "message", "round")
    )
    rows = (
        ("Studies in these files", ", ".join(study_names(report)) or "none"),
        ("Sites in these files", ", ".join(report.sites) or "none"),
        ("Finished sums", str(sum(study.sums for study in report.studies))),
        ("Uses of data that a budget refused", str(budget)),
        ("Refusals in transcripts", str(message)),
        ("Rounds that were given up", str(aborted)),
        ("Messages of the aggregator that agents refused, at least", str(_refused_messages(report))),
    )
    blocks.append(ReportTable(("", ""), rows, weights=(3, 7)))
    return Section("summary", "Summary", tuple(blocks))


def _refused_messages(report: Report) -> int:
    """The newest count of every study and number."""
    counts = {
        (log.site, item.study, item.number): item.count or 1
        for log in report.decisions
        for item in log.decisions
        if item.kind == REFUSAL
    }
    return sum(counts.values())


def _card(report: Report, ledger: LedgerFacts) -> Card:
    """The budget that is closest to its limit stands for the ledger."""
    title = f"{ledger.site} \N{MIDDLE DOT} {ledger.dataset}"
    if not ledger.amounts:
        return Card(title, phrases.NOTHING, "no budget recorded", None, ())
    shown = max(ledger.amounts, key=lambda one: one.spent / one.limit if one.limit else -1.0)
    facts = (
        ("delta", phrases.delta(shown.delta)),
        ("protects", f"one {phrases.hidden(shown)} ({shown.adjacency or 'nothing spent yet'})"),
        ("left", phrases.number_down(shown.left)),
        ("counts", f"{phrases.period(shown)}, all studies together"),
        ("accountant", _accountant(shown)),
    )
    outside = uncovered(report, ledger.site)
    return Card(
        title,
        phrases.number_up(shown.spent),
        f"of epsilon {phrases.limit(shown)}" if shown.limit else "epsilon, no limit",
        None if shown.limit is None else min(1.0, shown.spent / shown.limit),
        facts,
        f"Not covered: {'; '.join(outside)}" if outside else "",
    )


def _warnings(report: Report) -> list[Block]:
    blocks: list[Block] = []
    if report.bare:
        title = "Left without noise, by the studies' explicit choice"
        blocks.append(Alert("warn", title, tuple(bare_lines(report))))
    without = [one.name for one in report.studies if one.settings_recorded and one.privacy is None]
    if without:
        title = f"No differential privacy in study {', '.join(dict.fromkeys(without))}"
        blocks.append(Alert("warn", title, ("Nothing bounds what its sums reveal about a record.",)))
    plain = [one.name for one in report.studies if one.protection == "plain"]
    if plain:
        title = f"Not protected from the aggregator: study {', '.join(dict.fromkeys(plain))}"
        blocks.append(Alert("bad", title, ("The aggregator received each site's own values.",)))
    simulated = sorted({study.name for study in report.studies if study.simulated and study.privacy})
    if simulated:
        title = f"Simulated: study {', '.join(simulated)}"
        line = (
            "One machine ran all sites, and the noise came from the study's seed: whoever knows the seed can "
        )
        blocks.append(
            Alert("info", title, (line + "remove it. These records show the accounting, not a promise.",))
        )
    unknown = [one.name for one in report.studies if not one.settings_recorded]
    if unknown:
        blocks.append(Alert("info", f"Settings not recorded: study {', '.join(dict.fromkeys(unknown))}"))
    kept = {ledger.site for ledger in report.ledgers}
    bookless = [site for site in report.sites if site not in kept]
    if bookless:
        title = f"No verified ledger in these files: {', '.join(bookless)}"
        blocks.append(Alert("warn", title, (phrases.sentence(f"Without a ledger: {NO_PRIVACY}"),)))
    return blocks


def spending(report: Report) -> Section:
    """Per ledger: its budgets, its figure, and what each study spent."""
    blocks: list[Block] = []
    for number, ledger in enumerate(report.ledgers):
        entries = f"{ledger.entries:,} entries in the ledger, the last of {phrases.day(ledger.last_s)}"
        blocks.append(
            Heading(f"{ledger.site}, data set {ledger.dataset}", f"All studies together. {entries}.")
        )
        blocks.append(_budget_table(ledger.amounts))
        if ledger.limit_changes:
            times = phrases.plural(ledger.limit_changes, "time")
            blocks.append(Text(f"The limits were changed {times}; those in force now are shown."))
        if ledger.payments:
            blocks.append(Figure(number, _alt(ledger)))
            blocks.append(_study_table(ledger))
        outside = uncovered(report, ledger.site)
        if outside:
            blocks.append(
                Alert("warn", "Not covered by these numbers", tuple(map(phrases.sentence, outside)))
            )
    if not report.ledgers:
        blocks.append(Text(phrases.sentence(f"No verified ledger in these files: {NO_PRIVACY}")))
    elif any(len(ledger.studies) > 1 for ledger in report.ledgers):
        blocks.append(
            Text(
                "The epsilon of a study alone is what its payments would come to if they were the only ones. "
                "These numbers do not add up to what was spent: epsilons compose, and mostly to less than "
                "their sum."
            )
        )
    return Section("spending", "Privacy spent and left", tuple(blocks), new_page=True)


def _accountant(amount: Amount) -> str:
    return f"{amount.accountant}, {amount.version}" if amount.accountant else phrases.NOTHING


def _alt(ledger: LedgerFacts) -> str:
    now = "".join(
        f"; {phrases.number_up(one.spent)} spent of {phrases.limit(one)}, {phrases.period(one)}"
        for one in ledger.amounts
    )
    times = phrases.plural(len(ledger.payments), "payment")
    return f"Epsilon spent at {ledger.site} from data set {ledger.dataset} over {times}{now}."


def _budget_table(amounts: Iterable[Amount]) -> ReportTable:
    rows = tuple(
        (
            f"one {amount.protects}, {phrases.period(amount)}",
            phrases.limit(amount),
            phrases.number_up(amount.spent),
            phrases.number_down(amount.left),
            phrases.delta(amount.delta),
            amount.adjacency or phrases.NOTHING,
            _accountant(amount),
        )
        for amount in amounts
    )
    headers = ("Budget protects", "Epsilon limit", "Spent", "Left", "Delta", "Neighbours", "Accountant")
    return ReportTable(headers, rows, numbers=(1, 2, 3, 4), weights=(6, 4, 3, 3, 3, 6, 8))


def _study_table(ledger: LedgerFacts) -> ReportTable:
    rows = tuple(
        (
            spend.study,
            phrases.dashes(spend.rounds),
            str(spend.payments),
            phrases.day(spend.first_s),
            phrases.day(spend.last_s),
            _mechanisms(spend),
            _alone(spend),
        )
        for spend in ledger.studies
    )
    headers = ("Study", "Rounds", "Payments", "First", "Last", "Mechanism", "Epsilon of this study alone")
    return ReportTable(headers, rows, numbers=(2,), weights=(4, 3, 4, 4, 4, 7, 7))


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


def payments_appendix(report: Report) -> Section:
    """Every payment with its event, as it is computed again."""
    blocks: list[Block] = [
        Text(
            "One row per payment. An epsilon is what all payments up to that row come to together, under the "
            "budgets named in the heading, computed again from the events for this report."
        )
    ]
    for ledger in report.ledgers:
        if not ledger.payments:
            continue
        heads = ledger.amounts[:2]
        stated = "; ".join(f"{phrases.period(one)}: {phrases.statement(one)}" for one in heads)
        blocks.append(Heading(f"{ledger.site}, data set {ledger.dataset}", phrases.sentence(stated)))
        rows = tuple(
            (
                str(payment.line),
                phrases.day(payment.time_s),
                payment.study,
                str(payment.round),
                payment.exchange,
                payment.mechanism,
                *(phrases.number_up(amount.spent) for amount in payment.after[: len(heads)]),
                *(phrases.NOTHING for _ in range(len(heads) - len(payment.after))),
            )
            for payment in ledger.payments
        )
        totals = tuple(f"Epsilon {phrases.period(one)}" for one in heads)
        headers = ("Line", "Date", "Study", "Round", "Exchange", "Mechanism", *totals)
        weights = (2, 4, 4, 3, 4, 7, *(4 for _ in heads))
        numbers = (0, 3, *range(6, 6 + len(heads)))
        blocks.append(ReportTable(headers, rows, numbers=numbers, weights=weights))
    return Section("payments", "Appendix: every payment", tuple(blocks), new_page=True)


def trust(report: Report) -> Section:
    """On what every kind of number relies."""
    used = {amount.relies_on for ledger in report.ledgers for amount in ledger.amounts}
    titles = {
        "local-noise": "Epsilon from noise at the site",
        "sum-noise": "Epsilon from noise in the sum",
    }
    rows = [(title, phrases.RELIES[kind]) for kind, title in titles.items() if kind in used]
    rows += [
        (f"Protection: {name}", phrases.PROTECTION_RELIES[name])
        for name in dict.fromkeys(study.protection for study in report.studies)
        if name in phrases.PROTECTION_RELIES
    ]
    rows += phrases.TRUST
    table = ReportTable(("Number", "Relies on"), tuple(rows), weights=(3, 9))
    return Section("trust", "On what each number relies", (table,))
