"""What a study that waits for a person asks for, in words: shown before anybody approves it.

    STATE/offers/<digest>.json            what is kept of a study that waits
    STATE/studies/<study>/settings.json   of one that was begun (``near_twins.py``)

Security: the digest that is approved covers every setting shown here; the purpose is the study centre's word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secfed.crypto.identity import grouped
from secfed.errors import ConfigError
from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

if TYPE_CHECKING:  # torch, for which nobody who approves a study should wait
    from secfed.site.terms import Terms

_COLUMNS: Final = ("label_column", "feature_columns", "site_column", "patient_column", "patient_key")
_MOST_BYTES: Final = 1 << 18  # of one that is kept: the study centre must not fill the disk


@dataclass(frozen=True)
class KeptOffer:
    """Settings of one study, defaults included, and the hospitals that it names."""

    digest: str  # hexadecimal
    tables: Mapping[str, Any]
    sites: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms) -> KeptOffer:
        """What is kept of these terms."""
        return cls(terms.study.digest().hex(), terms.study.tables(), terms.sites)

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
            ("Data", ", ".join(filter(None, (data["name"], data.get("path"))))),
            ("Columns", _columns(data) or "all that the data set has"),
            ("Partners", f"{len(self.sites)}: {', '.join(self.sites)}"),
            ("Protection", _protection(self.tables["protection"])),
            ("Privacy", _privacy(self.tables.get("privacy"))),
        ]


def keep(state: Path, terms: Terms) -> None:
    """Keep what a person is shown of a study that waits."""
    offer = KeptOffer.of(terms)
    data = private_files.to_json({"tables": offer.tables, "sites": offer.sites})
    if len(data) <= _MOST_BYTES:
        path = _path(state, offer.digest)
        with unwritable_errors(path.parent):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.replace(path, data)


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
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path}: cannot be read", remedy="remove it: the agent writes it again when the study asks"
        ) from None
    return offer


def _path(state: Path, digest: str) -> Path:
    return state / "offers" / f"{digest}.json"


def _rest(table: Mapping[str, Any]) -> str:
    """The settings of a table without its name, and without those that are off."""
    rest = {key: value for key, value in table.items() if key != "name" and value not in (None, "", [], 0.0)}
    return ", ".join(f"{key} {_plain(value)}" for key, value in rest.items())


def _columns(data: Mapping[str, Any]) -> str:
    named = {key: data[key] for key in _COLUMNS if data.get(key)}
    return "; ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in named.items())


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
    leaves = ", ".join(f"{key} {table[key]}" for key in ("metrics", "weights") if key in table)
    return f"epsilon {table['epsilon']:g} at delta {table['delta']:g} for every {table['unit']}; {leaves}"
