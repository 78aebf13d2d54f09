"""Compares methods of federated vision-language pre-training, and writes docs/results/vlp.md.

    python benchmarks/results_vlp.py [--set NAME]... [--only METHOD]... [--seeds 1 2 3] [--jobs 2]

Every run is a process of one thread and leaves one JSON file in the folder RUNS (default ``runs/vlp``);
what is there already, with the same study, is not repeated. The page is written from the files, also after
an interruption, and names what is missing. ``--toy`` runs everything at a size that only tries the code, in
a folder and to a page of its own. MedPix and PneumoniaMNIST are left out where the data folder has none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import sections
import vlp_page
import vlp_runs

_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Job = tuple[str, str, int, Path]


def main() -> int:
    """Run what is missing, and write the page."""
    asked = _arguments()
    runs = Path(asked.runs or ("runs/vlp-toy" if asked.toy else "runs/vlp")).resolve()
    if asked.one:
        dataset, method, seed = asked.one
        vlp_runs.run_one(dataset, method, int(seed), _file(runs, dataset, method, int(seed)), toy=asked.toy)
        return 0
    jobs = [] if asked.write_only else [job for job in _jobs(asked, runs) if not _done(job, asked.toy)]
    failed = _run_all(jobs, runs, max(1, asked.jobs), toy=asked.toy) if jobs else []
    page = runs / "vlp.md" if asked.toy else sections.ROOT / "docs" / "results" / "vlp.md"
    figures = runs / "figures" if asked.toy else sections.FIGURES
    vlp_page.write(runs, page, figures, asked.seeds)
    print(f"wrote {page}")
    for dataset, method, seed, out in failed:
        print(f"failed: {dataset} {method} seed {seed}; see {out.with_suffix('.log')}")
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", choices=tuple(vlp_runs.SETS), help="only this data set")
    parser.add_argument("--only", action="append", choices=tuple(vlp_runs.ALL), help="only this method")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--runs", help="folder of the results")
    parser.add_argument("--toy", action="store_true", help="a size that only tries the code")
    parser.add_argument("--write-only", action="store_true", help="run nothing, write the page")
    parser.add_argument("--one", nargs=3, metavar=("SET", "METHOD", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _jobs(asked: argparse.Namespace, runs: Path) -> Iterator[Job]:
    """Seed by seed, so that an interrupted comparison has whole seeds."""
    for seed in asked.seeds:
        for dataset in asked.set or vlp_runs.SETS:
            if not vlp_runs.SETS[dataset].is_there:
                print(f"{dataset} left out: {vlp_runs.SETS[dataset].needs} is not in the data folder")
                continue
            for method in asked.only or vlp_runs.ALL:
                extra = method not in {**vlp_runs.METHODS, **vlp_runs.ON_TOP}  # on the synthetic set only
                traced = vlp_runs.ALL[method].kind == "trace"
                if (extra and dataset != "chest-synthetic") or (traced and seed != asked.seeds[0]):
                    continue
                yield dataset, method, seed, _file(runs, dataset, method, seed)


def _file(runs: Path, dataset: str, method: str, seed: int) -> Path:
    return runs / dataset / f"{method}-seed-{seed}.json"


def _done(job: Job, toy: bool) -> bool:
    dataset, method, seed, out = job
    return vlp_runs.is_done(dataset, method, seed, out, toy=toy)


def _run_all(jobs: list[Job], runs: Path, at_a_time: int, *, toy: bool) -> list[Job]:
    """Run jobs as processes; returns those that failed."""
    failed = []
    with _progress(len(jobs)) as show, ThreadPoolExecutor(at_a_time) as pool:
        waiting = {pool.submit(_run, job, runs, toy, show): job for job in jobs}
        try:
            for finished in as_completed(waiting):
                if finished.result():
                    failed.append(waiting[finished])
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _run(job: Job, runs: Path, toy: bool, show: vlp_page.Show) -> int:
    dataset, method, seed, out = job
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--runs",
        str(runs),
        "--one",
        dataset,
        method,
        str(seed),
    ]
    name = f"{dataset} {method} seed {seed}"
    show(name, state="started")
    with out.with_suffix(".log").open("wb") as log:
        done = subprocess.run(
            [*command, *(["--toy"] if toy else [])],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_THREADS},
            check=False,
        )
    if not done.returncode:
        out.with_suffix(".log").unlink()
    show(name, state="failed" if done.returncode else "done")
    return done.returncode


@contextmanager
def _progress(total: int) -> Iterator[vlp_page.Show]:
    """A bar, and below it what runs now."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        overall, running = bar.add_task("runs", total=total), {}

        def show(name: str, *, state: str) -> None:
            if state == "started":
                running[name] = bar.add_task(name, total=None)
                return
            bar.remove_task(running.pop(name))
            bar.advance(overall)
            bar.console.print(f"{name}: {state}")

        yield show


if __name__ == "__main__":
    sys.exit(main())
