"""Sections of a report about what left the sites, with and without noise, and what was refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, TypeVar

from secfed.audit.privacy import phrases
from secfed.audit.privacy.document import Block, Heading, Items, ReportTable, Section, Text, Tone
from secfed.audit.privacy.evidence import Left, Report, StudyFacts

NO_PRIVACY: Final = "no differential privacy: nothing bounds what the sums reveal about a record"

_PRIVACY: Final = {
    "paid": "noise, paid in the ledger",
    "partly-paid": "paid in the ledger for {paid} of {sums} sums; NOTHING BOUNDS THE REST",
    "bare": "WITHOUT NOISE, by the study's choice",
    "none": "NO DIFFERENTIAL PRIVACY",
    "unknown": "not known from these files",
}
_UNBOUNDED: Final = ("none", "partly-paid", "unknown")

K = TypeVar("K", bound=Hashable)


def together(pairs: Iterable[tuple[K, str]]) -> list[tuple[K, str]]:
    """Join the names that share a key: sites of one study mostly do the same."""
    groups: dict[K, list[str]] = {}
    for key, name in pairs:
        known = groups.setdefault(key, [])
        if name not in known:
            known.append(name)
    return [(key, ", ".join(members)) for key, members in groups.items()]


def study_names(report: Report) -> list[str]:
    """Names of the studies, each once."""
    return list(dict.fromkeys(study.name for study in report.studies))


def bare_lines(report: Report) -> list[str]:
    """What left without noise by explicit choice: one line per study, exchange and set of fields."""
    return [
        f"Study {study}, exchange {exchange}, {phrases.rounds(rounds)}: {phrases.fields(fields)} "
        f"\N{EN DASH} {sites}"
        for (study, exchange, fields, rounds), sites in together(
            ((item.study, item.exchange, item.fields, item.rounds), item.site) for item in report.bare
        )
    ]


def uncovered(report: Report, site: str) -> list[str]:
    """What left a site without an epsilon, by study: the other half of every budget's number."""
    found = []
    mine = [item for item in report.bare if item.site == site]
    for study in dict.fromkeys([*(item.study for item in mine), *study_names(report)]):
        bare = dict.fromkeys(name for item in mine if item.study == study for name in item.fields)
        if bare:
            found.append(f"study {study}: {phrases.fields(tuple(bare))} (without noise)")
        lefts = [
            left
            for one in report.studies
            if one.name == study
            for left in one.left
            if left.site == site and left.privacy in _UNBOUNDED
        ]
        sums = sum(left.sums - left.paid for left in lefts)
        if sums:
            known = all(left.privacy == "none" for left in lefts)
            why = "no differential privacy" if known else "no payment in these files"
            found.append(f"study {study}: {phrases.plural(sums, 'sum')} ({why})")
    return found


def what_left(report: Report) -> Section:
    """Per study: protection, and per site what was in its sums."""
    blocks: list[Block] = [
        Text(
            "No record leaves a site. What leaves are the fields below, summed over the sites of a cohort. "
            "The names of all fields are in the appendix."
        )
    ]
    for study in report.studies:
        blocks.append(Heading(f"Study {study.name}", _settings(study)))
        digest = phrases.settings_digest(study.name)
        if digest is not None:
            blocks.append(Text(f"Digest of its settings: {digest}."))
        if study.privacy is not None:
            asked = ", ".join(
                f"{name} = {value}" for name, value in study.privacy.items() if value is not None
            )
            blocks.append(Text(f"Privacy that the study asks for: {asked}."))
        elif study.settings_recorded:
            blocks.append(Text(phrases.sentence(NO_PRIVACY)))
        blocks.append(_left_table(study))
        if study.start is not None:
            blocks.append(Text(_began(study.start, report.studies)))
        blocks.append(_models(study))
    return Section("left", "What left the sites", tuple(blocks), new_page=True)


def _settings(study: StudyFacts) -> str:
    if not study.settings_recorded:
        return "Algorithm, protection and privacy: not recorded."
    told = phrases.PROTECTION.get(study.protection or "", "not recorded")
    planned = f"; {study.rounds} rounds planned over {study.sites} sites" if study.rounds else ""
    return f"Algorithm {study.algorithm or 'not recorded'}{planned}. Protection: {told}."


def _left_table(study: StudyFacts) -> Block:
    if not study.left:
        return Text(
            f"{phrases.plural(study.sums, 'sum')} in the aggregator's transcript. The sites' own transcripts "
            "are not here, so the fields are not known."
        )
    groups = together((_left_cells(left), left.site) for left in study.left)
    noisy = _PRIVACY["paid"]
    tones: list[tuple[int, Tone]] = [
        (number, "warn") for number, (cells, _) in enumerate(groups) if cells[-1] != noisy
    ]
    headers = ("Sites", "Exchange", "Rounds", "Sums", "Sites in each sum", "Fields", "Differential privacy")
    rows = tuple((sites, *cells) for cells, sites in groups)
    return ReportTable(headers, rows, numbers=(3,), weights=(5, 4, 3, 2, 3, 7, 7), tones=tuple(tones))


