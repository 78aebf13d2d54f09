"""The plain-language part of a report, under the headings that a data-protection officer works with.

What only the controller knows stays blank. Nothing here is legal advice, and the report says so.

Source: Regulation (EU) 2016/679, Articles 30 and 35(7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secfed.audit.languages import say
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
        title=say("Privacy audit report"),
        subtitle=f"{', '.join(report.sites) or say('no site')} \N{MIDDLE DOT} "
        f"{', '.join(studies) or say('no study')}",
        tone=tone,
        verdict=verdict,
        facts=(
            (say("Made"), phrases.moment(report.made_s)),
            (say("By"), say("{software}, from signed records only", software=_software(report))),
            (say("Folders"), ", ".join(report.folders)),
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
    build = grouped(report.secfed_build[:16])
    return say("secfed {version}, build {build}", version=report.secfed_version, build=build)


def _verdict(check: Verification) -> tuple[doc.Tone, str]:
    """Whether the records may be believed. Only a roster from elsewhere says whose signatures they are."""
    checked = say(
        "{files}, {epsilons} computed again from recorded events.",
        files=phrases.plural(len(check.files), "file"),
        epsilons=phrases.plural(check.recomputed, "epsilon"),
    )
    if check.is_only_unchecked:
        text = (
            "NOT CHECKED: the rosters of {files} are missing. Make the report again with --roster, before "
            "you rely on these numbers."
        )
        return "bad", say(text, files=phrases.plural(check.unchecked, "file"))
    if not check.verified:
        text = "DOES NOT VERIFY: {problems}. Do not rely on these numbers before they are explained."
        return "bad", say(text, problems=phrases.plural(len(check.problems), "problem"))
    if not check.pinned:
        text = "Records are consistent (keys not checked: no pinned roster): {checked}"
        return "warn", say(text, checked=checked)
    return "good", say("Everything verifies: {checked}", checked=checked)


def plain_words(report: Report) -> doc.Section:
    """What was done, and what the numbers mean."""
    texts = phrases.TEXTS["plain"]
    blocks: list[doc.Block] = [doc.Text(texts["training"]), doc.Text(texts["guessing"])]
    paid = ((where, amount) for where, amount in _amounts(report) if amount.whole.adjacency is not None)
    risks = [(_risk(amount), where) for where, amount in paid]
    rows = tuple((where, *cells) for cells, where in releases.together(risks))
    if rows:
        headers = (
            say("Where"),
            say("Guarantee"),
            say("Any conclusion becomes at most"),
            say("Found at most"),
        )
        blocks.append(doc.ReportTable(headers, rows, numbers=(2, 3), weights=(5, 8, 4, 3)))
    blocks.append(doc.Text(texts["found"] if rows else texts["no_epsilon"]))
    outside = releases.together(
        (say("; ").join(releases.uncovered(report, site)), site) for site in report.sites
    )
    lines = tuple(f"{sites} \N{EN DASH} {what}" for what, sites in outside if what)
    if lines:
        blocks.append(doc.Alert("warn", say("The promise does not cover what left without noise"), lines))
    return doc.Section("plain", say("In plain words"), tuple(blocks))


def _amounts(report: Report) -> Iterator[tuple[str, Amount]]:
    """Where every budget stands, with its site and data set."""
    for ledger in report.ledgers:
        for amount in ledger.amounts:
            yield f"{ledger.site} ({ledger.dataset})", amount


def _risk(amount: Amount) -> tuple[str, str, str]:
    whole = amount.whole
    times = say("{factor} times as likely", factor=phrases.factor(whole.spent))
    share = phrases.percent_up(1.0 if amount.found is None else amount.found)
    stated = say(
        "{statement}; counts {period}", statement=phrases.statement(whole), period=phrases.period(whole)
    )
    return stated, times, share


def article_30(report: Report) -> doc.Section:
    """Record of processing activities: what is known, and blanks for the rest."""
    sets = releases.together((ledger.dataset, ledger.site) for ledger in report.ledgers)
    algorithms = sorted({study.algorithm for study in report.studies if study.algorithm})
    texts = phrases.TEXTS["article_30"]
    purpose = (
        "Training a statistical model across sites without moving records; studies: {studies}, algorithm "
        "{algorithms}."
        if algorithms
        else "Training a statistical model across sites without moving records; studies: {studies}."
    )
    studies = ", ".join(releases.study_names(report)) or say("not recorded")
    known = {
        "purpose": say(purpose, studies=studies, algorithms=", ".join(algorithms)),
        "data_sets": say("; ").join(
            say("{data_set} at {sites}", data_set=name, sites=sites) for name, sites in sets
        )
        or say("No ledger in these files."),
        "columns": _columns(report),
        "recipients": _recipients(report),
        "model_recipients": _model_recipients(report),
        "measures": _measures(report),
    }
    form = doc.Form(tuple((label, known.get(key)) for label, key in texts["entries"]))
    blocks = (doc.Text(texts["intro"]), form)
    return doc.Section("art30", say("Record of processing activities (GDPR Art. 30)"), blocks)


def _columns(report: Report) -> str | None:
    """The columns that studies read, where their settings are beside the records."""
    unnamed = "the data source '{source}', which names no columns"
    read = [
        (", ".join(study.columns) or say(unnamed, source=study.source), study.name)
        for study in report.studies
        if study.source is not None
    ]
    return "\n".join(_of_study(names, columns) for columns, names in releases.together(read)) or None


def _of_study(names: str, what: str) -> str:
    return say("Study {study}: {what}.", study=names, what=what)


def _model_recipients(report: Report) -> str | None:
    """Whose transcripts name the finished model; the controller knows who else was given it."""
    holders = (
        (model.recorded_by, study.name)
        for study in report.studies
        for model in study.models
        if model.recorded_by
    )
    lines = [_of_study(names, phrases.parties(who)) for who, names in releases.together(holders)]
    return "\n".join([*lines, say("Others are not recorded.")]) if lines else None


def _recipients(report: Report) -> str:
    known = phrases.PROTECTION
    recipients = [
        (known.get(study.protection or "", say("protection not recorded")), ", ".join(study.roster_sites))
        for study in report.studies
    ]
    named = zip(recipients, (study.name for study in report.studies), strict=True)
    text = "Study {study}: the aggregator ({protection}); the sites {sites}, which receive totals."
    lines = [
        say(text, study=names, protection=protection, sites=sites)
        for (protection, sites), names in releases.together(named)
    ]
    return "\n".join(lines) or say("Not recorded.")


def _measures(report: Report) -> str:
    recorded = [study.protection for study in report.studies if study.protection]
    kinds = ", ".join(dict.fromkeys(kind for kind in recorded if kind in _HIDES))
    none = say("none") if recorded else say("not recorded")
    parts = [say("Secure aggregation: {kinds}.", kinds=kinds or none)]
    if any(ledger.payments and any(one.limit for one in ledger.amounts) for ledger in report.ledgers):
        parts.append(say("Differential privacy with an enforced budget per data set, paid before every use."))
    parts.append(say("Signed, append-only records at every party, checked for this report."))
    return " ".join(parts)


def article_35(report: Report) -> doc.Section:
    """Impact assessment: description, risks, measures; necessity is the controller's to argue."""
    sums = sum(study.sums for study in report.studies)
    described = say(
        "Records are read at the site that holds them and nowhere else. {sums} over sites left; what left "
        "the sites lists their fields.",
        sums=phrases.plural(sums, "sum"),
    )
    texts = phrases.TEXTS["article_35"]
    blank = [(label, None) for label in texts["blank"]]
    blocks: tuple[doc.Block, ...] = (
        doc.Form(((say("Description of the processing (7a)"), described), *blank)),
        doc.Heading(say("Measures that reduce the risk (7d)")),
        doc.Items(tuple(_risk_measures(report))),
        doc.Heading(say("Risks that remain (7c)")),
        doc.Items(tuple(_residual(report))),
        doc.Form(((texts["assessment"], None),)),
    )
    return doc.Section("art35", say("Data protection impact assessment (GDPR Art. 35)"), blocks)


