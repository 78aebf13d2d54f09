"""What the results of two studies would tell together that one study may not.

Two studies of statistics over the same records whose sums are of the same hospitals and records, with the
same cells and the same rules of withholding, tell no more than one study that asks for both. Anything else
leaves sums that can be subtracted: of one hospital, of the records of one filter, or of the records between
two edges, without any rule of withholding. Decided from the settings and members of the studies alone, never
from records; noise in one of the two is enough, since its difference to anything carries it, and is paid for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_Tables = Mapping[str, Any]
_RULES: Final = ("max_records", "min_cell", "min_hospitals", "max_parameter_share")
_NO_MATTER: Final = ("columns", "sites", "path", "patient_column")  # of [data]: records stay the same
_TIMES: Final = "times"  # of curves and Cox models: both sum who leaves at each time
_GRIDS: Final = {  # kind: what is divided, the key that names its columns, and the one that divides them
    "histogram": ("histogram", "column", "bins"),
    "describe": ("describe", "columns", "bins"),
    "kaplan-meier": (_TIMES, "time", "interval"),
    "cox": (_TIMES, "time", "interval"),
}
_SCORES: Final = "scores"  # what a roc divides; those of another model are other cells of the same records
_COMPLETE: Final = ("formula", "column", "columns", "time", "event", "by")  # keys that name columns
_TABLES: Final = ("counts", "describe", "histogram", "roc")  # kinds of whose columns a record may lack some
_UNCHECKED: Final = ("counts", "histogram", "roc")  # kinds whose cells are protected for themselves
_DIVIDES: Final = ("bins", "interval")  # keys that are compared for themselves
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_NO_COLUMNS: Final = frozenset({"C", "I", "np", "log", "log10", "sqrt", "exp"})  # words of a formula
_CATEGORY: Final = re.compile(r"C\(\s*\w+\s*\)")


def subtractable(one: _Tables, other: _Tables, sites: Sequence[str], others: Sequence[str]) -> list[str]:
    """In what sums of two studies differ so that one can be subtracted from the other; empty if in nothing.

    Args:
        one: all tables of a study, defaults included.
        other: the same of a study over the same records.
        sites: members of the first.
        others: members of the second.
    """
    algorithms = one["algorithm"], other["algorithm"]
    if any(table["name"] != "statistics" for table in algorithms):
        return []
    if one.get("privacy") is not None or other.get("privacy") is not None:
        return []
    return [*_populations(one, other, sites, others), *_records(one, other), *_cells(one, other)]


def divided_twice(analyses: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Analyses of one study that divide a column otherwise than an earlier one, and the column."""
    known: dict[tuple[str, str], Any] = {}
    for name, table in analyses.items():
        for where, width in _grids(table):
            if known.setdefault(where, width) != width:
                yield name, where[1]


