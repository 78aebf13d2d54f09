"""Sections of a report about what left the sites, with and without noise, and what was refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, TypeVar

from secfed.audit.privacy import phrases
from secfed.audit.privacy.document import Block, Column, Heading, Items, ReportTable, Section, Text, table
from secfed.audit.privacy.evidence import Left, ModelFacts, RefusalFact, Report, StudyFacts

NO_PRIVACY: Final = "no differential privacy: nothing bounds what the sums reveal about a record"
_EVALUATION: Final = "eval/"  # metrics are computed on patients that are held out
_UNBOUNDED: Final = ("none", "partly-paid", "unknown")
_REFUSALS: Final = {"budget": "budget", "message": "request refused", "round": "round given up"}
_TEXTS: Final = phrases.TEXTS["left"]

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
    """What left without noise as the sites noted it, in numbers: one line per study and set of fields."""
    times: dict[tuple[str, str, tuple[str, ...], int | None], int] = {}
    for item in report.bare:
        key = (item.site, item.study, item.fields, item.values)
        times[key] = times.get(key, 0) + item.times
    return [
        f"Study {study}: {_counted(fields, values, count)} \N{EN DASH} {sites}"
        for (study, fields, values, count), sites in together(
            ((study, fields, values, count), site) for (site, study, fields, values), count in times.items()
        )
    ]


def _counted(fields: tuple[str, ...], values: int | None, times: int) -> str:
    how_many = "exact numbers" if values is None else phrases.plural(values, "exact number")
    how_often = "once" if times == 1 else f"{times:,} times"
    about = "held-out patients" if all(name.startswith(_EVALUATION) for name in fields) else "records"
    return f"{how_many}, {how_often}, about {about}, in sums over hospitals: {phrases.fields(fields)}"


def uncovered(report: Report, site: str) -> list[str]:
    """What left a site without an epsilon, by study: the other half of every budget's number."""
    found = []
    mine = [item for item in report.bare if item.site == site]
    for study in dict.fromkeys([*(item.study for item in mine), *study_names(report)]):
        bare = dict.fromkeys(name for item in mine if item.study == study for name in item.fields)
        if bare:
            found.append(f"study {study}: {phrases.fields(tuple(bare))} (without noise)")
        every = [left for one in report.studies if one.name == study for left in one.left]
        lefts = [left for left in every if left.site == site and left.privacy in _UNBOUNDED]
        sums = sum(left.sums - left.paid for left in lefts)
        if sums:
            known = all(left.privacy == "none" for left in lefts)
            why = "no differential privacy" if known else "no payment in these files"
            found.append(f"study {study}: {phrases.plural(sums, 'sum')} ({why})")
    return found


def protections_relied_on(report: Report) -> list[tuple[str, str]]:
    """The protections of these studies, each with what it relies on."""
    names = dict.fromkeys(study.protection or "" for study in report.studies)
    return [(name, phrases.PROTECTION_RELIES[name]) for name in names if name in phrases.PROTECTION_RELIES]


def what_left(report: Report) -> Section:
    """Per study: protection, and per site what was in its sums."""
    blocks: list[Block] = [Text(_TEXTS["intro"])]
    for study in report.studies:
        blocks.append(Heading(f"Study {study.name}", _settings(study)))
        digest = phrases.settings_digest(study.name)
        if digest is not None:
            blocks.append(Text(f"Digest of its settings: {digest}."))
        if study.privacy is not None:
            stated = (f"{key} = {value}" for key, value in study.privacy.items() if value is not None)
            settings = ", ".join(stated)
            blocks.append(Text(f"Privacy that the study asks for: {settings}."))
        elif study.settings_recorded:
            blocks.append(Text(phrases.sentence(NO_PRIVACY)))
        blocks.append(_left_table(study))
        if study.start is not None:
            blocks.append(Text(_began(study.start, report.studies)))
        blocks.append(table(_MODEL_COLUMNS, study.models) if study.models else Text(_TEXTS["no_model"]))
    return Section("left", "What left the sites", tuple(blocks))


def _settings(study: StudyFacts) -> str:
    if not study.settings_recorded:
        return "Algorithm, protection and privacy: not recorded."
    protection = phrases.PROTECTION.get(study.protection or "", "not recorded")
    planned = f"; {study.rounds} rounds planned over {study.sites} sites" if study.rounds else ""
    return f"Algorithm {study.algorithm or 'not recorded'}{planned}. Protection: {protection}."