def _began(start: str, studies: Sequence[StudyFacts]) -> str:
    """Which model training began with, and whether what was spent for it is in this report."""
    told = f"Training began with a finished model, by the SHA-256 of its file {start}. "
    makers = [one.name for one in studies if start in [model.sha256 for model in one.models]]
    if makers:
        return (
            told + f"It is what study {' and '.join(makers)} came to, so what that study spent is behind it."
        )
    return told + (
        "No study in this report came to it. What was spent on records for it is behind this study's model, "
        "too, and is in this report only as far as the ledgers here paid for it."
    )


def _models(study: StudyFacts) -> Block:
    """Which model the study came to, and who says so."""
    if not study.models:
        return Text(
            "No transcript here names the model that the study came to: it is not over, or an older version "
            "ran it, or those who hold the model are not among these files."
        )
    rows = tuple(
        (
            model.sha256,
            phrases.after_round(model.round),
            ", ".join(model.recorded_by) or phrases.NOTHING,
            "; ".join(model.files) or "not here",
        )
        for model in study.models
    )
    headers = ("Model, by the SHA-256 of its file", "Which", "Recorded by", "Files here that are this model")
    return ReportTable(headers, rows, digests=(0, 3), weights=(7, 3, 4, 5))


def _left_cells(left: Left) -> tuple[str, ...]:
    low, high = left.cohort
    privacy = _PRIVACY[left.privacy].format(paid=left.paid, sums=left.sums)
    if left.bare and left.privacy != "bare":
        privacy += f"; WITHOUT NOISE: {phrases.fields(left.bare)}"
    return (
        left.exchange,
        phrases.dashes(left.rounds),
        str(left.sums),
        str(low) if low == high else f"{low}\N{EN DASH}{high}",
        phrases.fields(left.fields),
        privacy,
    )


def refusals(report: Report) -> Section:
    """Every refusal, from ledgers and transcripts."""
    kinds = {"budget": "budget", "message": "request refused", "round": "round given up"}
    rows = tuple(
        (
            kinds[item.what],
            item.site or "aggregator",
            item.study,
            phrases.NOTHING if item.round is None else str(item.round),
            phrases.day(item.time_s),
            "; ".join(part.rstrip(".") for part in (item.stage, item.reason) if part),
            f"{item.file}, line {item.line}",
        )
        for item in report.refusals
    )
    if not rows:
        return Section("refusals", "Refusals", (Text("No refusal is recorded."),))
    intro = Text(
        "A refusal is the protection at work: nothing was released. A site whose budget refuses leaves the "
        "round as if it had lost its connection; the aggregator's transcript then records that as well."
    )
    headers = ("Kind", "Site", "Study", "Round", "Date", "What and why", "Recorded in")
    table = ReportTable(headers, rows, numbers=(3,), digests=(6,), weights=(4, 4, 3, 3, 4, 8, 7))
    return Section("refusals", "Refusals", (intro, table))


def names_appendix(report: Report) -> Section:
    """Every field, by study and exchange."""
    found = dict.fromkeys(
        (study.name, left.exchange, left.fields) for study in report.studies for left in study.left
    )
    rows = tuple(
        (study, exchange, str(len(layout)), ", ".join(layout) or "not recorded")
        for study, exchange, layout in found
    )
    headers = ("Study", "Exchange", "Fields", "Names")
    table = ReportTable(headers, rows, numbers=(2,), digests=(3,), weights=(3, 3, 2, 12))
    return Section("fields", "Appendix: names of fields", (table if rows else Text("None recorded."),))


def glossary() -> Section:
    """Words of the field that the report cannot do without."""
    relations = "; ".join(f"{name}: {text}" for name, text in phrases.ADJACENCY.items())
    items = (
        "Epsilon, delta: how much the released results may depend on one record (or one site); smaller is "
        "better. Delta bounds the exceptions.",
        f"Relation of neighbours: which change to the data the guarantee hides. {relations}.",
        "Accountant: the calculation that turns noise into epsilon. rdp: Renyi divergences; prv: privacy "
        "random variables; pld: privacy loss distributions. All give upper bounds.",
        "Noise multiplier: the standard deviation of the noise, divided by the largest length that one "
        "record's (or site's) share may have.",
        "Ledger: a site's signed list of every payment from a data set's budget, written before each use.",
        "Transcript: a party's signed list of the sums it took part in.",
        "Cohort: the sites asked for one sum. Survivors: those whose values are in it.",
        "Decision log: a site's signed list of what its people and its agent decided.",
        "Head: the hash of the last entry of such a list; it commits to everything before.",
    )
    return Section("glossary", "Appendix: words", (Items(items),))