def penalised_twice(analyses: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Models of one study with or beside a ridge that an earlier one is of the same columns as; and that one.

    Of a linear model every ridge follows from the same sums.
    """
    known: dict[tuple[Any, ...], str] = {}
    for name, table in analyses.items():
        if table["kind"] not in ("glm", "cox") or table.get("family") == "gaussian":
            continue
        sides = (frozenset(_WORD.findall(side)) - _NO_COLUMNS for side in table["formula"].split("~"))
        key = (table["kind"], table.get("family"), table.get("time"), table.get("event"), *sides)
        first = known.setdefault(key, name)
        if first != name and (table["ridge"] or analyses[first]["ridge"]):
            yield name, first


def read_twice(declared: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Columns of one study that read what an earlier one reads, and that one."""
    known: dict[str, str] = {}
    for name, table in declared.items():
        first = known.setdefault(table.get("source") or name, name)
        if first != name:
            yield name, first


def _populations(one: _Tables, other: _Tables, sites: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    if set(sites) != set(others):
        yield "hospitals"
    elif any(_may_lack_one(tables["protection"], len(sites)) for tables in (one, other)):
        yield "hospitals, if one drops out (protection.max_dropouts is not 0)"
    for table, keys in (("data", None), ("algorithm", _RULES)):
        before, after = one[table], other[table]
        for key in sorted(before.keys() | after.keys()) if keys is None else keys:
            if key not in _NO_MATTER and before.get(key) != after.get(key):
                yield f"{table}.{key}"


def _records(one: _Tables, other: _Tables) -> Iterator[str]:
    """Records that lack a value are in no analysis of a study, and may be in one of another."""
    lacking = sorted(_complete(one) ^ _complete(other))
    if lacking:
        yield f"records that lack {', '.join(lacking)}"
    before, after = _computed(one), _computed(other)
    if before != after:
        yield f"what formulas compute ({', '.join(sorted(before ^ after))})"
    checked, later = _checked(one), _checked(other)
    # An analysis is checked with those before it: what comes first in one study comes first in both.
    same = [one == other for one, other in zip(checked, later, strict=False)]
    if not all(same):
        at = same.index(False)
        names = {(checked | later)[key] for key in (*list(checked)[at:], *list(later)[at:])}
        yield f"what is checked together, in this order ({', '.join(sorted(names))})"


def _checked(tables: _Tables) -> dict[str, str]:
    """Analyses that one study checks together, and that are not where each study has some of them."""
    analyses, found = tables["algorithm"]["analyses"], dict[str, str]()
    declared = tables["data"].get("columns") or {}

    def source(match: re.Match[str]) -> str:
        return (declared.get(match[0]) or {}).get("source") or match[0]

    for name, table in analyses.items():
        kept = {key: value for key, value in table.items() if key not in _DIVIDES}
        columns = kept.pop("columns") if table["kind"] == "describe" else [""]
        if table["kind"] in _UNCHECKED:
            continue
        text = json.dumps(kept, sort_keys=True, default=str)
        found |= {_WORD.sub(source, f"{text} {column}"): name for column in columns}
    return found


def _complete(tables: _Tables) -> set[str]:
    """The columns of the file that every record of the study has, as far as settings say."""
    declared = tables["data"].get("columns") or {}
    found: set[str] = set()
    for table in tables["algorithm"]["analyses"].values():
        if table["kind"] in _TABLES:
            continue
        for key in _COMPLETE:
            named = table.get(key) or ()
            names = [named] if isinstance(named, str) else named
            found |= {word for name in names for word in _WORD.findall(name)} - _NO_COLUMNS
    return {(declared.get(name) or {}).get("source") or name for name in found}


def _computed(tables: _Tables) -> set[str]:
    """Formulas that compute: two of them could single out records that none of them does."""
    formulas = [table.get("formula") or "" for table in tables["algorithm"]["analyses"].values()]
    return {" ".join(formula.split()) for formula in formulas if "(" in _CATEGORY.sub("", formula)}


def _may_lack_one(protection: Mapping[str, Any], sites: int) -> bool:
    """Whether a sum can come about without one of the members."""
    least = max(protection.get("min_cohort") or 0, protection.get("threshold") or 0)
    return protection.get("max_dropouts") != 0 and least < sites


def _cells(one: _Tables, other: _Tables) -> Iterator[str]:
    before, after = (_sources(tables["data"].get("columns") or {}) for tables in (one, other))
    for source in sorted(before.keys() & after.keys()):
        if before[source] != after[source]:
            yield f"what is declared of {source}"
    grids = [dict(reversed([*_all_grids(tables)])) for tables in (one, other)]  # of several, the first
    for where in sorted(grids[0].keys() & grids[1].keys()):
        if grids[0][where] != grids[1][where]:
            yield f"cells of {where[1]} ({where[0]})"


def _all_grids(tables: _Tables) -> Iterator[tuple[tuple[str, str], Any]]:
    """Of a study, by the columns of the file: a column can have another name in another study."""
    declared = tables["data"].get("columns") or {}
    for table in tables["algorithm"]["analyses"].values():
        for (kind, column), width in _grids(table):
            if kind == "roc":
                width = width, tables["algorithm"]["analyses"].get(table["of"])
            yield (kind, declared.get(column, {}).get("source") or column), width


def _grids(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    kind = table["kind"]
    if kind == "roc":
        yield (kind, _SCORES), table["bins"]
    if kind not in _GRIDS:
        return
    divided, columns, width = _GRIDS[kind]
    named = table[columns]
    for column in [named] if isinstance(named, str) else named:
        yield (divided, column), table[width]


def _sources(declared: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is declared of every column of the file; units and names say nothing."""
    found: dict[str, list[Any]] = {}
    for name, table in declared.items():
        kept = {key: value for key, value in table.items() if key not in ("unit", "source")}
        found.setdefault(table.get("source") or name, []).append(kept)
    return found
