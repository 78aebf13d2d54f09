"""Sections of a report about what left the sites, with and without noise, and what was refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from secfed.audit.languages import again, say
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
        say("Study {study}: {what} – {sites}", study=study, what=_counted(fields, values, count), sites=sites)
        for (study, fields, values, count), sites in together(
            ((study, fields, values, count), site) for (site, study, fields, values), count in times.items()
        )
    ]


def _counted(fields: tuple[str, ...], values: int | None, times: int) -> str:
    how_many = say("exact numbers") if values is None else phrases.plural(values, "exact number")
    how_often = say("once") if times == 1 else say("{times:,} times", times=times)
    text = (
        "{how_many}, {how_often}, about held-out patients, in sums over hospitals: {fields}"
        if all(name.startswith(_EVALUATION) for name in fields)
        else "{how_many}, {how_often}, about records, in sums over hospitals: {fields}"
    )
    return say(text, how_many=how_many, how_often=how_often, fields=phrases.fields(fields))


def uncovered(report: Report, site: str) -> list[str]:
    """What left a site without an epsilon, by study: the other half of every budget's number."""
    found = []
    mine = [item for item in report.bare if item.site == site]
    for study in dict.fromkeys([*(item.study for item in mine), *study_names(report)]):
        bare = dict.fromkeys(name for item in mine if item.study == study for name in item.fields)
        if bare:
            what = phrases.fields(tuple(bare))
            found.append(say("study {study}: {fields} (without noise)", study=study, fields=what))
        every = [left for one in report.studies if one.name == study for left in one.left]
        lefts = [left for left in every if left.site == site and left.privacy in _UNBOUNDED]
        sums = sum(left.sums - left.paid for left in lefts)
        if sums:
            known = all(left.privacy == "none" for left in lefts)
            text = (
                "study {study}: {sums} (no differential privacy)"
                if known
                else "study {study}: {sums} (no payment in these files)"
            )
            found.append(say(text, study=study, sums=phrases.plural(sums, "sum")))
    return found


def protections_relied_on(report: Report) -> list[tuple[str, str]]:
    """The protections of these studies, each with what it relies on."""
    names = dict.fromkeys(study.protection or "" for study in report.studies)
    return [(name, phrases.PROTECTION_RELIES[name]) for name in names if name in phrases.PROTECTION_RELIES]


