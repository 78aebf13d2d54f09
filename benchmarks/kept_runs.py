"""Runs behind the pages of results, a line each, kept in docs/results/runs: a long comparison can then grow.

    python benchmarks/kept_runs.py keep runs/fedcola-data-sets         # what a sweep has finished
    python benchmarks/kept_runs.py keep runs/vlp/chest-synthetic       # or results_vlp.py
    python benchmarks/kept_runs.py show fedcola-data-sets [--score NAME ...] [--beside [PANEL/]VARIANT]

``keep`` adds finished runs to the file of that name; a run with the panel, variant and seed of an older line
replaces it, so a changed study wants another name. ``show`` prints mean and standard deviation over seeds,
and with ``--beside`` the difference to one variant with the same seeds (of the same panel, if none is
named), its 95 % interval (Student's), and whether that lies above zero, below it, or has it inside (open).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sections
from comparison import mean_and_spread
from scipy.stats import t as student

Row = dict[str, str]
Place = tuple[str, str]  # panel and variant

FOLDER: Final = sections.ROOT / "docs" / "results" / "runs"
_PLACE: Final = ("panel", "variant", "seed")
_ABOUT_A_RUN: Final = {
    "status", "error", "message", "note", "folder", "study_digest", "epsilon_spent", "aborted_rounds",
    "zeroed_contributions", "seconds",
}  # fmt: skip
_BESIDE: Final = ("distortion", "distortion_own", "training_cpu_s")  # what a run has beside its scores
_FEWEST: Final = 3  # with two seeds a chance agreement makes an interval of any width
_EQUAL: Final = 1e-9


def of_sweep(table: Path) -> Iterator[Row]:
    """The finished runs of a sweep's table, with scores and seconds; axes become part of the variant."""
    with table.open(encoding="utf-8", newline="") as stream:
        lines = csv.DictReader(stream)
        columns = list(lines.fieldnames or ())
        axes = [name for name in columns[: columns.index("seed")] if name not in _PLACE]
        for row in lines:
            if row["status"] == "done":
                place = _place(row)
                for axis in axes:
                    place["variant"] = at_axis(place["variant"], axis, row[axis])
                beside = {*_PLACE, *_ABOUT_A_RUN, *axes}
                scores = {name: _short(row[name]) for name in row if name not in beside}
                yield {**place, **scores, "seconds": _short(row["seconds"])}


def at_axis(variant: str, axis: str, value: str) -> str:
    """The name under which a variant's runs with a value of an axis are kept."""
    return f"{variant} {axis}={value}".strip()


