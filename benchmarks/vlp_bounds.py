"""Each hospital alone, and all pairs in one place, beside the federated methods of a sweep. For simulations.

    python benchmarks/vlp_bounds.py [examples/vlp-medpix-towers.toml] [--variant fedavg] [--seeds 1]

Takes one variant of the sweep in every panel, and prints, beside it, recall of models of single hospitals
(the mean over them, each measured at all), and of one that had all pairs, in as many steps as all hospitals
take together: in percent, mean over hospitals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import sections
import torch
import vlp_oracle
from comparison import mean_of

from secfed.study.study import Study
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import make_plan, read_study

NAMES = ("recall_at_1", "recall_at_5", "worst_at_1", "distinct_at_1")


def rows(study: Study, panel: str) -> Iterator[list[str]]:
    """Of one study, trained three ways."""
    algorithm = vlp_oracle.algorithm_of(study)
    alone = (vlp_oracle.train_alone(algorithm, site) for site in algorithm.setting.sites)
    trained = {"decentralised": alone, "centralised": iter([vlp_oracle.train_centralised(algorithm)])}
    for name, models in trained.items():
        found = mean_of(
            [
                vlp_oracle.summary(algorithm.per_site(model)) | vlp_oracle.fair_summary(algorithm, model)
                for model in models
            ]
        )
        yield [panel, name, str(study.seed), *(f"{100 * found[key]:.1f}" for key in NAMES)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Decentralised and centralised training beside a sweep.")
    parser.add_argument("sweep", nargs="?", type=Path, default=Path("examples/vlp-medpix-towers.toml"))
    parser.add_argument("--variant", default="fedavg")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    sweep = SweepFile.load(options.sweep)
    table = []
    for run in make_plan(sweep).runs:
        if run.at.get("variant") == options.variant and run.seed in options.seeds:
            study = read_study(run.text, sweep.folder)
            for row in rows(study, str(run.at.get("panel", ""))):
                print(" ".join(row), file=sys.stderr)
                table.append(row)
    if not table:
        print(f"Error: {options.sweep} has no variant {options.variant} with these seeds", file=sys.stderr)
        return 1
    print(sections.table(["panel", "training", "seed", *(one.replace("_", " ") for one in NAMES)], table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
