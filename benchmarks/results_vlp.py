"""Compares methods of federated vision-language pre-training, and writes RUNS/vlp.md with figures.

    python benchmarks/results_vlp.py [--set NAME]... [--only METHOD]... [--seeds 1 2 3] [--jobs 2]

Every run is a process of one thread and leaves one JSON file in the folder RUNS (default ``runs/vlp``);
what is there already, with the same study, is not repeated. The page is written from the files, also after
an interruption, and names what is missing; docs/results/vlp.md has older seeds, too, and people write it.
``--toy`` runs everything at a size that only tries the code, in a folder of its own. MedPix and
PneumoniaMNIST are left out where the data folder has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comparison
import vlp_page
import vlp_runs

from secfed.algorithms.data.folders import data_folder
from secfed.sweep.jobs import Job


def main() -> int:
    parser = comparison.arguments(__doc__, "")
    parser.add_argument("--set", action="append", choices=tuple(vlp_runs.SETS), help="only this data set")
    parser.add_argument("--only", action="append", choices=tuple(vlp_runs.ALL), help="only this method")
    parser.add_argument("--toy", action="store_true", help="a size that only tries the code")
    asked = parser.parse_args()
    runs = Path(asked.runs or ("runs/vlp-toy" if asked.toy else "runs/vlp")).resolve()
    if asked.one:
        dataset, method, seed = asked.one
        vlp_runs.run_one(dataset, method, int(seed), _file(runs, dataset, method, int(seed)), toy=asked.toy)
        return 0
    page, figures = runs / "vlp.md", runs / "figures"
    return comparison.run_missing(
        asked, _jobs(asked, runs), lambda: vlp_page.write(runs, page, figures, asked.seeds)
    )


def _jobs(asked: Any, runs: Path) -> Iterator[Job]:
    """What is missing, seed by seed, so that an interrupted comparison has whole seeds."""
    everywhere = {**vlp_runs.METHODS, **vlp_runs.WARM, **vlp_runs.ON_TOP}  # others: the synthetic set only
    needs = {name: facts.needs for name, facts in vlp_runs.SETS.items()}
    sets = list(comparison.available(asked.set or vlp_runs.SETS, needs, data_folder()))
    options = ["--toy"] if asked.toy else []
    for seed in asked.seeds:
        for dataset in sets:
            for method in asked.only or vlp_runs.ALL:
                once = vlp_runs.ALL[method].kind == "trace" and seed != asked.seeds[0]
                if once or (method not in everywhere and dataset != "chest-synthetic"):
                    continue
                out = _file(runs, dataset, method, seed)
                text = vlp_runs.study_text(dataset, method, seed, out.parent, toy=asked.toy)
                if not comparison.is_done(out, text):
                    one = [dataset, method, str(seed)]
                    yield comparison.one_run(__file__, runs, one, out, *options)


def _file(runs: Path, dataset: str, method: str, seed: int) -> Path:
    return runs / dataset / f"{method}-seed-{seed}.json"


if __name__ == "__main__":
    sys.exit(main())
