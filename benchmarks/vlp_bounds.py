"""Each hospital alone, and all pairs in one place, beside the federated methods of a sweep. For simulations.

    python benchmarks/vlp_bounds.py [examples/vlp-medpix-towers.toml] [--variant fedavg] [--seeds 1] [--keep]

Takes one variant of the sweep in every panel, and prints, beside it, recall of models of single hospitals
(the mean over them, each measured at all), and of one that had all pairs, in as many steps as all hospitals
take together: in percent, mean over hospitals. With ``--keep`` recall goes into docs/results/runs beside the
sweep's own runs, and what is there already is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import kept_runs
import sections
import torch
import vlp_oracle
from comparison import mean_of

from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.study.study import Study
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import make_plan, read_study
from secfed.wire.layout import State

WAYS: Final = ("decentralised", "centralised")
NAMES: Final = ("recall_at_1", "recall_at_5", "worst_at_1", "distinct_at_1")
_MEASURED: Final = ("recall_at_1", "recall_at_5", "recall_at_10", "infonce")  # kept, as of a run of the sweep


def found(study: Study, way: str) -> dict[str, float]:
    """Metrics of a study's pairs, trained in one of the two ways."""
    algorithm = vlp_oracle.algorithm_of(study)
    models: Iterable[State]
    if way == "decentralised":
        models = (vlp_oracle.train_alone(algorithm, site) for site in algorithm.setting.sites)
    else:
        models = [vlp_oracle.train_centralised(algorithm)]
    return mean_of([_metrics(algorithm, model) for model in models])


def _metrics(algorithm: VlpAlgorithm, model: State) -> dict[str, float]:
    by_site = algorithm.per_site(model)
    means = mean_of([one for one in by_site.values() if one])
    return {**means, **vlp_oracle.summary(by_site), **vlp_oracle.fair_summary(algorithm, model)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Decentralised and centralised training beside a sweep.")
    parser.add_argument("sweep", nargs="?", type=Path, default=Path("examples/vlp-medpix-towers.toml"))
    parser.add_argument("--variant", default="fedavg")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sweep, name = SweepFile.load(options.sweep), options.sweep.stem
    runs = [
        (run, way)
        for run in make_plan(sweep).runs
        if run.at.get("variant") == options.variant and run.seed in options.seeds
        for way in WAYS
    ]
    table = []
    for run, way in runs:
        place = {"panel": str(run.at.get("panel", "")), "variant": way, "seed": str(run.seed)}
        if options.keep and any(place.items() <= row.items() for row in kept_runs.kept(name)):
            continue
        clock = time.perf_counter()
        metrics = found(read_study(run.text, sweep.folder), way)
        seconds = time.perf_counter() - clock
        table.append([*place.values(), *(f"{100 * metrics[one]:.1f}" for one in NAMES)])
        print(*table[-1], file=sys.stderr)
        if options.keep:
            scores = {one: f"{metrics[one]:.6g}" for one in _MEASURED if one in metrics}
            new = {**place, **scores, "seconds": f"{seconds:.6g}"}
            kept_runs.write(kept_runs.FOLDER / f"{name}.csv", kept_runs.merged(kept_runs.kept(name), [new]))
    if not runs:
        print(f"Error: {options.sweep} has no variant {options.variant} with these seeds", file=sys.stderr)
        return 1
    print(sections.table(["panel", "training", "seed", *(one.replace("_", " ") for one in NAMES)], table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