def in_effect(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings of ``[privacy]`` without those that do nothing in this study.

    Where no ``noise`` was chosen, a record holds the distribution under that name, as it once was called.
    """
    shown = {key: value for key, value in privacy.items() if value is not None}
    if shown.get("noise") in ("skellam", "discrete-gaussian"):
        shown["distribution"] = shown.pop("noise")
    if shown.get("unit") != "site" and shown.setdefault("noise", "site") != "sum":
        shown.pop("distribution", None)
    if shown.get("metrics") != "private":
        shown.pop("metrics_share", None)
    return dict(sorted(shown.items()))


def what_left(report: Report) -> Section:
    """Per study: protection, and per site what was in its sums."""
    blocks: list[Block] = [Text(_TEXTS["intro"])]
    for study in report.studies:
        blocks.append(Heading(say("Study {study}", study=study.name), _settings(study)))
        digest = phrases.settings_digest(study.name)
        if digest is not None:
            blocks.append(Text(say("Digest of its settings: {digest}.", digest=digest)))
        if study.privacy is not None:
            stated = (f"{key} = {value}" for key, value in in_effect(study.privacy).items())
            text = say("Privacy that the study asks for: {settings}.", settings=", ".join(stated))
            blocks.append(Text(text))
        elif study.settings_recorded:
            blocks.append(Text(phrases.sentence(say(NO_PRIVACY))))
        if study.withheld:
            blocks.append(Text(again(study.withheld)))
        blocks.append(_left_table(study))
        if study.start is not None:
            blocks.append(Text(_began(study.start, report.studies)))
        blocks.append(table(_MODEL_COLUMNS, study.models) if study.models else Text(_TEXTS["no_model"]))
    return Section("left", say("What left the sites"), tuple(blocks))


def _settings(study: StudyFacts) -> str:
    if not study.settings_recorded:
        return say("Algorithm, protection and privacy: not recorded.")
    unknown = say("not recorded")
    text = (
        "Algorithm {algorithm}; {rounds} planned over {sites}. Protection: {protection}."
        if study.rounds
        else "Algorithm {algorithm}. Protection: {protection}."
    )
    return say(
        text,
        algorithm=study.algorithm or unknown,
        rounds=phrases.plural(study.rounds or 0, "round"),
        sites=phrases.plural(study.sites or 0, "site"),
        protection=phrases.PROTECTION.get(study.protection or "", unknown),
    )


def _left_table(study: StudyFacts) -> Block:
    if not study.left:
        text = (
            "{sums} in the aggregator's transcript. The sites' own transcripts are not here, so the "
            "fields are not known."
        )
        return Text(say(text, sums=phrases.plural(study.sums, "sum")))
    groups = together((tuple(one.cell(left) for one in _LEFT_COLUMNS), left.site) for left in study.left)
    noisy = _TEXTS["privacy"]["paid"]
    return ReportTable(
        headers=(say("Sites"), *(say(column.header) for column in _LEFT_COLUMNS)),
        rows=tuple((sites, *cells) for cells, sites in groups),
        numbers=(3,),
        weights=(5, *(column.weight for column in _LEFT_COLUMNS)),
        tones=tuple((place, "warn") for place, (cells, _) in enumerate(groups) if cells[-1] != noisy),
    )


def _began(start: str, studies: Sequence[StudyFacts]) -> str:
    """Which model training began with, and whether what was spent for it is in this report."""
    began = say("Training began with a finished model, by the SHA-256 of its file {digest}.", digest=start)
    makers = [one.name for one in studies if start in [model.sha256 for model in one.models]]
    if not makers:
        return f"{began} {_TEXTS['unknown_start']}"
    behind = "It is what study {names} came to, so what that study spent is behind it."
    return f"{began} {say(behind, names=say(' and ').join(makers))}"


def _noise(left: Left) -> str:
    privacy: str = _TEXTS["privacy"][left.privacy].format(paid=left.paid, sums=left.sums)
    if left.bare and left.privacy != "bare":
        privacy += "; " + say("WITHOUT NOISE: {fields}", fields=phrases.fields(left.bare))
    return privacy


def _refusal_reason(item: RefusalFact) -> str:
    return say("; ").join(str(again(part)).rstrip(".") for part in (item.stage, item.reason) if part)


def _files_here(model: ModelFacts) -> str:
    return say("; ").join(model.files) or say("not here")


def _recorded_in(item: RefusalFact) -> str:
    return say("{file}, line {line}", file=item.file, line=item.line)


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
    Column("Recorded by", 4, lambda model: phrases.parties(model.recorded_by) or phrases.NOTHING),
    Column("Files here that are this model", 5, _files_here, "digest"),
]
_REFUSAL_COLUMNS: list[Column[RefusalFact]] = [
    Column("Kind", 4, lambda item: say(_REFUSALS[item.what])),
    Column("Site", 4, lambda item: item.site or say("aggregator")),
    Column("Study", 3, lambda item: item.study),
    Column("Round", 3, lambda item: phrases.NOTHING if item.round is None else str(item.round), "number"),
    Column("Date", 4, lambda item: phrases.day(item.time_s)),
    Column("What and why", 8, _refusal_reason),
    Column("Recorded in", 7, _recorded_in, "digest"),
]
_FIELD_COLUMNS: list[Column[tuple[str, str, tuple[str, ...]]]] = [
    Column("Study", 3, lambda row: row[0]),
    Column("Exchange", 3, lambda row: row[1]),
    Column("Fields", 2, lambda row: str(len(row[2])), "number"),
    Column("Names", 12, lambda row: ", ".join(row[2]) or say("not recorded"), "digest"),
]


def refusals(report: Report) -> Section:
    """Every refusal, from ledgers and transcripts."""
    blocks: tuple[Block, ...] = (Text(say("No refusal is recorded.")),)
    if report.refusals:
        blocks = (Text(_TEXTS["refusals"]), table(_REFUSAL_COLUMNS, report.refusals))
    return Section("refusals", say("Refusals"), blocks)


def names_appendix(report: Report) -> Section:
    """Every field, by study and exchange."""
    left = ((study.name, one) for study in report.studies for one in study.left)
    layouts = dict.fromkeys((name, one.exchange, one.fields) for name, one in left)
    block = table(_FIELD_COLUMNS, layouts) if layouts else Text(say("None recorded."))
    return Section("fields", say("Appendix: names of fields"), (block,), folded=True)


def glossary() -> Section:
    """Words of the field that the report cannot do without."""
    relations = say("; ").join(f"{name}: {text}" for name, text in phrases.ADJACENCY.items())
    items = tuple(item.format(relations=relations) for item in phrases.TEXTS["glossary"]["items"])
    return Section("glossary", say("Appendix: words"), (Items(items),), folded=True)
