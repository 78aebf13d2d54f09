"""Mutation testing: put one mistake at a time into a copy of the repository, and see that a test notices.

    python -m tests.mutations [--only ID ... | --stale] [--jobs N] [--write docs/mutations.md]

The working tree is never touched but for the table. Exit status: 0 when every mutation is killed, or its
survival explained in the catalogue; 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.catalogue import ROOT, Mutation, catalogue

TIMEOUT_S = 900
_NOT_COPIED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
_NOT_COPIED_FROM_ROOT = {"wheelhouse", "runs"}  # packages may be called so, too
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PYTEST_FAILED = 1


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """What a copy of the repository does without, for ``shutil.copytree``."""
    left_out = shutil.ignore_patterns(*_NOT_COPIED)(folder, names)
    return left_out | (_NOT_COPIED_FROM_ROOT if Path(folder) == ROOT else set())


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation; ``killed_by`` is empty if it survived."""

    mutation: Mutation
    killed_by: str
    seconds: float

    def line(self) -> str:
        fate = f"killed by {self.killed_by}" if self.killed_by else "SURVIVED"
        return f"{self.mutation.id:44} {self.seconds:6.1f} s  {fate}"


class Copy:
    """One copy of the repository, for one mutation at a time."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=_not_copied)
        self._written = 0

    def run(self, mutation: Mutation) -> Outcome:
        """Make the mistake, run its tests until one fails, take it back."""
        path, began = self.root / mutation.file, time.monotonic()
        original = path.read_text()
        try:
            self._write(path, mutation.apply(original))
            status, output = self.pytest(mutation.tests)
        finally:
            self._write(path, original)
        seconds = time.monotonic() - began
        if status is None:
            return Outcome(mutation, f"running out of time ({TIMEOUT_S} s)", seconds)
        if status == 0:
            return Outcome(mutation, "", seconds)
        failed = _FAILED.search(output)
        if status != _PYTEST_FAILED or failed is None:
            raise SystemExit(f"{mutation.id}: pytest ended with status {status}:\n{output[-3000:]}")
        return Outcome(mutation, failed[1].partition("[")[0], seconds)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Python takes a compiled file by the source's second and size: no two texts may share both.
        self._written += 1
        os.utime(path, (self._written, self._written))

    def pytest(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Status and output; the status is None if it took too long."""
        command = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", *tests]
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        # CI: property tests then take the same examples every time.
        environment = {**os.environ, **threads, "PYTHONPATH": str(self.root), "CI": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with whatever processes a test started
            return None, process.communicate()[0]
        return process.returncode, output

    def check(self, mutations: Sequence[Mutation]) -> None:
        """Without a mistake every test passes, or a failure would mean nothing.

        Raises:
            SystemExit: it does not, or the tests do not see this copy.
        """
        found = subprocess.run(
            [sys.executable, "-c", "import secfed; print(secfed.__file__)"],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if not found.startswith(str(self.root)):
            raise SystemExit(f"the tests would import {found.strip()}, not the copy in {self.root}")
        status, output = self.pytest(sorted({test for mutation in mutations for test in mutation.tests}))
        if status != 0:
            raise SystemExit(f"the tests fail without any mutation:\n{output[-3000:]}")


def run_all(mutations: Sequence[Mutation], jobs: int) -> list[Outcome]:
    """Every mutation in a copy of its own job, in any order; outcomes in the order given."""
    with tempfile.TemporaryDirectory(prefix="secfed-mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for job in range(jobs):
            (Path(folder) / str(job)).mkdir()
            copies.put(Copy(Path(folder) / str(job)))

        def one(mutation: Mutation) -> Outcome:
            copy = copies.get()
            try:
                outcome = copy.run(mutation)
            finally:
                copies.put(copy)
            print(outcome.line(), flush=True)
            return outcome

        first = copies.get()
        print(f"{len(mutations)} mutations; first their tests without any ...", flush=True)
        first.check(mutations)
        copies.put(first)
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutations))


def told(path: Path) -> dict[str, str]:
    """The test that killed each mutation, by id, as a table says; none of those that survived."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return {row[1]: row[3].strip("`") for row in rows[1:] if len(row) == 4 and row[3].startswith("`")}


def stale(mutations: Sequence[Mutation], rows: Mapping[str, str]) -> list[Mutation]:
    """Those without a row, or whose killing test is in none of their tests any more."""

    def is_there(mutation: Mutation) -> bool:
        file, _, name = rows.get(mutation.id, "").partition("::")
        texts = [ROOT / test.partition("::")[0] for test in mutation.tests]
        found = [one for text in texts for one in ([text] if text.is_file() else text.rglob("test_*.py"))]
        name = name.rpartition("::")[2]
        return any(one.name == file and f"def {name}(" in one.read_text() for one in found)

    return [one for one in mutations if not is_there(one) and not one.survives]


def table(outcomes: Sequence[Outcome]) -> str:
    """docs/mutations.md: one table, grouped by file."""
    killed = sum(bool(outcome.killed_by) for outcome in outcomes)
    lines = [
        "# Mutations",
        "",
        "Each line is one mistake that would cost privacy, put into the code on purpose, and the first test "
        "that fails because of it. `make mutants` repeats all of them and `make mutants "
        'ARGS="--only NAME"` one; the exact texts are in `tests/mutations/`. This page is what '
        '`make mutants ARGS="--write docs/mutations.md"` wrote.',
        "",
        f"{len(outcomes)} mutations, {killed} killed, {len(outcomes) - killed} survived.",
        "",
        "| file | mutation | what would be lost | first test that fails |",
        "|---|---|---|---|",
    ]
    file = ""
    for outcome in sorted(outcomes, key=lambda one: one.mutation.file):
        one = outcome.mutation
        test = f"`{outcome.killed_by.rpartition('/')[2]}`" if outcome.killed_by else ""
        fate = test or f"none: {one.survives or '?'}"
        lines.append(f"| {'' if one.file == file else f'`{one.file}`'} | {one.id} | {one.why} | {fate} |")
        file = one.file
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these mutations, or all whose id starts so")
    parser.add_argument(
        "--stale", action="store_true", help="those that the table of --write tells nothing of"
    )
    parser.add_argument("--jobs", type=int, default=1, help="copies that work at the same time")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the table here; the rows of mutations not run stay"
    )
    asked = parser.parse_args()
    everything = catalogue()
    rows = told(asked.write) if asked.write else {}
    mutations = [one for one in everything if not asked.only or one.id.startswith(tuple(asked.only))]
    if asked.stale:
        mutations = stale(mutations, rows)
    if not mutations:
        parser.error("there is no such mutation")
    outcomes = run_all(mutations, asked.jobs)
    if asked.write:
        run = {one.mutation.id: one for one in outcomes}
        before = [Outcome(one, rows.get(one.id, ""), 0.0) for one in everything]
        asked.write.write_text(table([run.get(one.mutation.id, one) for one in before]))
    unexplained = [one for one in outcomes if bool(one.killed_by) == bool(one.mutation.survives)]
    for one in unexplained:
        wrong = "killed, but the catalogue says that it survives" if one.killed_by else "no test notices it"
        print(f"{one.mutation.id}: {wrong}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
