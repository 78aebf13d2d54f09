"""The folder that a run writes: which file is called what, making it ready, and run.json.

``run.json``, ``model.safetensors``, ``roster.json``, ``transcript.jsonl``, ``figures/*.svg`` and, in a
simulation, ``study.json``, ``sites/<site>/transcript.jsonl`` and ``sites/<site>/ledger-<data set>.jsonl``;
while a simulation runs, also ``unfinished``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from secfed.errors import ConfigError, TranscriptError
from secfed.records.chain_file import ChainFile
from secfed.records.roster_file import ROSTER_FILE
from secfed.runs.run_report import RunReport
from secfed.storage.atomic import PART, sync_folder, unwritable_errors, write_atomic

RUN_FILE = "run.json"
STUDY_FILE = "study.json"  # of a simulation: the settings of which a study's id has the digest
MODEL_FILE = "model.safetensors"
TRANSCRIPT_FILE = "transcript.jsonl"
DECISIONS_FILE = "decisions.jsonl"  # of an agent; no simulation writes one
STUDIES_FOLDER = "studies"  # in the state folder of a hospital
UNFINISHED_FILE = "unfinished"  # of a simulation: with what it goes on after a kill; gone when it is over
UNFINISHED_SUMS = "unfinished-sums"  # likewise: sums that only the sites can open
FIGURES_FOLDER = "figures"
FIGURES = ("metrics", "participation", "cost")  # of figures.py
FROM_BACKUP = "from-backup"  # of a hospital: what is known after its memory was lost
AUDIT_REPORT = "audit-report.html"  # as the documents name it; no run writes it

_UNSAFE = re.compile(r"[%/\\\x00-\x1f\x7f]|^\.")
ANOTHER_FOLDER = "name another folder"
_MARKS = (RUN_FILE, ROSTER_FILE, TRANSCRIPT_FILE)  # at least one is in every folder that a simulation wrote


def sites_folder(out: Path) -> Path:
    """Where the sites' own files are, in a simulation."""
    return out / "sites"


def site_folder(out: Path, site: str) -> Path:
    """Where one site's files are; any site id gives one plain folder name, never a path.

    Site ids come from data (a table's column), so ``../x`` must not lead anywhere.
    """
    return sites_folder(out) / _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", site)


def site_of(folder: Path) -> str:
    """The site whose folder this is; inverse of :func:`site_folder`."""
    return unquote(folder.name)


def ledger_file(folder: Path, dataset: str) -> Path:
    """The ledger of one data set in a site's folder; any name gives one plain file name."""
    return folder / f"ledger-{_UNSAFE.sub(lambda found: f'%{ord(found[0]):02X}', dataset)}.jsonl"


def study_folder(state: Path, study: str) -> Path:
    """Where a hospital keeps the files of a study; ``study`` is its id (``secfed/study/limits.py``)."""
    return state / STUDIES_FOLDER / study[: -(64 - 16)]  # the name and 16 digits of the digest


def dataset_of(path: Path) -> str:
    """The data set whose ledger this is; inverse of :func:`ledger_file`."""
    return unquote(path.stem.removeprefix("ledger-"))


def is_unfinished(out: Path, study_id: str) -> bool:
    """Whether a simulation of this study was killed there: begun, without an end, and run by nobody now."""
    if (out / RUN_FILE).exists() or _begun(out) != (study_id, True):
        return False
    try:
        with ChainFile(out / TRANSCRIPT_FILE, synced=False):  # nobody else is writing
            return True
    except TranscriptError:
        return False


def _begun(out: Path) -> tuple[str, bool] | None:
    """The id of the study whose transcript is there, and whether it was simulated; None before it says so."""
    try:
        with (out / TRANSCRIPT_FILE).open("rb") as stream:
            opened, settings = (json.loads(stream.readline())["body"] for _ in range(2))
        return str(opened["study"]), settings.get("simulated") is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _holds_a_simulation(out: Path) -> bool:
    """Whether a simulation wrote this folder: its transcript says so, or there is nothing else in it.

    A consortium, a hospital and a run between hospitals have files of the same names.
    """
    if not any((out / mark).is_file() for mark in _MARKS):
        return False
    if (begun := _begun(out)) is not None:
        return begun[1]
    ours = {sites_folder(out), out / FIGURES_FOLDER, out / UNFINISHED_SUMS, *files_of(out)}
    return ours.issuperset(out.iterdir())


