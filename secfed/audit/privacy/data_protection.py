"""The plain-language part of a report, under the headings that a data-protection officer works with.

What only the controller knows stays blank. Nothing here is legal advice, and the report says so.

Source: Regulation (EU) 2016/679, Articles 30 and 35(7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secfed.audit.privacy import phrases
from secfed.audit.privacy.budgets import payments_appendix, spending, summary, trust
from secfed.audit.privacy.decision_checks import decided
from secfed.audit.privacy.document import (
    Alert,
    Block,
    Document,
    Form,
    Heading,
    Items,
    ReportTable,
    Section,
    Text,
    Tone,
)
from secfed.audit.privacy.evidence import Amount, Report, Verification
from secfed.audit.privacy.releases import (
    NO_PRIVACY,
    bare_lines,
    glossary,
    names_appendix,
    refusals,
    study_names,
    together,
    uncovered,
    what_left,
)
from secfed.audit.privacy.verification import verification
from secfed.config.protections import TRAITS

_HIDES: Final = [name for name, traits in TRAITS.items() if traits.hides_sites]


def build(report: Report) -> Document:
    """The whole document, from facts only."""
    check = report.verification
    studies = study_names(report)
    tone, verdict = _verdict(check)
    return Document(
        title="Privacy audit report",
        subtitle=f"{', '.join(report.sites) or 'no site'} \N{MIDDLE DOT} {', '.join(studies) or 'no study'}",
        tone=tone,
        verdict=verdict,
        facts=(
            ("Made", phrases.moment(report.made_s)),
            ("By", f"secfed {report.secfed_version}, from signed records only"),
            ("Folders", ", ".join(report.folders)),
        ),
        sections=(
            summary(report),
            plain_words(report),
            article_30(report),
            article_35(report),
            spending(report),
            what_left(report),
            refusals(report),
            decided(report),
            trust(report),
            verification(report),
            payments_appendix(report),
            names_appendix(report),
            glossary(),
        ),
    )


def _verdict(check: Verification) -> tuple[Tone, str]:
    """Whether the records may be believed. Only a roster from elsewhere says whose signatures they are."""
    checked = (
        f"{phrases.plural(len(check.files), 'file')}, "
        f"{phrases.plural(check.recomputed, 'epsilon')} computed again from recorded events."
    )
    if check.is_only_unchecked:
        return "bad", (
            f"NOT CHECKED: the rosters of {phrases.plural(check.unchecked, 'file')} are missing. Make the "
            "report again with --roster, before you rely on these numbers."
        )
    if not check.verified:
        return "bad", (
            f"DOES NOT VERIFY: {phrases.plural(len(check.problems), 'problem')}. "
            "Do not rely on these numbers before they are explained."
        )
    if not check.pinned:
        return "warn", f"Records are consistent (keys not checked: no pinned roster): {checked}"
    return "good", f"Everything verifies: {checked}"


def plain_words(report: Report) -> Section:
    """What was done, and what the numbers mean."""
    blocks: list[Block] = [
        Text(
            "Several sites trained a model together. Each site computed with its own records and handed out "
            "numbers about the model, never a record. These numbers were added up over the sites, and the "
            "sums made the model better. Sums can still carry traces of single records. Differential "
            "privacy limits these traces: random noise is added, and epsilon and delta state how much a "
            "result may depend on any one record."
        ),
        Text(
            "Read it as a promise about guessing. Suppose somebody outside tries to find out, from all "
            "results together, whether one given record was used, or what it said. With epsilon 0 they could "
            "only guess. The larger epsilon, the better they might do. The table says how well at the very "
            "most; known attacks do worse, but nobody can promise that for future ones."
        ),
    ]
    rows = tuple((where, *cells) for cells, where in together(_risks(report)))
    if rows:
        headers = ("Where", "Guarantee", "Any conclusion becomes more likely at most", "Found at most")
        blocks.append(ReportTable(headers, rows, numbers=(2, 3), weights=(5, 8, 4, 3)))
        blocks.append(
            Text(
                "\N{LEFT DOUBLE QUOTATION MARK}Found at most\N{RIGHT DOUBLE QUOTATION MARK}: of 100 records "
                "that were used, how many the best possible test could find if it wrongly accuses 1 of 100 "
                "records that were not used. Without any information it would find 1 of 100. Where the "
                "relation replaces a record or a patient, or concerns a site, it is about telling the two "
                "variants apart. "
                "Delta is the share of cases in which the first number may fail."
            )
        )
    else:
        blocks.append(Text("These files hold no epsilon: no payment from a privacy budget is recorded."))
    outside = together(("; ".join(uncovered(report, site)), site) for site in report.sites)
    lines = tuple(f"{sites} \N{EN DASH} {what}" for what, sites in outside if what)
    if lines:
        blocks.append(Alert("warn", "The promise does not cover what left without noise", lines))
    return Section("plain", "In plain words", tuple(blocks), new_page=True)


def _risks(report: Report) -> Iterator[tuple[tuple[str, str, str], str]]:
    for ledger in report.ledgers:
        for amount in ledger.amounts:
            if amount.adjacency is not None:
                yield _risk(amount), f"{ledger.site} ({ledger.dataset})"


def _risk(amount: Amount) -> tuple[str, str, str]:
    times = f"{phrases.factor(amount.spent)} times"
    found = phrases.percent_up(phrases.detected(amount.spent, amount.delta))
    return f"{phrases.statement(amount)}; counts {phrases.period(amount)}", times, found


def article_30(report: Report) -> Section:
    """Record of processing activities: what is known, and blanks for the rest."""
    sets = together((ledger.dataset, ledger.site) for ledger in report.ledgers)
    algorithms = sorted({study.algorithm for study in report.studies if study.algorithm})
    by = f", algorithm {', '.join(algorithms)}" if algorithms else ""
    rows: tuple[tuple[str, str | None], ...] = (
        ("Controller, joint controllers, representative (1a)", None),
        ("Data-protection officer (1a)", None),
        (
            "Purpose, technically (1b)",
            "Training a statistical model across sites without moving records; studies: "
            f"{', '.join(study_names(report)) or 'not recorded'}{by}.",
        ),
        ("Purpose, medically or scientifically; legal basis (1b)", None),
        ("Categories of data subjects (1c)", None),
        (
            "Data sets as named in the ledgers (1c)",
            "; ".join(f"{name} at {sites}" for name, sites in sets) or "No ledger in these files.",
        ),
        ("Categories of personal data in these data sets (1c)", None),
        ("Recipients during training (1d)", _recipients(report)),
        ("Recipients of the finished model (1d)", None),
        ("Transfers to third countries (1e)", None),
        ("Time limits for erasure (1f)", None),
        ("Technical measures (1g)", _measures(report)),
        ("Organisational measures (1g)", None),
    )
    intro = Text(
        "The headings of a record of processing activities. Entries come from the signed records; empty "
        "fields are for the controller, because nothing in these files says it. This page is no legal advice."
    )
    return Section("art30", "Record of processing (GDPR Art. 30)", (intro, Form(rows)), new_page=True)


def _recipients(report: Report) -> str:
    lines = together(
        (
            (
                phrases.PROTECTION.get(study.protection or "", "protection not recorded"),
                ", ".join(study.roster_sites),
            ),
            study.name,
        )
        for study in report.studies
    )
    return (
        "\n".join(
            f"Study {names}: the aggregator ({told}); the sites {sites}, which receive totals."
            for (told, sites), names in lines
        )
        or "Not recorded."
    )


def _measures(report: Report) -> str:
    kinds = dict.fromkeys(study.protection for study in report.studies if study.protection)
    parts = [f"Secure aggregation: {', '.join(kinds) or 'not recorded'}."]
    if any(ledger.payments for ledger in report.ledgers):
        parts.append("Differential privacy with an enforced budget per data set, paid before every use.")
    parts.append("Signed, append-only records at every party, checked for this report.")
    return " ".join(parts)


def article_35(report: Report) -> Section:
    """Impact assessment: description, risks, measures; necessity is the controller's to argue."""
    sums = sum(study.sums for study in report.studies)
    described = (
        "Records are read at the site that holds them and nowhere else. "
        f"{phrases.plural(sums, 'sum')} over sites left; what left the sites lists their fields."
    )
    blocks: tuple[Block, ...] = (
        Form(
            (
                ("Description of the processing (7a)", described),
                ("Purposes and legitimate interests (7a)", None),
                ("Necessity and proportionality (7b)", None),
                ("Views of data subjects or their representatives (9)", None),
            )
        ),
        Heading("Measures that reduce the risk (7d)"),
        Items(tuple(_risk_measures(report))),
        Heading("Risks that remain (7c)"),
        Items(tuple(_residual(report))),
        Form((("Assessment of the remaining risk; is consultation under Art. 36 needed?", None),)),
    )
    return Section("art35", "Impact assessment (GDPR Art. 35)", blocks)


