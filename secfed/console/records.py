"""The signed records under some folders, as the audit reads them; read again only when a file changed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from secfed.audit.privacy import make_report, phrases
from secfed.audit.privacy.evidence import Report
from secfed.audit.privacy.files import files_below
from secfed.audit.render.html import to_html
from secfed.dp.ledger.ledger import LEDGER, SPENT, UNPROTECTED
from secfed.errors import SecfedError
from secfed.records.transcript import SUMMED
from secfed.records.transcript import TRANSCRIPT as TRANSCRIPTS

_SUFFIXES: Final = (".jsonl", ".json", ".safetensors")
_PAUSES: Final = 4  # as long as the last report took
_HOUR_S: Final = 3600


@dataclass
class Records:
    """Records of one party or several; without any yet, ``why`` says what is missing."""

    folders: Sequence[Path]
    pinned: Sequence[Path] = ()
    owner: str | None = None  # of what is shown, where records of others must not be
    why: str = ""
    _report: Report | None = None
    _seen: object = None
    _next_s: float = 0.0  # by the monotonic clock
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def changed(self) -> None:
        """Something was just written: the next report is a new one."""
        self._next_s = 0.0

    def report(self, *, anew: bool = False) -> Report | None:
        """Everything verified and recomputed; None where there is nothing to report on.

        While a study works, files keep changing: a new report waits a multiple of what the last one took.
        """
        with self._lock:
            began_s = time.monotonic()
            if not anew and began_s < self._next_s:
                return self._report
            seen = int(time.time()) // _HOUR_S, self._files()  # payments leave a period while no file changes
            if anew or seen != self._seen:
                self.why = ""
                try:
                    pinned = [path for path in self.pinned if path.is_file()]
                    self._report = make_report(self.folders, pinned, owner=self.owner)
                except SecfedError as error:
                    self._report, self.why = None, error.message
                self._seen = seen
                self._next_s = time.monotonic() + _PAUSES * (time.monotonic() - began_s)
            return self._report

    def page(self) -> str | None:
        """The audit report as one page."""
        report = self.report()
        return None if report is None else to_html(report)

    def _files(self) -> object:
        found = []
        for folder in self.folders:
            for path in files_below(folder):
                with suppress(FileNotFoundError):  # an agent at work makes files and removes them
                    if path.suffix in _SUFFIXES:
                        state = path.stat()
                        found.append((str(path), state.st_size, state.st_mtime_ns))
        return found


@dataclass(frozen=True)
class Departure:
    """One sum that numbers of this site were in."""

    study: str
    round: int
    exchange: str
    sites: int  # in the sum
    fields: tuple[str, ...]
    noise: bool  # the ledger paid for it
    bare_values: int | None  # numbers without noise; None if the ledger does not say how many
    bare: tuple[str, ...]
    time_s: int | None  # when it was paid for or noted; None if the study has no privacy

    @property
    def what(self) -> str:
        """The fields in words."""
        return phrases.fields(self.fields)


def departures(report: Report, site: str) -> list[tuple[str, list[Departure]]]:
    """What left a site, by day, the newest first; what has no date comes last."""
    kept = [item for item in report.verification.files if item.verified and item.owner == site]
    places: dict[tuple[str, int, str], dict[str, Any]] = {}
    for entry in (entry for item in kept if item.kind == LEDGER.name for entry in _entries(Path(item.file))):
        body = entry["body"]
        if entry["kind"] in (SPENT, UNPROTECTED):
            place = places.setdefault((body["study"], body["round"], body["exchange"]), {})
            place["time_s"] = body["time_s"]
            if entry["kind"] == SPENT:
                place["noise"] = True
            else:
                place["bare"], place["values"] = tuple(body["fields"]), body.get("values")
    found: dict[str, list[Departure]] = {}
    for item in (item for item in kept if item.kind == TRANSCRIPTS.name):
        entries = _entries(Path(item.file))
        study = str(entries[0]["body"]["study"]) if entries else ""
        for body in (entry["body"] for entry in entries if entry["kind"] == SUMMED):
            place = places.get((study, body["round"], body["exchange"]), {})
            one = Departure(
                study,
                body["round"],
                body["exchange"],
                len(body["survivors"]),
                tuple(body.get("fields", ())),
                place.get("noise", False),
                place.get("values"),
                place.get("bare", ()),
                place.get("time_s"),
            )
            found.setdefault(_day(one.time_s), []).append(one)
    newest = sorted(found.items(), key=lambda pair: (pair[0] != "", pair[0]), reverse=True)
    return [(day, sorted(many, key=lambda one: (-(one.time_s or 0), -one.round))) for day, many in newest]


def _day(time_s: int | None) -> str:
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).date().isoformat()


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a chain that was verified; a last line that is being written is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
