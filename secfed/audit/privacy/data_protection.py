"""The plain-language part of a report, under the headings that a data-protection officer works with.

What only the controller knows stays blank. Nothing here is legal advice, and the report says so.

Source: Regulation (EU) 2016/679, Articles 30 and 35(7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases, releases
from secfed.audit.privacy.budgets import payments_appendix, spending, trust
from secfed.audit.privacy.evidence import Amount, Report, Verification
from secfed.audit.privacy.first_page import banner, summary
from secfed.audit.privacy.record_sections import decided, files_appendix, verification
from secfed.config.protections import TRAITS
from secfed.crypto.identity import grouped

_HIDES: Final = [name for name, traits in TRAITS.items() if traits.hides_sites]


def build(report: Report) -> doc.Document:
    """The whole document, from facts only."""
    check = report.verification
    studies = releases.study_names(report)
    tone, verdict = _verdict(check)
    return doc.Document(
        title="Privacy audit report",
        subtitle=f"{', '.join(report.sites) or 'no site'} \N{MIDDLE DOT} {', '.join(studies) or 'no study'}",
        tone=tone,
        verdict=verdict,
        facts=(
            ("Made", phrases.moment(report.made_s)),
            ("By", f"{_software(report)}, from signed records only"),
            ("Folders", ", ".join(report.folders)),
        ),
        sections=(
            summary(report),
            plain_words(report),
            spending(report),
            releases.what_left(report),
            article_30(report),
            article_35(report),
            releases.refusals(report),
            decided(report),
            trust(report),
            verification(report),
            payments_appendix(report),
            files_appendix(report),
            releases.names_appendix(report),
            releases.glossary(),
        ),
        banner=banner(report),
    )


def _software(report: Report) -> str:
    return f"secfed {report.secfed_version}, build {grouped(report.secfed_build[:16])}"


def _verdict(check: Verification) -> tuple[doc.Tone, str]:
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


def plain_words(report: Report) -> doc.Section:
    """What was done, and what the numbers mean."""
    texts = phrases.TEXTS["plain"]
    blocks: list[doc.Block] = [doc.Text(texts["training"]), doc.Text(texts["guessing"])]
    risks = [(_risk(amount), where) for where, amount in _amounts(report) if amount.adjacency is not None]
    rows = tuple((where, *cells) for cells, where in releases.together(risks))
    if rows:
        headers = ("Where", "Guarantee", "Any conclusion becomes more likely at most", "Found at most")
        blocks.append(doc.ReportTable(headers, rows, numbers=(2, 3), weights=(5, 8, 4, 3)))
    blocks.append(doc.Text(texts["found"] if rows else texts["no_epsilon"]))
    outside = releases.together(("; ".join(releases.uncovered(report, site)), site) for site in report.sites)
    lines = tuple(f"{sites} \N{EN DASH} {what}" for what, sites in outside if what)
    if lines:
        blocks.append(doc.Alert("warn", "The promise does not cover what left without noise", lines))
    return doc.Section("plain", "In plain words", tuple(blocks))


def _amounts(report: Report) -> Iterator[tuple[str, Amount]]:
    """Where every budget stands, with its site and data set."""
    for ledger in report.ledgers:
        for amount in ledger.amounts:
            yield f"{ledger.site} ({ledger.dataset})", amount


def _risk(amount: Amount) -> tuple[str, str, str]:
    times = f"{phrases.factor(amount.spent)} times"
    share = phrases.percent_up(1.0 if amount.found is None else amount.found)
    return f"{phrases.statement(amount)}; counts {phrases.period(amount)}", times, share


def article_30(report: Report) -> doc.Section:
    """Record of processing activities: what is known, and blanks for the rest."""
    sets = releases.together((ledger.dataset, ledger.site) for ledger in report.ledgers)
    algorithms = sorted({study.algorithm for study in report.studies if study.algorithm})
    by = f", algorithm {', '.join(algorithms)}" if algorithms else ""
    texts = phrases.TEXTS["article_30"]
    known = {
        "purpose": "Training a statistical model across sites without moving records; studies: "
        f"{', '.join(releases.study_names(report)) or 'not recorded'}{by}.",
        "data_sets": "; ".join(f"{name} at {sites}" for name, sites in sets) or "No ledger in these files.",
        "columns": _columns(report),
        "recipients": _recipients(report),
        "model_recipients": _model_recipients(report),
        "measures": _measures(report),
    }
    form = doc.Form(tuple((label, known.get(key)) for label, key in texts["entries"]))
    blocks = (doc.Text(texts["intro"]), form)
    return doc.Section("art30", "Record of processing (GDPR Art. 30)", blocks)


def _columns(report: Report) -> str | None:
    """The columns that studies read, where their settings are beside the records."""
    read = [
        (", ".join(study.columns) or f"the data source {study.source!r}, which names no columns", study.name)
        for study in report.studies
        if study.source is not None
    ]
    return "\n".join(f"Study {names}: {columns}." for columns, names in releases.together(read)) or None


def _model_recipients(report: Report) -> str | None:
    """Whose transcripts name the finished model; the controller knows who else was given it."""
    holders = (
        (model.recorded_by, study.name)
        for study in report.studies
        for model in study.models
        if model.recorded_by
    )
    lines = [f"Study {names}: {', '.join(who)}." for who, names in releases.together(holders)]
    return "\n".join([*lines, "Others are not recorded."]) if lines else None


def _recipients(report: Report) -> str:
    known = phrases.PROTECTION
    recipients = [
        (known.get(study.protection or "", "protection not recorded"), ", ".join(study.roster_sites))
        for study in report.studies
    ]
    named = zip(recipients, (study.name for study in report.studies), strict=True)
    lines = [
        f"Study {names}: the aggregator ({protection}); the sites {sites}, which receive totals."
        for (protection, sites), names in releases.together(named)
    ]
    return "\n".join(lines) or "Not recorded."


def _measures(report: Report) -> str:
    kinds = dict.fromkeys(study.protection for study in report.studies if study.protection)
    parts = [f"Secure aggregation: {', '.join(kinds) or 'not recorded'}."]
    if any(ledger.payments for ledger in report.ledgers):
        parts.append("Differential privacy with an enforced budget per data set, paid before every use.")
    parts.append("Signed, append-only records at every party, checked for this report.")
    return " ".join(parts)


def article_35(report: Report) -> doc.Section:
    """Impact assessment: description, risks, measures; necessity is the controller's to argue."""
    sums = sum(study.sums for study in report.studies)
    described = (
        "Records are read at the site that holds them and nowhere else. "
        f"{phrases.plural(sums, 'sum')} over sites left; what left the sites lists their fields."
    )
    texts = phrases.TEXTS["article_35"]
    blank = [(label, None) for label in texts["blank"]]
    blocks: tuple[doc.Block, ...] = (
        doc.Form((("Description of the processing (7a)", described), *blank)),
        doc.Heading("Measures that reduce the risk (7d)"),
        doc.Items(tuple(_risk_measures(report))),
        doc.Heading("Risks that remain (7c)"),
        doc.Items(tuple(_residual(report))),
        doc.Form(((texts["assessment"], None),)),
    )
    return doc.Section("art35", "Impact assessment (GDPR Art. 35)", blocks)