def _risk_measures(report: Report) -> list[str]:
    kinds = together((study.protection or "", study.name) for study in report.studies)
    lines = [f"Study {names}: {phrases.PROTECTION[kind]}." for kind, names in kinds if kind in _HIDES]
    budgets = together(
        (
            f"{phrases.statement(amount)}; limit {phrases.limit(amount)}, counting {phrases.period(amount)}",
            where,
        )
        for ledger in report.ledgers
        for where in [f"{ledger.site} ({ledger.dataset})"]
        for amount in ledger.amounts
    )
    lines += [f"{where}: {stated}." for stated, where in budgets]
    refused = sum(item.what == "budget" for item in report.refusals)
    if refused:
        times = "Once" if refused == 1 else f"{refused} times"
        lines.append(f"Budgets are enforced: {times.lower()} a site refused a use of its data.")
    lines.append("Records of all parties are signed and chained; changes, gaps and older copies are found.")
    return lines


def _residual(report: Report) -> list[str]:
    lines = [
        "The model and the totals remain a statement about the patients as a group; that is their purpose, "
        "and differential privacy does not hide it.",
        "What epsilon leaves open: see the table in the plain words.",
    ]
    stated = {amount.adjacency for ledger in report.ledgers for amount in ledger.amounts}
    if stated & {"add-or-remove-record", "replace-record"}:
        lines.append(
            "A patient with several records is protected less than one record, where the relation is about "
            "one record."
        )
    if "replace-patient" in stated:
        lines.append(
            "Where the relation is replace-patient, all records of a patient at one site are protected "
            "together; of a patient at two sites, only those of each site by themselves."
        )
    lines += [f"Left without noise. {line}." for line in bare_lines(report)]
    without = dict.fromkeys(
        study.name for study in report.studies if study.settings_recorded and study.privacy is None
    )
    lines += [f"Study {name}: {NO_PRIVACY}." for name in without]
    lines += [
        f"Protection {name}: {phrases.PROTECTION_RELIES[name]}"
        for name in dict.fromkeys(study.protection for study in report.studies)
        if name in phrases.PROTECTION_RELIES
    ]
    lines.append("Who took part in which round, and when, is visible to the aggregator.")
    lines.append("These records cannot show uses of the data outside this software.")
    return lines
