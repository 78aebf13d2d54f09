"""Accuracy against epsilon on real data, noise at each hospital or in the sum: docs/results/dp.md, all of it.

    python benchmarks/results_dp.py [RUNS] [--only NAME]...

Sweeps that are already complete in the folder RUNS (default ``runs``) are not repeated, and with --only the
sections of the others stay as they are. Heart disease is left out where its table is not there. The figure is
drawn from the tables of the page.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import sections
from matplotlib.axes import Axes

from secfed.runs import figure_style as style
from secfed.terminal.consoles import plural

PAGE = sections.ROOT / "docs" / "results" / "dp.md"
FIGURE = sections.FIGURES / "dp-noise.svg"
STUDIES = {
    "dp-digits": ("Digits, small CNN", "1797 images, five hospitals, 1,386 parameters"),
    "dp-digits-linear": ("Digits, linear head", "1797 images, five hospitals, 2,000 parameters"),
    "dp-breast-cancer": ("Breast cancer", "569 patients, four hospitals, logistic regression"),
    "dp-heart-disease": ("Heart disease", "920 patients, four real hospitals, logistic regression"),
}
LOOKS = {
    "local": ("local: noise at each hospital", style.BLUE, "o"),
    "shared": ("shared: noise in the sum", style.VERMILION, "s"),
}
NONE = float("inf")
HEAD = f"""# What differential privacy costs in accuracy

    python benchmarks/results_dp.py

![Accuracy against epsilon on four data sets](../figures/{FIGURE.name})

Masked protection; every record (patient, image) is the unit: add or remove one record, delta 1e-4, epsilon
of the whole study.

- **local**: `privacy.noise = "site"` and `fedavg` with DP-SGD. Each hospital adds all of the noise in its
  own steps and trusts nobody.
- **shared**: `privacy.noise = "sum"` and `fedsgd`. Each hospital adds a share, and the secure sum has all
  of it. Holds against everyone who sees no more than the sums, with one hospital that helps them
  ([privacy](../privacy.md)). The noise is enough where one hospital does not answer (of the five of
  the linear head: two); where all answer there is more of it.

Accuracy over the held-out records of all hospitals: mean and standard deviation over seeds. A seed decides
partition, split, initial model and noise. Without privacy (∞) the split is stratified by class, under privacy
each record is drawn by itself, so the held-out records are not the same: differences below the spread mean
nothing. Panels have scales of their own. Your own run: `summary.md` in the folder of its sweep has these
means."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs"))
    parser.add_argument("--only", action="append", choices=tuple(STUDIES))
    asked = parser.parse_args()
    made = {name: section(name, asked.runs) for name in asked.only or STUDIES}
    parts = [HEAD, sections.machine(), sections.written_by_people(PAGE)]
    parts += [made[name] if name in made else on_page(name) for name in STUDIES]
    print(f"wrote {sections.write_page(PAGE, parts)}")
    draw()


Point = tuple[str, float]  # variant, epsilon
Points = Mapping[Point, Sequence[Mapping[str, str]]]  # a row of results.csv for every seed


def measured(name: str, runs: Path) -> Points:
    """Run a sweep unless it is complete; nothing if it cannot be run."""
    out = runs / name
    if not (out / "summary.md").exists():
        command = [str(Path(sys.executable).parent / "secfed"), "sweep", f"examples/{name}.toml"]
        done = subprocess.run([*command, "--out", str(out.resolve())], cwd=sections.ROOT, check=False)
        if done.returncode and not (out / "summary.md").exists():
            print(f"{name} left out")
            return {}
    points = defaultdict(list)
    with (out / "results.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["status"] == "done":
                points[row["variant"], float(row["epsilon"])].append(row)
    return points


def mean(rows: Sequence[Mapping[str, str]], metric: str) -> tuple[float, float]:
    """Mean and sample standard deviation in percent; NaN for the deviation of a single seed."""
    values = [100 * float(row[metric]) for row in rows]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else float("nan")


def shown(value: float, deviation: float) -> str:
    return f"{value:.1f}" if math.isnan(deviation) else f"{value:.1f} ± {deviation:.1f}"


def epsilons(points: Points) -> list[float]:
    return sorted({epsilon for _, epsilon in points}, reverse=True)


def on_page(name: str) -> str:
    """The section of one data set as the page has it; nothing if it has none."""
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(f"## {': '.join(STUDIES[name])}\n")
    return heading + rest.split("\n## ", 1)[0]


def section(name: str, runs: Path) -> str:
    """Heading, command and table of one data set; nothing if its sweep cannot be run."""
    points = measured(name, runs)
    if not points:
        return ""
    title, what = STUDIES[name]
    some = next(iter(points.values()))
    metrics = {"accuracy": "accuracy"} | ({"roc_auc": "ROC AUC"} if some[0].get("roc_auc") else {})
    columns = ["epsilon", *(f"{label} {variant}" for label in metrics.values() for variant in LOOKS)]
    rows = []
    for epsilon in epsilons(points):
        cells = [mean(points[variant, epsilon], metric) for metric in metrics for variant in LOOKS]
        rows.append(["∞" if epsilon == NONE else f"{epsilon:g}", *(shown(*cell) for cell in cells)])
    distinct = {row["study_digest"]: row for rows_of in points.values() for row in rows_of}
    took = sum(float(row["seconds"]) for row in distinct.values()) / 60
    return "\n\n".join([
        f"## {title}: {what}",
        f"`secfed sweep examples/{name}.toml --out runs/{name}`: {plural(len(some), 'seed')}, {took:.0f} "
        "minutes in all, on cores shared with other work. Percent.",
        sections.table(columns, rows),
    ])  # fmt: skip


def draw() -> None:
    """A panel per data set: accuracy against epsilon, and without privacy as a line."""
    tables = {title: sections.rows(PAGE, f"{title}: {what}") for title, what in STUDIES.values()}
    found = {title: rows for title, rows in tables.items() if rows}
    with style.styled():
        figure, axes = style.new_figure(len(found), across=2, width_in=7.2, height_in=2.4)
        for ax, (title, rows) in zip(axes, found.items(), strict=True):
            panel(ax, rows)
            ax.set_title(title)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3)
        style.save_svg(figure, FIGURE)


def panel(ax: Axes, rows: Sequence[Sequence[str]]) -> None:
    without, *private = rows
    finite = [float(row[0]) for row in private]
    for number, (label, colour, marker) in enumerate(LOOKS.values()):
        cells = [[float(part) for part in row[1 + number].split(" ± ")] for row in private]
        where = [epsilon * (0.98, 1.02)[number] for epsilon in finite]  # so that bars do not hide each other
        look = {"color": colour, "marker": marker, "capsize": 2.5, "elinewidth": 1}
        spread = [deviation[0] if deviation else 0.0 for _, *deviation in cells]
        ax.errorbar(where, [m for m, *_ in cells], yerr=spread, label=label, **look)
    best = float(without[1].split(" ± ")[0])
    ax.axhline(best, color=style.FAINT, linestyle="--", linewidth=1.2, label="without privacy")
    ax.set_xscale("log")
    ax.set_xticks(finite, [f"{epsilon:g}" for epsilon in finite])
    ax.minorticks_off()
    ax.set_xlabel("epsilon")
    ax.set_ylabel("accuracy (%)")


if __name__ == "__main__":
    main()