def _risk_measures(report: Report) -> list[str]:
    kinds = releases.together((study.protection or "", study.name) for study in report.studies)
    lines = [f"Study {names}: {phrases.PROTECTION[kind]}." for kind, names in kinds if kind in _HIDES]
    budgets = releases.together(
        (
            f"{phrases.statement(amount)}; limit {phrases.limit(amount)}, counting {phrases.period(amount)}",
            where,
        )
        for where, amount in _amounts(report)
    )
    lines += [f"{where}: {stated}." for stated, where in budgets]
    refused = sum(item.what == "budget" for item in report.refusals)
    if refused:
        times = "once" if refused == 1 else f"{refused} times"
        lines.append(f"Budgets are enforced: {times} a site refused a use of its data.")
    lines.append("Records of all parties are signed and chained; changes, gaps and older copies are found.")
    return lines


def _residual(report: Report) -> list[str]:
    texts = phrases.TEXTS["article_35"]
    lines = [texts["group"], "What epsilon leaves open: see the table in the plain words."]
    relations = {amount.adjacency for _, amount in _amounts(report)}
    if relations & {"add-or-remove-record", "replace-record"}:
        lines.append(texts["record"])
    if "replace-patient" in relations:
        lines.append(texts["patient"])
    lines += [f"Left without noise. {line}." for line in releases.bare_lines(report)]
    without = dict.fromkeys(
        study.name for study in report.studies if study.settings_recorded and study.privacy is None
    )
    lines += [f"Study {name}: {releases.NO_PRIVACY}." for name in without]
    lines += [f"Protection {name}: {text}" for name, text in releases.protections_relied_on(report)]
    return lines + list(texts["unseen"])