def _risk_measures(report: Report) -> list[str]:
    kinds = releases.together((study.protection or "", study.name) for study in report.studies)
    lines = [_of_study(names, phrases.PROTECTION[kind]) for kind, names in kinds if kind in _HIDES]
    budgets = releases.together(
        (
            say(
                "{statement}; limit {limit}, counting {period}",
                statement=phrases.statement(amount),
                limit=phrases.limit(amount),
                period=phrases.period(amount),
            ),
            where,
        )
        for where, amount in _amounts(report)
    )
    lines += [f"{where}: {stated}." for stated, where in budgets]
    refused = sum(item.what == "budget" for item in report.refusals)
    if refused:
        times = say("once") if refused == 1 else say("{times:,} times", times=refused)
        lines.append(say("Budgets are enforced: {times} a site refused a use of its data.", times=times))
    chained = "Records of all parties are signed and chained; changes, gaps and older copies are found."
    lines.append(say(chained))
    return lines


def _residual(report: Report) -> list[str]:
    texts = phrases.TEXTS["article_35"]
    lines = [texts["group"], say("What epsilon leaves open: see the table in the plain words.")]
    relations = {amount.whole.adjacency for _, amount in _amounts(report)}
    if relations & {"add-or-remove-record", "replace-record"}:
        lines.append(texts["record"])
    if "replace-patient" in relations:
        lines.append(texts["patient"])
    lines += [say("Left without noise. {line}.", line=line) for line in releases.bare_lines(report)]
    without = dict.fromkeys(
        study.name for study in report.studies if study.settings_recorded and study.privacy is None
    )
    lines += [_of_study(name, say(releases.NO_PRIVACY)) for name in without]
    lines += [
        say("Protection {protection}: {text}", protection=name, text=text)
        for name, text in releases.protections_relied_on(report)
    ]
    return lines + list(texts["unseen"])
