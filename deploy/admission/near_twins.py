"""The studies that this hospital has begun, and which of them a new one is a near twin of.

Two studies over the same records can sum the same updates over different hospitals; the difference of two
such sums is then what one hospital contributed. So a person decides about a study with the same data set, by
its name in the policy or by its file, whatever the model: whoever designs a twin chooses in what it differs.
Compared is only what this site knows itself. Results of two studies of statistics can be subtracted whoever
takes part: where they differ so that this tells small numbers, a rule of its own decides.

    STATE/studies/<study>/settings.json   written before a study first works here
    STATE/near-twins/<digest>.json        what is shown of a study that waits for a person
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from secfed.algorithms.statistics.differences import subtractable
from secfed.deploy.admission import kept_offers
from secfed.errors import ConfigError
from secfed.runs.run_folder import study_folder
from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

if TYPE_CHECKING:  # torch, for which nobody who approves a study should wait
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.deploy.policy.sections import DataSet, Studies
    from secfed.site.terms import Terms

WARNING: Final = (
    "If two studies over the same records sum over different hospitals, the difference of the sums can "
    "reveal what one hospital contributed. Compare who takes part, and why."
)
_STRICTEST_FIRST: Final = ("refuse", "ask", "permit")
_SETTINGS_FILE: Final = "settings.json"
_MOST_SHOWN: Final = 20  # of the twins of one study, the newest
_MOST_DIFFERENCES: Final = 8
_MOST_CHARACTERS: Final = 40  # of a value or a list of sites


@dataclass(frozen=True)
class NearTwin:
    """An earlier study that a new one resembles."""

    study: str  # its id
    text: str  # one line for a person; it names other sites and settings, and stays at this site
    subtractable: bool = False  # whether results of the two tell small numbers together

    def rule(self, studies: Studies) -> tuple[str, Literal["ask", "refuse", "permit"]]:
        """The stricter of the rules that are about it, and its key."""
        rules: dict[str, Literal["ask", "refuse", "permit"]] = {"near_twins": studies.near_twins}
        if self.subtractable:
            rules["subtractable"] = studies.subtractable
        return min(rules.items(), key=lambda item: _STRICTEST_FIRST.index(item[1]))


@dataclass(frozen=True)
class _Begun:
    """What is kept of a study that was begun here."""

    study: str
    data_set: str
    sites: tuple[str, ...]
    tables: Mapping[str, Any]
    begun_s: int
    ended_s: int | None = None
    records: str | None = None  # where they are; what earlier versions wrote has none

    @classmethod
    def of(cls, site: SiteFolder, terms: Terms, data: DataSet, now: datetime) -> Self:
        records = f"source {data.section.source}"
        if data.path is not None:
            records = f"file {(site.folder / data.path).resolve()}"  # an absolute path stays what it is
        tables, begun_s = private_files.finite(terms.study.identity()), int(now.timestamp())
        return cls(terms.study_id, data.name, terms.sites, tables, begun_s, records=records)

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            table = json.loads(path.read_bytes())
            return cls(**{**table, "sites": tuple(table["sites"])})
        except (OSError, ValueError, TypeError, KeyError):
            raise ConfigError(
                f"{path}: cannot be read, and new studies are compared with it",
                remedy="restore it from a backup; without it, a near twin of that study is not recognised",
            ) from None

    def write(self, path: Path) -> None:
        private_files.replace(path, private_files.to_json(vars(self), indent=None))

    @property
    def name(self) -> str:
        return self.study[: -(64 + 1)]

    def resembled_by(self, other: Self) -> bool:
        """Whether the other uses the same records, under one name of the policy or two."""
        same = self.data_set == other.data_set or (self.records is not None and self.records == other.records)
        return same and self.study != other.study

    def compared(self, new: Self) -> str:
        """In what a new one resembles this one, and in what not."""
        when = f"begun {_day(self.begun_s)}" if self.ended_s is None else f"ended {_day(self.ended_s)}"
        model, algorithm = (
            new.tables[kind]["name"] if self.tables[kind]["name"] == new.tables[kind]["name"] else None
            for kind in ("model", "algorithm")
        )
        same = f"data set {self.data_set}"
        same = same if model is None else f"{same}, model {model}"
        same = same if algorithm is None else f"{same}, algorithm {algorithm}"
        different = list(self._differences(new)) or ["its name only"]
        shown, more = "; ".join(different[:_MOST_DIFFERENCES]), len(different) - _MOST_DIFFERENCES
        shown = f"{shown} and {more} more" if more > 0 else shown
        told = f"{self.name} ({when}): same {same}; differs in: {shown}"
        together = ", ".join(self.subtractable(new)[:_MOST_DIFFERENCES])
        return f"{told}; results can be subtracted, and differ in: {together}" if together else told

    def subtractable(self, new: Self) -> list[str]:
        """In what its results differ from those of a new one, so that a difference tells small numbers."""
        return subtractable(self.tables, new.tables, self.sites, new.sites)

    def _differences(self, new: Self) -> Iterator[str]:
        gone = [f"-{site}" for site in self.sites if site not in new.sites]
        joined = [f"+{site}" for site in new.sites if site not in self.sites]
        if gone or joined:
            yield f"sites ({_short(' '.join([*gone, *joined]))})"
        before, after = _flat(self.tables), _flat(new.tables)
        for key in sorted(before.keys() | after.keys()):
            if key not in ("study.name", "data.sites") and before.get(key) != after.get(key):
                yield f"{key} ({_short(after.get(key, 'none'))}, was {_short(before.get(key, 'none'))})"


def begin(site: SiteFolder, terms: Terms, data: DataSet, now: datetime) -> None:
    """Keep what later studies are compared with; before a study first works here."""
    path = _settings_of(site.state, terms.study_id)
    if path.exists():
        _check_own(path, terms)
    else:
        _make_folder_of(path)
        _Begun.of(site, terms, data, now).write(path)
    _note_of(site.state, terms.study.digest().hex()).unlink(missing_ok=True)
    kept_offers.forget(site.state, terms.study.digest().hex())


def end(state: Path, study: str, now: datetime) -> None:
    """Note that a study is over."""
    path = _settings_of(state, study)
    if path.exists():
        begun = _Begun.read(path)
        if begun.ended_s is None:
            _Begun(**{**vars(begun), "ended_s": int(now.timestamp())}).write(path)


def begun_studies(state: Path) -> set[str]:
    """Ids of the studies that were begun here; ConfigError if one cannot be read."""
    return {_Begun.read(path).study for path in state.glob(f"studies/*/{_SETTINGS_FILE}")}


def near_twins(site: SiteFolder, terms: Terms, data: DataSet, now: datetime) -> tuple[NearTwin, ...]:
    """Earlier studies that a study resembles, those that can be subtracted first, then the newest.

    None for a study that was begun here already.
    """
    if (own := _settings_of(site.state, terms.study_id)).exists():
        _check_own(own, terms)
        return ()
    new = _Begun.of(site, terms, data, now)
    kept = (_Begun.read(path) for path in site.state.glob(f"studies/*/{_SETTINGS_FILE}"))
    found = sorted((one for one in kept if one.resembled_by(new)), key=lambda one: (-one.begun_s, one.study))
    # Many harmless studies must not push one out of the list that can be subtracted.
    found.sort(key=lambda one: not one.subtractable(new))
    return tuple(
        NearTwin(one.study, one.compared(new), bool(one.subtractable(new))) for one in found[:_MOST_SHOWN]
    )


def fingerprint(twins: Sequence[NearTwin]) -> str:
    """What an approval is bound to: which twins were shown; empty for none."""
    named = "\n".join(sorted(twin.study for twin in twins))
    return hashlib.sha256(named.encode()).hexdigest() if twins else ""


def note(state: Path, digest: str, twins: Sequence[NearTwin]) -> None:
    """Keep what a person is shown of a study that waits; replaces what was kept before."""
    path = _note_of(state, digest)
    if twins:
        _make_folder_of(path)
        private_files.keep(path, private_files.to_json({twin.study: twin.text for twin in twins}))
    else:
        path.unlink(missing_ok=True)


def noted(state: Path, digest: str) -> tuple[NearTwin, ...]:
    """What is kept of a study that waits."""
    path = _note_of(state, digest)
    if not path.exists():
        return ()
    found = private_files.read_json(path, "a list of near twins")
    return tuple(NearTwin(study, str(text)) for study, text in found.items())


def _settings_of(state: Path, study: str) -> Path:

    return study_folder(state, study) / _SETTINGS_FILE


def _check_own(path: Path, terms: Terms) -> None:
    """A folder is named by a part of the digest, which somebody could make two studies share."""
    if _Begun.read(path).study != terms.study_id:
        raise ConfigError(
            f"{path}: belongs to another study, whose digest begins like this one's",
            remedy="ask the study centre to give the study another name",
        )


def _note_of(state: Path, digest: str) -> Path:
    return state / "near-twins" / f"{digest}.json"


def _make_folder_of(path: Path) -> None:
    with unwritable_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tables.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{above}{key}.") if nested else {above + key: json.dumps(value)}
    return flat


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _day(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).date().isoformat()
