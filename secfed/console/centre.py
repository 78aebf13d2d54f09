"""What a study centre's pages show: what the aggregator may see, nothing of a single hospital beyond that.

Read are the consortium's folder and the folders of its runs (``secfed aggregate --out``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secfed.audit.languages import number, say
from secfed.audit.privacy.phrases import printable, settings_digest
from secfed.audit.recognised import known_or_own
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.pki.certificate_checks import Expiry
from secfed.records.roster_file import AGGREGATOR
from secfed.records.transcript import ABORTED, CLOSED, REFUSED, SETTINGS, SUMMED
from secfed.runs.run_folder import RUN_FILE, TRANSCRIPT_FILE

_ERROR: Final = "_error_95"  # ends the name of a metric's error: algorithms/metrics/noise_error.py
_DEPTH: Final = ("", "*/", "*/*/")  # below a folder that was named


@dataclass(frozen=True)
class Metric:
    """A number about the model, with 95 % certainty within ``error`` of the true one (docs/adr/036)."""

    name: str
    value: float | None  # None where the noise drowns it
    error: float | None  # None without noise

    @property
    def text(self) -> str:
        """To three places, in the language of the page."""
        if self.value is None or not math.isfinite(self.value):
            return "–"
        shown = number(self.value, ".3f")
        return shown if self.error is None else f"{shown} ± {number(self.error, '.3f')}"


def metrics_of(written: Mapping[str, Any]) -> list[Metric]:
    """The metrics of a report, each with its error beside it."""
    numbers = {name: _number(value) for name, value in written.items()}
    errors = {name for name in numbers if name.endswith(_ERROR) and name.removesuffix(_ERROR) in numbers}
    return [
        Metric(name.replace("_", " "), value, numbers.get(name + _ERROR))
        for name, value in numbers.items()
        if name not in errors
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass
class Round:
    """One round, as the aggregator's transcript tells it."""

    number: int
    survivors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    sums: int = 0
    given_up: int = 0
    metrics: list[Metric] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Asked, and not in the last sum."""
        return [site for site in self.asked if site not in self.survivors]


@dataclass
class Run:
    """One study that was served, or is."""

    folder: Path
    study: str = ""
    owner: str = ""  # of the transcript
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    final: list[Metric] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Of the study's settings."""
        return settings_digest(self.study) or ""

    @property
    def address(self) -> str:
        """Of its page: there may be several runs of one study."""
        return f"{self.digest}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]}"

    @property
    def title(self) -> str:
        """The study as people name it."""
        return printable(self.study)

    @property
    def is_over(self) -> bool:
        """Whether it came to its end."""
        return bool(self.final or self.closed)

    @property
    def state(self) -> str:
        """Where it is."""
        if self.is_over:
            return say("finished")
        done, of = max(self.rounds, default=0), self.settings.get("rounds")
        if of is not None and done > of:
            return say("closing evaluation")
        return say("round {round} of {rounds} done" if done else "waits for hospitals", round=done, rounds=of)

    @property
    def sites(self) -> list[str]:
        """Everybody who was asked, or took part."""
        return sorted({site for one in self.rounds.values() for site in [*one.asked, *one.survivors]})


@dataclass(frozen=True)
class MemberView:
    """An enrolled hospital."""

    site: str
    certificate: str
    urgency: str
    part: str  # in the newest sum that asked it


class Centre:
    """A consortium and its runs; a consortium is not needed to look at runs."""

    def __init__(self, consortium: Path | None, runs: Sequence[Path]) -> None:
        self.consortium = None if consortium is None else Consortium(consortium)
        self._folders = tuple(runs)

    @property
    def name(self) -> str:
        """The consortium's."""
        return say("Runs") if self.consortium is None else self.consortium.facts.name

    def runs(self) -> list[Run]:
        """Every run, the newest first."""
        found = {
            path.parent.resolve(): path.stat().st_mtime
            for folder in self._folders
            for depth in _DEPTH
            for path in folder.glob(f"{depth}{TRANSCRIPT_FILE}")
        }
        runs = [_read(folder) for folder in sorted(found, key=lambda one: -found[one])]
        return [run for run in runs if run.owner == AGGREGATOR]  # a hospital's own transcript is not for here

    def run(self, address: str) -> Run | None:
        """One run, or the newest of a study by its digest."""
        return next((run for run in self.runs() if address in (run.address, run.digest)), None)

    def members(self) -> list[MemberView]:
        """Every enrolled hospital."""
        if self.consortium is None:
            return []
        runs, now = self.runs(), utc_now()
        views = []
        for site, member in self.consortium.members().current.items():
            expiry = Expiry.of(member.certificate, now)
            views.append(
                MemberView(site, known_or_own(expiry.describe()), str(expiry.urgency), _part(site, runs))
            )
        return views


def _part(site: str, runs: Sequence[Run]) -> str:
    for run in runs:
        for one in sorted(run.rounds.values(), key=lambda one: -one.number):
            if site in one.survivors:
                return say("in the sum of round {round}, {run}", round=one.number, run=run.title)
            if site in one.asked:
                return say("not in the sum of round {round}, {run}", round=one.number, run=run.title)
    return say("in no sum yet")


def _read(folder: Path) -> Run:
    """One folder; a line that is just being written, or cannot be read, is left out."""
    run = Run(folder)
    for line in (folder / TRANSCRIPT_FILE).read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
            kind, body = entry["kind"], dict(entry["body"])
        except (ValueError, KeyError, TypeError):
            continue
        run.study = run.study or str(body.get("study", ""))
        run.owner = run.owner or str(body.get("owner", ""))
        if kind == SETTINGS:
            run.settings = body
        elif kind == SUMMED and type(body.get("round")) is int:
            one = run.rounds.setdefault(body["round"], Round(body["round"]))
            one.survivors = [str(site) for site in body.get("survivors", ())]
            one.asked = [str(site) for site in body.get("cohort", ())]
            one.sums += 1
        elif kind == ABORTED and type(body.get("round")) is int:
            run.rounds.setdefault(body["round"], Round(body["round"])).given_up += 1
        elif kind == REFUSED:
            run.refusals.append({key: body.get(key) for key in ("round", "site", "stage", "reason")})
        run.closed = run.closed or kind == CLOSED
    _add_metrics(run)
    return run


def _add_metrics(run: Run) -> None:
    """Metrics of the model, which are computed from sums."""
    try:
        content = json.loads((run.folder / RUN_FILE).read_bytes())
        run.final = metrics_of(content.get("final") or {})
        for told in content.get("rounds", ()):
            if told["round"] in run.rounds:
                run.rounds[told["round"]].metrics = metrics_of(told.get("metrics") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
