"""What every group of sites is worth to those with pairs: Shapley values of recall, from a sweep.

    python benchmarks/fedcola_shapley.py [runs/fedcola-shapley/results.csv] [--score NAME ...]

A coalition is a variant of the sweep whose name has its groups, joined by "-", or "nobody". The worth of one
is the sum of the scores, by default of both recalls at 1; the value of a group is its mean gain over all
orders in which groups can join, and all values together are what the whole coalition gains. Mean and standard
deviation over seeds; of values and their differences the mean with its 95 % interval.

Source: Shapley, "A Value for n-Person Games", 1953; used so in Sun et al., ECCV 2024, arXiv 2404.12467.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

import sections
from kept_runs import OverSeeds

Coalition = frozenset[str]
NOBODY: Final = "nobody"
RECALLS: Final = ("image_to_text_recall_at_1", "text_to_image_recall_at_1")


def shapley(worth: Mapping[Coalition, float], groups: Coalition) -> dict[str, float]:
    """The value of every group; ``worth`` has every coalition of them, also that of nobody."""
    missing = 2 ** len(groups) - len(worth)
    if missing:
        named = ", ".join(sorted(groups))
        raise ValueError(f"{missing} of the {2 ** len(groups)} coalitions of {named} are missing")
    return {
        group: sum(
            (worth[with_it | {group}] - worth[with_it])
            / (len(groups) * math.comb(len(groups) - 1, len(with_it)))
            for with_it in coalitions(groups - {group})
        )
        for group in sorted(groups)
    }


def coalitions(groups: Coalition) -> Iterable[Coalition]:
    """All subsets, the empty one first."""
    return (frozenset(one) for size in range(len(groups) + 1) for one in combinations(sorted(groups), size))


def read(path: Path, scores: Iterable[str]) -> tuple[dict[str, dict[int, dict[Coalition, float]]], Coalition]:
    """Worths in points, by panel and seed, of the runs that are done; and the groups of all runs."""
    found: dict[str, dict[int, dict[Coalition, float]]] = {}
    groups: set[str] = set()
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            name = row["variant"]
            coalition = frozenset(() if name == NOBODY else name.split("-"))
            groups |= coalition
            if row.get("status", "done") == "done":  # kept runs are done
                seeds = found.setdefault(row.get("panel", ""), {})
                worth = 100 * sum(float(row[one]) for one in scores)
                seeds.setdefault(int(row["seed"]), {})[coalition] = worth
    return found, frozenset(groups)


def rows(seeds: Mapping[int, Mapping[Coalition, float]], groups: Coalition) -> list[list[str]]:
    """Worths of coalitions, then values of groups, and their differences."""
    values = [shapley(worth, groups) for worth in seeds.values()]
    worths = [
        [" and ".join(sorted(one)) or NOBODY, spread([worth[one] for worth in seeds.values()]), ""]
        for one in coalitions(groups)
    ]
    told = {f"value of {one}": [value[one] for value in values] for one in sorted(groups)}
    for one, other in combinations(sorted(groups), 2):
        told[f"{one} less {other}"] = [value[one] - value[other] for value in values]
    return worths + [
        [name, "", " ".join(OverSeeds.of(found).interval()) if len(found) > 1 else spread(found)]
        for name, found in told.items()
    ]


def spread(found: list[float]) -> str:
    """Mean, and standard deviation where there are several."""
    mean = f"{statistics.fmean(found):.1f}"
    return mean if len(found) < 2 else f"{mean} ± {statistics.stdev(found):.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Shapley values of groups, from a sweep over coalitions.")
    parser.add_argument("results", nargs="?", type=Path, default=Path("runs/fedcola-shapley/results.csv"))
    parser.add_argument("--score", action="append", metavar="NAME", help="a column; several are added")
    options = parser.parse_args()
    runs, groups = read(options.results, options.score or RECALLS)
    for panel, seeds in runs.items():
        try:
            found = sections.table(["beside sites with pairs", "worth", "Shapley value"], rows(seeds, groups))
        except ValueError as problem:
            print(f"Error: {options.results}, {panel}: {problem}; let the sweep go on", file=sys.stderr)
            return 1
        print(f"\n{panel}, seeds {', '.join(map(str, sorted(seeds)))}\n\n{found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
