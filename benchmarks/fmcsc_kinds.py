"""Which hospitals' records a finished run of FMCSC clusters well: those with all views, or with one of them.

    python benchmarks/fmcsc_kinds.py RUN [--starts 30]

``RUN`` is a folder of ``secfed simulate --out``, or of one run of a sweep. k-means, over all records in one
place as only a simulation can, of the features h of each kind of hospital by itself, of all, and with the
centres of those with all views for everybody. ACC in percent. Seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import sections
import torch
from fmcsc_features import Floats, features
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.cluster import KMeans

from secfed.algorithms.fmcsc.algorithm import Fmcsc
from secfed.algorithms.metrics.clustering import contingency, scores
from secfed.runs.run_folder import MODEL_FILE
from secfed.study.build import build
from secfed.study.study import Study
from secfed.sweep.store import STUDY_FILE

ALL_VIEWS = "all views"


def kinds_of(algorithm: Fmcsc) -> NDArray[np.str_]:
    """Of every record, in the order of :func:`fmcsc_features.features`, which views its hospital has."""
    found: list[str] = []
    for site in algorithm.setting.sites:
        data = algorithm.site_data(site)
        found += [ALL_VIEWS if len(data.held) > 1 else f"view {data.held[0] + 1} only"] * len(data.labels)
    return np.array(found)


def rows(records: Floats, labels: NDArray[np.int64], kinds: NDArray[np.str_], starts: int) -> list[list[str]]:
    """One per kind, and of all: how many records, ACC by themselves, and with the centres of all views."""
    classes = int(labels.max()) + 1

    def centres(of: NDArray[np.bool_]) -> KMeans:
        return KMeans(classes, n_init=starts, random_state=0).fit(records[of])

    everybody = np.ones(len(kinds), dtype=bool)
    given = centres(kinds == ALL_VIEWS).predict(records)
    table = []
    for name, of in [*((kind, kinds == kind) for kind in sorted(set(kinds))), ("all", everybody)]:
        own = centres(of).labels_
        cells = (_percent(labels[of], found, classes) for found in (own, given[of]))
        table.append([name, str(int(of.sum())), *cells])
    return table


def _percent(labels: NDArray[np.int64], clusters: NDArray[np.int64], classes: int) -> str:
    table = contingency(torch.tensor(clusters), torch.tensor(labels), classes, classes)
    return f"{100 * scores(table)['acc']:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--starts", type=int, default=30, help="of k-means")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    algorithm = build(Study.load(asked.run / STUDY_FILE))
    if not isinstance(algorithm, Fmcsc):
        print(f"Error: {asked.run} is no run of fmcsc", file=sys.stderr)
        return 1
    records, labels, _ = features(algorithm, load_file(asked.run / MODEL_FILE))
    table = rows(records, np.array(labels), kinds_of(algorithm), asked.starts)
    print(
        sections.table(
            ["hospitals with", "records", "ACC by themselves", "by the centres of all views"], table
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