def prepare(out: Path, *, overwrite: bool | None = None) -> None:
    """Create the folder, or make room in an old one.

    Overwriting removes, by name, the files that a run writes and ``audit-report.html``, which tells about
    the run that is replaced; nothing else. None: a command that has no such option.

    ConfigError: not a folder; or not empty and ``overwrite`` is off; or not the folder of a simulation.
    """
    if holds_a_run(out, overwrite=overwrite):
        remove_files(list(files_of(out)))
    make_folder(out)


def holds_a_run(out: Path, *, overwrite: bool | None) -> bool:
    """Whether there is something to replace; a ConfigError as :func:`prepare`."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: not a folder.", remedy=ANOTHER_FOLDER)
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not overwrite:
        replaces = ", or add --overwrite to replace the simulation in it" if overwrite is False else ""
        raise ConfigError(f"--out {out}: the folder is not empty.", remedy=ANOTHER_FOLDER + replaces)
    if not _holds_a_simulation(out):
        raise ConfigError(
            f"--out {out}: --overwrite replaces an earlier simulation, and this folder holds none.",
            remedy=ANOTHER_FOLDER,
        )
    if (out / TRANSCRIPT_FILE).is_file():
        try:
            with ChainFile(out / TRANSCRIPT_FILE, synced=False):
                pass  # nobody else is writing
        except TranscriptError as error:
            raise ConfigError(f"--out {out}: {error.message}", remedy=ANOTHER_FOLDER) from None
    return True


def make_folder(folder: Path) -> None:
    """Make a folder of a run; a ConfigError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {folder}: {os.strerror(error.errno or 0)}.", remedy="name a folder that can be written"
        ) from None


def refuse_folders(files: Iterable[Path]) -> None:
    """ConfigError if one of the files that a run writes is a folder."""
    for path in files:
        if path.is_dir() and not path.is_symlink():
            raise ConfigError(
                f"{path}: is a folder where a run writes a file; nothing was removed.",
                remedy="move it away, or name another --out",
            )


def remove_files(files: Sequence[Path]) -> None:
    """Remove these files, or none if one of them is a folder."""
    refuse_folders(files)
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: {os.strerror(error.errno or 0)}.", remedy="name a folder that can be written"
            ) from None


def files_of(out: Path) -> Iterator[Path]:
    """Every file of an earlier run, and the audit report on it."""
    names = MODEL_FILE, RUN_FILE, STUDY_FILE, TRANSCRIPT_FILE, ROSTER_FILE, AUDIT_REPORT
    yield from (out / name for name in names)
    yield from sites_folder(out).glob(f"*/{TRANSCRIPT_FILE}")
    yield from sites_folder(out).glob("*/ledger-*.jsonl*")  # with its lock file
    yield from (out / FIGURES_FOLDER / f"{name}.svg" for name in FIGURES)
    yield from unfinished_files(out)


def unfinished_files(out: Path) -> Iterator[Path]:
    """What a simulation that was killed is gone on with."""
    yield from (out / UNFINISHED_FILE, out / f"{UNFINISHED_FILE}{PART}")
    yield from (out / UNFINISHED_SUMS).glob("*.sum*")


def remove_unfinished(out: Path) -> None:
    """Remove these files, and their folder if nothing else is in it."""
    remove_files(list(unfinished_files(out)))
    with suppress(OSError):
        (out / UNFINISHED_SUMS).rmdir()


def run_json(report: RunReport) -> str:
    """The text of run.json, newline included."""
    return json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_run(report: RunReport, out: Path) -> None:
    """Write run.json whole or not at all; ConfigError where that fails."""
    with unwritable_errors(out / RUN_FILE):
        write_atomic(out / RUN_FILE, run_json(report).encode())
        sync_folder(out)