def _left_table(study: StudyFacts) -> Block:
    if not study.left:
        return Text(
            f"{phrases.plural(study.sums, 'sum')} in the aggregator's transcript. The sites' own transcripts "
            "are not here, so the fields are not known."
        )
    groups = together((tuple(one.cell(left) for one in _LEFT_COLUMNS), left.site) for left in study.left)
    noisy = _TEXTS["privacy"]["paid"]
    return ReportTable(
        headers=("Sites", *(column.header for column in _LEFT_COLUMNS)),
        rows=tuple((sites, *cells) for cells, sites in groups),
        numbers=(3,),
        weights=(5, *(column.weight for column in _LEFT_COLUMNS)),
        tones=tuple((number, "warn") for number, (cells, _) in enumerate(groups) if cells[-1] != noisy),
    )


def _began(start: str, studies: Sequence[StudyFacts]) -> str:
    """Which model training began with, and whether what was spent for it is in this report."""
    began = f"Training began with a finished model, by the SHA-256 of its file {start}."
    makers = [one.name for one in studies if start in [model.sha256 for model in one.models]]
    if not makers:
        return f"{began} {_TEXTS['unknown_start']}"
    return f"{began} It is what study {' and '.join(makers)} came to, so what that study spent is behind it."


def _noise(left: Left) -> str:
    privacy: str = _TEXTS["privacy"][left.privacy].format(paid=left.paid, sums=left.sums)
    if left.bare and left.privacy != "bare":
        privacy += f"; WITHOUT NOISE: {phrases.fields(left.bare)}"
    return privacy


def _refusal_reason(item: RefusalFact) -> str:
    return "; ".join(part.rstrip(".") for part in (item.stage, item.reason) if part)


_LEFT_COLUMNS: list[Column[Left]] = [
    Column("Exchange", 4, lambda left: left.exchange),
    Column("Rounds", 3, lambda left: phrases.dashes(left.rounds)),
    Column("Sums", 2, lambda left: str(left.sums)),
    Column("Sites in each sum", 3, lambda left: "\N{EN DASH}".join(map(str, dict.fromkeys(left.cohort)))),
    Column("Fields", 7, lambda left: phrases.fields(left.fields)),
    Column("Differential privacy", 7, _noise),
]
_MODEL_COLUMNS: list[Column[ModelFacts]] = [
    Column("Model, by the SHA-256 of its file", 7, lambda model: model.sha256, "digest"),
    Column("Which", 3, lambda model: phrases.after_round(model.round)),
    Column("Recorded by", 4, lambda model: ", ".join(model.recorded_by) or phrases.NOTHING),
    Column("Files here that are this model", 5, lambda model: "; ".join(model.files) or "not here", "digest"),
]
_REFUSAL_COLUMNS: list[Column[RefusalFact]] = [
    Column("Kind", 4, lambda item: _REFUSALS[item.what]),
    Column("Site", 4, lambda item: item.site or "aggregator"),
    Column("Study", 3, lambda item: item.study),
    Column("Round", 3, lambda item: phrases.NOTHING if item.round is None else str(item.round), "number"),
    Column("Date", 4, lambda item: phrases.day(item.time_s)),
    Column("What and why", 8, _refusal_reason),
    Column("Recorded in", 7, lambda item: f"{item.file}, line {item.line}", "digest"),
]
_FIELD_COLUMNS: list[Column[tuple[str, str, tuple[str, ...]]]] = [
    Column("Study", 3, lambda row: row[0]),
    Column("Exchange", 3, lambda row: row[1]),
    Column("Fields", 2, lambda row: str(len(row[2])), "number"),
    Column("Names", 12, lambda row: ", ".join(row[2]) or "not recorded", "digest"),
]


def refusals(report: Report) -> Section:
    """Every refusal, from ledgers and transcripts."""
    blocks: tuple[Block, ...] = (Text("No refusal is recorded."),)
    if report.refusals:
        blocks = (Text(_TEXTS["refusals"]), table(_REFUSAL_COLUMNS, report.refusals))
    return Section("refusals", "Refusals", blocks)


def names_appendix(report: Report) -> Section:
    """Every field, by study and exchange."""
    left = ((study.name, one) for study in report.studies for one in study.left)
    layouts = dict.fromkeys((name, one.exchange, one.fields) for name, one in left)
    block = table(_FIELD_COLUMNS, layouts) if layouts else Text("None recorded.")
    return Section("fields", "Appendix: names of fields", (block,), folded=True)


def glossary() -> Section:
    """Words of the field that the report cannot do without."""
    relations = "; ".join(f"{name}: {text}" for name, text in phrases.ADJACENCY.items())
    items = tuple(item.format(relations=relations) for item in phrases.TEXTS["glossary"]["items"])
    return Section("glossary", "Appendix: words", (Items(items),), folded=True)
