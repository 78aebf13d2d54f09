"""The folder of a sweep on disk, and why a sweep can be killed at any moment.

``sweep.toml``, ``results.csv``   the sweep file; one row per run, replaced whole whenever a run finishes
``summary.md``, ``figure.*``      written at the end
``runs/<name>/``, ``.part/``      a finished run; one that is running, was interrupted, or failed

A run's folder gets its final name as its last step, in one rename. Whatever does not end in ``.part`` is
therefore complete, and is found again by the digest of its study, not by its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secfed.errors import ConfigError
from secfed.runs.run_folder import RUN_FILE
from secfed.storage import flock
from secfed.storage.atomic import PART, write_atomic

SWEEP_FILE: Final = "sweep.toml"
RESULTS_FILE: Final = "results.csv"
SUMMARY_FILE: Final = "summary.md"
FIGURE_FILES: Final = ("figure.svg", "figure.png")
RUNS_FOLDER: Final = "runs"
STUDY_FILE: Final = "study.toml"
LOG_FILE: Final = "log.txt"
FINISHED_FILE: Final = "finished.json"
FAILURE_FILE: Final = "failure.json"

_LOCK_FILE = ".lock"


@dataclass(frozen=True)
class FinishedRun:
    """A run that is complete on disk, in ``runs/FOLDER``."""

    folder: str
    seconds: float
    metrics: Mapping[str, float | None]  # of the final model; None where a metric is undefined
    epsilon_spent: float | None = None  # the most that a site spent; None without differential privacy
    aborted_rounds: int = 0  # rounds that were given up
    zeroed: int = 0  # contributions of which something failed and added zeros


class Store:
    """The folder of one sweep, held by one process at a time. Made by :func:`opened`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.runs = out / RUNS_FOLDER
        self._finished: dict[str, FinishedRun] = {}
        if self.runs.is_dir():
            for folder in sorted(self.runs.iterdir()):
                self._note(folder)

    def finished(self, digest: str) -> FinishedRun | None:
        """The finished run of the study with this digest, if there is one."""
        return self._finished.get(digest)

    def begin(self, name: str, study: str) -> Path:
        """An empty folder for a run; what an interrupted, failed or damaged attempt left there is removed."""
        part = self.runs / f"{name}{PART}"
        for old in (part, self.runs / name):
            if old.exists():
                shutil.rmtree(old)
        part.mkdir(parents=True)
        (part / STUDY_FILE).write_text(study, encoding="utf-8")
        return part

    def collect(self, name: str, digest: str) -> FinishedRun | None:
        """Look at a run that has just ended; None if it left no complete result."""
        self._note(self.runs / name)
        return self._finished.get(digest)

    def failure(self, name: str) -> tuple[str, str]:
        """Error class and message that a failed run left behind; both empty if it left none."""
        failure = _json(self.runs / f"{name}{PART}" / FAILURE_FILE)
        return str(failure.get("error", "")), str(failure.get("message", ""))

    def _note(self, folder: Path) -> None:
        if folder.name.endswith(PART):
            return
        about, run = _json(folder / FINISHED_FILE), _json(folder / RUN_FILE)
        digest, seconds, final = about.get("study_digest"), about.get("seconds"), run.get("final")
        if isinstance(digest, str) and isinstance(seconds, float | int) and isinstance(final, dict):
            if _aborted(run) == len(run.get("rounds", ())) > 0:
                return  # of a version that took it for a result
            self._finished[digest] = FinishedRun(
                folder.name, float(seconds), final, _spent(run), _aborted(run), _zeroed(run)
            )


@contextmanager
def opened(out: Path, text: str) -> Iterator[Store]:
    """Hold a sweep's folder, new or begun, with the sweep file in it; ConfigError if it is in use."""
    check(out)
    out.mkdir(parents=True, exist_ok=True)
    with (out / _LOCK_FILE).open("a") as lock:
        try:
            flock.lock(lock.fileno())
        except BlockingIOError:
            message = f"--out {out}: another sweep is at work in this folder"
            raise ConfigError(message, remedy="wait until it ends, or name another folder") from None
        write_atomic(out / SWEEP_FILE, text.encode())
        yield Store(out)


def check(out: Path) -> None:
    """Refuse a folder that holds something else than a sweep."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: not a folder.", remedy="name another folder")
    begun = {_LOCK_FILE, f"{SWEEP_FILE}{PART}"}  # all that a sweep killed at its very beginning leaves
    holds_more = out.is_dir() and any(entry.name not in begun for entry in out.iterdir())
    if holds_more and not (out / SWEEP_FILE).is_file():
        message = f"--out {out}: the folder is not empty and holds no sweep."
        raise ConfigError(message, remedy="name another folder")


def _spent(run: Mapping[str, Any]) -> float | None:
    """The largest epsilon over the sites of run.json's ``privacy``."""
    privacy = run.get("privacy")
    sites = privacy.get("sites") if isinstance(privacy, dict) else None
    spent = [site.get("epsilon") for site in sites.values()] if isinstance(sites, dict) else []
    return max((float(value) for value in spent if isinstance(value, float | int)), default=None)


def _aborted(run: Mapping[str, Any]) -> int:
    """How many rounds of run.json were given up."""
    return sum(bool(one.get("aborted")) for one in run.get("rounds", ()))


def _zeroed(run: Mapping[str, Any]) -> int:
    """How many contributions lack something, over the sites of run.json's ``zeroed``."""
    return sum(int(one["contributions"]) for one in run.get("zeroed", {}).values())


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, unreadable or cut short: no finished run
        return {}
    return content if isinstance(content, dict) else {}
