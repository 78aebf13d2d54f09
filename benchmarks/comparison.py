"""What the comparisons of methods share: their arguments, their runs as processes, and their pages.

A comparison is a script that does one run in a process of its own (``--one``), leaves one JSON file for it in
a folder, and writes a page from the files, also after an interruption.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from secfed.storage.atomic import write_atomic
from secfed.sweep.jobs import Job, run_jobs
from secfed.sweep.live import watching
from secfed.terminal.consoles import stderr


def arguments(description: str, runs: str) -> argparse.ArgumentParser:
    """The arguments that every comparison has; ``runs`` is the folder of the results."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--runs", default=runs, help="folder of the results")
    parser.add_argument("--write-only", action="store_true", help="run nothing, write the page")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser


def run_missing(asked: argparse.Namespace, jobs: Iterable[Job], write_page: Callable[[], Path]) -> int:
    """Run what is missing, write the page, and name what failed; the exit code."""
    failed: list[Job] = []
    missing = [] if asked.write_only else list(jobs)
    if missing:
        with watching(stderr()) as observer:
            failed = run_jobs(missing, max(1, asked.jobs), observer.progress)
    print(f"wrote {write_page()}")
    for job in failed:
        print(f"failed: {job.title}; its log is in {asked.runs}")
    return int(bool(failed))


def one_run(script: str, runs: Path, one: Sequence[str], result: Path, *options: str) -> Job:
    """The same script, doing one run; its log is beside the result until it has succeeded."""
    command = [sys.executable, str(Path(script).resolve()), "--runs", str(runs), "--one", *one, *options]
    return Job.of_command(" ".join(one), command, result.with_suffix(".log"))


def available(names: Iterable[str], needs: Mapping[str, str], folder: Path) -> Iterator[str]:
    """The data sets whose file is in the data folder; the others are named."""
    for name in names:
        if not needs[name] or (folder / needs[name]).is_file():
            yield name
        else:
            print(f"{name} left out: {needs[name]} is not in the data folder")


def write_result(out: Path, result: Mapping[str, object]) -> None:
    """One JSON file, whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, json.dumps(result, indent=1).encode())


def is_done(out: Path, study: str) -> bool:
    try:
        return bool(json.loads(out.read_text(encoding="utf-8"))["study"] == study)
    except (OSError, ValueError, KeyError):
        return False


def mean_of(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every metric."""
    return {name: math.fsum(one[name] for one in several) / len(several) for name in (several or [{}])[0]}


def mean_and_spread(values: Iterable[float | None], digits: int = 1, scale: float = 100.0) -> str:
    """Mean and standard deviation over seeds, in percent unless ``scale`` says otherwise."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{spread}"
