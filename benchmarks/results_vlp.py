"""Compares methods of federated vision-language pre-training, and writes docs/results/vlp.md.

    python benchmarks/results_vlp.py [--set NAME]... [--only METHOD]... [--seeds 1 2 3] [--jobs 2]

Every run is a process of one thread and leaves one JSON file in the folder RUNS (default ``runs/vlp``);
what is there already, with the same study, is not repeated. The page is written from the files, also after
an interruption, and names what is missing. ``--toy`` runs everything at a size that only tries the code, in
a folder and to a page of its own. MedPix and PneumoniaMNIST are left out where the data folder has none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import sections
import vlp_page
import vlp_runs
from jobs import Job, run_all


def main() -> int:
    """Run what is missing, and write the page."""
    asked = _arguments()
    runs = Path(asked.runs or ("runs/vlp-toy" if asked.toy else "runs/vlp")).resolve()
    if asked.one:
        dataset, method, seed = asked.one
        vlp_runs.run_one(dataset, method, int(seed), _file(runs, dataset, method, int(seed)), toy=asked.toy)
        return 0
    jobs = [] if asked.write_only else list(_jobs(asked, runs))
    failed = run_all(jobs, max(1, asked.jobs)) if jobs else []
    page = runs / "vlp.md" if asked.toy else sections.ROOT / "docs" / "results" / "vlp.md"
    figures = runs / "figures" if asked.toy else sections.FIGURES
    vlp_page.write(runs, page, figures, asked.seeds)
    print(f"wrote {page}")
    for job in failed:
        print(f"failed: {job.name}; see {job.log}")
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
    """What is missing, seed by seed, so that an interrupted comparison has whole seeds."""
    for seed in asked.seeds:
        for dataset in asked.set or vlp_runs.SETS:
            if not vlp_runs.SETS[dataset].is_there:
                print(f"{dataset} left out: {vlp_runs.SETS[dataset].needs} is not in the data folder")
                continue
            for method in asked.only or vlp_runs.ALL:
                both = {**vlp_runs.METHODS, **vlp_runs.WARM, **vlp_runs.ON_TOP}
                extra = method not in both  # on the synthetic set only
                traced = vlp_runs.ALL[method].kind == "trace"
                if (extra and dataset != "chest-synthetic") or (traced and seed != asked.seeds[0]):
                    continue
                out = _file(runs, dataset, method, seed)
                if not vlp_runs.is_done(dataset, method, seed, out, toy=asked.toy):
                    yield Job(
                        f"{dataset} {method} seed {seed}", _command(asked, runs, dataset, method, seed), out
                    )


def _file(runs: Path, dataset: str, method: str, seed: int) -> Path:
    return runs / dataset / f"{method}-seed-{seed}.json"


def _command(asked: argparse.Namespace, runs: Path, dataset: str, method: str, seed: int) -> list[str]:
    """This script, doing one run."""
    script = [sys.executable, str(Path(__file__).resolve()), "--runs", str(runs)]
    return [*script, "--one", dataset, method, str(seed), *(["--toy"] if asked.toy else [])]


if __name__ == "__main__":
    sys.exit(main())