def of_comparison(folder: Path) -> Iterator[Row]:
    """The runs of ``results_vlp.py`` in a folder; the data set is the panel.

    With R@1 of every site, and how far it lies behind a model of all pairs, if that was trained there, too.
    """
    for path in sorted(folder.glob("*-seed-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        if "scores" in run:  # a trace has none
            scores = {**run["scores"], **{name: run[name] for name in _BESIDE if name in run}}
            scores |= _at_sites(run, folder)
            place = {"panel": run["dataset"], "variant": run["method"], "seed": str(run["seed"])}
            yield {**place, **{name: f"{value:.6g}" for name, value in scores.items()}} | {
                "seconds": f"{run['cpu_s']:.6g}"
            }


def _at_sites(run: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """R@1 of every site; the widest gap to pooled pairs, and the gaps' population standard deviation."""
    mine = {site: found["recall_at_1"] for site, found in run.get("per_site", {}).items()}
    begun = next((end for end in ("-pretrained", "-warm") if run["method"].endswith(end)), "")
    path = folder / f"centralised{begun}-seed-{run['seed']}.json"
    if not mine or run["method"].startswith("centralised") or not path.is_file():
        return mine
    pooled = json.loads(path.read_text(encoding="utf-8"))["per_site"]
    gaps = [pooled[site]["recall_at_1"] - value for site, value in mine.items()]
    return {**mine, "widest_gap": max(gaps), "gap_disparity": statistics.pstdev(gaps)}


def _short(number: str) -> str:
    return f"{float(number):.6g}" if number else ""


def _place(row: Mapping[str, str]) -> Row:
    return {name: row.get(name, "") for name in _PLACE}


def read(path: Path) -> list[Row]:
    """The lines of one file; none where there is none."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def kept(name: str) -> list[Row]:
    """The kept runs of a name."""
    return read(FOLDER / f"{name}.csv")


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Old and new runs in the order of their places; a new one replaces the old one of its place."""
    found = {tuple(row[name] for name in _PLACE): row for row in (*old, *new)}
    return [found[place] for place in sorted(found, key=lambda place: (*place[:2], int(place[2])))]


def write(path: Path, rows: Sequence[Row]) -> None:
    scores = {name: None for row in rows for name in row if name not in _PLACE}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*_PLACE, *scores], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def by_place(rows: Iterable[Row]) -> dict[Place, dict[int, Row]]:
    """Runs by panel and variant, then seed."""
    found: dict[Place, dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row["panel"], row["variant"]), {})[int(row["seed"])] = row
    return found


def score(row: Row, name: str) -> float | None:
    """One score of a run; nothing where the run has none of that name."""
    return float(row[name]) if row.get(name) else None


def differences(one: Mapping[int, Row], other: Mapping[int, Row], name: str) -> list[float]:
    """One per seed that both variants have; equal seeds are equal records, division and batches."""
    pairs = [(score(one[seed], name), score(other[seed], name)) for seed in sorted(set(one) & set(other))]
    return [mine - its for mine, its in pairs if mine is not None and its is not None]


@dataclass(frozen=True)
class OverSeeds:
    """Numbers of several seeds: how many, their mean and sample standard deviation."""

    seeds: int
    mean: float
    deviation: float

    @classmethod
    def of(cls, gaps: Sequence[float]) -> OverSeeds:
        mean = statistics.fmean(gaps) if gaps else math.nan
        return cls(len(gaps), mean, statistics.stdev(gaps) if len(gaps) > 1 else 0.0)

    def interval(self, digits: int = 1) -> tuple[str, str]:
        """The mean with its 95 % interval, and where that lies: **above** or **below** zero, or open."""
        if not self.seeds:
            return "-", "open"
        if self.seeds < _FEWEST or self.deviation < _EQUAL:
            return f"{self.mean:+.{digits}f}", "open"
        half = _quantile(self.seeds) * self.deviation / self.seeds**0.5
        low, high = self.mean - half, self.mean + half
        side = "**above**" if low > 0 else "**below**" if high < 0 else "open"
        return f"{self.mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})", side

    def verdict(self, sign: int = 1, digits: int = 1) -> tuple[str, str]:
        """The same, and what follows for a claim that it is positive (``sign`` 1) or negative."""
        effect, side = self.interval(digits)
        claimed = "**above**" if sign > 0 else "**below**"
        return effect, side if side == "open" else "**shown**" if side == claimed else "**refuted**"


def _quantile(seeds: int) -> float:
    return float(student.ppf(0.975, seeds - 1))


def show(rows: Sequence[Row], scores: Sequence[str], beside: str | None) -> str:
    """A line per panel and variant, a column per score and difference: in percent, times in seconds.

    ``beside`` is a variant of the same panel, or PANEL/VARIANT.
    """
    found = by_place(rows)
    lines = []
    for (panel, variant), runs in found.items():
        line = [panel, variant]
        for name in scores:
            line.append(mean_and_spread((score(run, name) for run in runs.values()), scale=_scale(name)))
        if beside is not None:
            there, _, of = beside.rpartition("/")
            other_place = there or panel, of
            other = {} if other_place == (panel, variant) else found.get(other_place, {})
            for name in scores:
                gaps = [_scale(name) * gap for gap in differences(runs, other, name)]
                effect, side = OverSeeds.of(gaps).interval()
                line.append(effect if effect == "-" else f"{effect} {side}")
        lines.append([*line, str(len(runs))])
    more = [f"{name} less {beside}" for name in scores] if beside is not None else []
    return sections.table(["panel", "variant", *scores, *more, "seeds"], lines)


def _scale(name: str) -> float:
    return 1.0 if name.endswith(("_s", "seconds")) else 100.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("keep", "show"))
    parser.add_argument("name", help="a folder of runs to keep; a name of kept ones to show")
    parser.add_argument("--score", action="append", metavar="NAME", help="a column; all of them without it")
    parser.add_argument("--beside", metavar="[PANEL/]VARIANT", help="also differences to it")
    asked = parser.parse_args()
    if asked.what == "keep":
        folder = Path(asked.name).resolve()
        swept = (folder / "results.csv").is_file()
        file = FOLDER / f"{folder.name if swept else f'{folder.parent.name}-{folder.name}'}.csv"
        new = list(of_sweep(folder / "results.csv") if swept else of_comparison(folder))
        rows = merged(read(file), new)
        if new:
            write(file, rows)
        print(f"{len(new)} runs found, {len(rows)} kept in {file}")
        return int(not new)
    rows = kept(asked.name)
    if not rows:
        names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.csv"))) or "none"
        print(f"Error: no runs of {asked.name!r} are kept; kept are: {names}", file=sys.stderr)
        return 1
    scores = asked.score or [name for name in rows[0] if name not in {*_PLACE, "seconds"}]
    unknown = [name for name in scores if name not in rows[0]]
    if unknown:
        names = ", ".join(rows[0])
        print(f"Error: {asked.name!r} has no column {unknown[0]!r}; it has {names}", file=sys.stderr)
        return 1
    print(show(rows, scores, asked.beside))
    return 0


if __name__ == "__main__":
    sys.exit(main())
