"""What a study that waits for a person asks for, in words: shown before anybody approves it.

    STATE/offers/<digest>.json            what is kept of a study that waits
    STATE/studies/<study>/settings.json   of one that was begun (``near_twins.py``)

Security: the digest that is approved covers every setting shown here; the purpose is the study centre's word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secfed.crypto.identity import grouped
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

if TYPE_CHECKING:  # torch, for which nobody who approves a study should wait
    from secfed.site.terms import Terms

_COLUMNS: Final = ("site_column", "skew_column", "patient_column", "patient_key")
_SHOWN_ELSEWHERE: Final = ("path", "view", "sites", "columns", "feature_columns", "label_column", *_COLUMNS)
_MOST_BYTES: Final = private_files.MAX_BYTES  # of one that is kept: no study centre fills the disk


@dataclass(frozen=True)
class KeptOffer:
    """Settings of one study, defaults included, and the hospitals that it names."""

    digest: str  # hexadecimal
    tables: Mapping[str, Any]
    sites: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms) -> KeptOffer:
        """What is kept of these terms."""
        return cls(terms.study.digest().hex(), private_files.finite(terms.study.tables()), terms.sites)

    @property
    def columns(self) -> list[str]:
        """Every column that the study names, with what it declares of it; empty if it names none."""
        data = self.tables["data"]
        declared = data.get("columns") or {}
        found = [_declared(name, column) for name, column in declared.items()]
        found += data.get("feature_columns") or []
        if label := data.get("label_column"):
            found.append(f"{label} (label)")
        return found + [f"{data[key]} ({key.replace('_', ' ')})" for key in _COLUMNS if data.get(key)]

    def facts(self) -> list[tuple[str, str]]:
        """Name and value of what a person decides about; values come from the study centre."""
        study, algorithm = self.tables["study"], self.tables["algorithm"]
        model, data = self.tables["model"], self.tables["data"]
        return [
            ("Study", study["name"]),
            ("Digest", grouped(self.digest)),
            ("Purpose", study.get("purpose") or "not stated; ask the study centre"),
            ("Algorithm", f"{algorithm['name']}, {study['rounds']} rounds; {_rest(algorithm)}"),
            ("Model", ", ".join(filter(None, (model["name"], _rest(model))))),
            ("Data", ", ".join(filter(None, (data["name"], data.get("path"), data.get("view"))))),
            ("Columns", "; ".join(self.columns) or "all that the data set has"),
            ("Reading", _rest(data, _SHOWN_ELSEWHERE) or "as usual"),
            ("Partners", f"{len(self.sites)}: {', '.join(self.sites)}"),
            ("Protection", _protection(self.tables["protection"])),
            ("Privacy", _privacy(self.tables.get("privacy"))),
        ]


def keep(state: Path, terms: Terms) -> None:
    """Keep what a person is shown of a study that waits; PolicyRefused if nobody could read so much."""
    offer = KeptOffer.of(terms)
    data = private_files.to_json({"tables": offer.tables, "sites": offer.sites}, indent=None)
    if len(data) > _MOST_BYTES:
        raise PolicyRefused(
            f"study {terms.study.name!r} is not permitted at this site: its settings are {len(data):,} "
            f"bytes, and what a person approves is {_MOST_BYTES:,} at most",
            remedy="shorten its lists of settings",
        )
    path = _path(state, offer.digest)
    with unwritable_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.keep(path, data)


def forget(state: Path, digest: str) -> None:
    """It was begun, and is kept elsewhere."""
    _path(state, digest).unlink(missing_ok=True)


def kept(state: Path, digest: str) -> KeptOffer | None:
    """What is known here of a study that has asked; None of one that an older version held."""
    path = _path(state, digest)
    if not path.exists():
        path = next(state.glob(f"studies/*-{digest[:16]}/settings.json"), path)
    if not path.exists():
        return None
    found = private_files.read_json(path, "a study that asked")
    try:
        offer = KeptOffer(digest, dict(found["tables"]), tuple(map(str, found["sites"])))
        offer.facts()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            f"{path}: cannot be read", remedy="remove it: the agent writes it again when the study asks"
        ) from None
    return offer


def _path(state: Path, digest: str) -> Path:
    return state / "offers" / f"{digest}.json"


def _rest(table: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """The settings of a table without its name, and without those that are off."""
    rest = {
        key: value for key, value in table.items() if key != "name" and value not in (None, "", [], {}, 0.0)
    }
    return ", ".join(f"{key} {_plain(value)}" for key, value in rest.items() if key not in without)


def _declared(name: str, column: Mapping[str, Any]) -> str:
    """A column of a study that declares its columns; its source is what is read."""
    source = f" (read from {column['source']})" if column.get("source") else ""
    if column.get("categories"):
        return f"{name}{source}: {_plain(column['categories'])}{_read_otherwise(column)}"
    unit = f" {column['unit']}" if column.get("unit") else ""
    return f"{name}{source}: from {column.get('low')} to {column.get('high')}{unit}{_read_otherwise(column)}"


def _read_otherwise(column: Mapping[str, Any]) -> str:
    """What a column's values are taken for: a value that counts as missing can leave one patient out."""
    codes = column.get("codes") or {}
    found = [f"{category} is recorded as {_plain(values)}" for category, values in codes.items()]
    if column.get("missing"):
        found.append(f"counts as missing: {_plain(column['missing'])}")
    if column.get("outside", "refuse") != "refuse":
        is_missing = column["outside"] == "missing"
        found.append(
            f"anything else {'counts as missing' if is_missing else 'is moved to the nearest bound'}"
        )
    return f" ({'; '.join(found)})" if found else ""


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _protection(table: Mapping[str, Any]) -> str:
    closed = table["name"] == "encrypted" or table.get("reveal") == "sites"
    readers = "the hospitals only" if closed else "the aggregator"
    if table["name"] == "plain":
        return "NONE: the aggregator receives this hospital's own values"
    return f"{table['name']}; sums over at least {table['min_cohort']} hospitals, read by {readers}"


def _privacy(table: Mapping[str, Any] | None) -> str:
    if table is None:
        return "NONE: no noise, and nothing is paid from a budget"
    unit = Unit(table["unit"])
    relation = table.get("adjacency") or str(PrivacyUnit.default(unit).adjacency)
    of = f" of {table['group_size']} records" if table.get("group_size") else ""
    shared = table.get("noise") == "sum" or unit is Unit.SITE
    noise = "noise in the sum, shared by the hospitals" if shared else "all noise added here"
    leaves = [f"{key} {table[key]}" for key in ("metrics", "weights") if key in table]
    guarantee = f"epsilon {table['epsilon']:g} at delta {table['delta']:g} for every {table['unit']}{of}"
    return "; ".join((f"{guarantee} ({relation})", noise, ", ".join(leaves)))
