"""Clustering accuracy against epsilon: a table and a figure of docs/results/fmcsc.md.

    python benchmarks/fmcsc_epsilon.py [RUNS]

A column of the table comes from the sweep of ``examples/fmcsc-epsilon.toml`` in the folder RUNS (default
``runs/fmcsc-epsilon``) if every point of it is there, with no fewer seeds than the page has; else the
column stays. The figure is drawn from the table, so it shows no number that the page lacks.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sections
from comparison import mean_and_spread
from matplotlib.axes import Axes

from secfed.runs import figure_style as style

PAGE = sections.ROOT / "docs" / "results" / "fmcsc.md"
TITLE = "Accuracy against epsilon"
FIGURE = sections.FIGURES / "fmcsc-epsilon.svg"
EPSILONS = ("inf", "100", "50", "20", "10", "5", "2")


@dataclass(frozen=True)
class Curve:
    """A variant: the head of its column, and how its curve looks and is labelled."""

    head: str
    label: str
    colour: str
    line: str
    width: float
    at: str = ""  # the epsilon beside which the label stands; at the top without one
    offset: tuple[float, float] = (0, 0)  # of the label from that point, in points


CURVES = {
    "canonical": Curve(
        "canonical clustering, noise in the sum, record-level",
        "canonical, noise in the sum", style.BLUE, "-", 2.6,
    ),
    "paper-laplace": Curve(
        "FMCSC, Laplace as in the paper, **not a guarantee**",
        "FMCSC, Laplace:\nnot a guarantee", style.VERMILION, "--", 1.3, "10", (28, -20),
    ),
    "record-dp": Curve(
        "FMCSC, record-level", "FMCSC, record-level", style.GREEN, "-", 1.3, "20", (0, 9)
    ),
    "site-dp": Curve("FMCSC, site-level", "FMCSC, site-level", style.PURPLE, "-", 1.3, "20", (0, -16)),
}  # fmt: skip
PANELS = {  # name to title and number of classes
    "digits-views": ("digits", 10),
    "mnist-usps": ("MNIST-USPS, 1600 records", 10),
    "bdgp": ("BDGP, 1000 records", 5),
}

Cells = dict[tuple[str, str], str]  # a column: panel and epsilon to "mean ± deviation" in percent


def main() -> None:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/fmcsc-epsilon")
    columns, seeds = on_page()
    for variant, (found, of_seeds) in measured(runs).items():
        if len(of_seeds) >= len(seeds.get(variant, ())):
            columns[variant], seeds[variant] = found, of_seeds
    write(columns, seeds)
    draw(columns)
    print(f"wrote {PAGE} and {FIGURE}")


def on_page() -> tuple[dict[str, Cells], dict[str, Sequence[str]]]:
    """Every column of the page's table, and its seeds."""
    first, *rows = sections.rows(PAGE, TITLE)
    columns: dict[str, Cells] = {variant: {} for variant in CURVES}
    points = [(panel, epsilon) for panel in PANELS for epsilon in EPSILONS]
    for point, (_, _, *cells) in zip(points, rows, strict=True):
        for variant, cell in zip(CURVES, cells, strict=True):
            columns[variant].update({point: cell} if cell else {})
    return columns, {
        variant: cell.split(", ") for variant, cell in zip(CURVES, first[2:], strict=True) if cell
    }


def measured(runs: Path) -> dict[str, tuple[Cells, Sequence[str]]]:
    """The variants of which the sweep has every point, each with the same seeds."""
    results = runs / "results.csv"
    if not results.exists():
        print(f"{results} is not there: the figure is drawn anew, the table stays as it is")
        return {}
    accuracies: dict[str, dict[tuple[str, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with results.open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["status"] == "done":
                point = row["panel"], row["epsilon"]
                accuracies[row["variant"]][point][row["seed"]] = float(row["acc"])
    whole = {}
    for variant, points in accuracies.items():
        seeds = {tuple(sorted(found)) for found in points.values()}
        if len(points) == len(PANELS) * len(EPSILONS) and len(seeds) == 1:
            cells = {point: mean_and_spread(found.values()) for point, found in points.items()}
            whole[variant] = cells, seeds.pop()
        else:
            print(f"{variant}: not every point has the same seeds yet; its column stays as it is")
    return whole


def write(columns: Mapping[str, Cells], seeds: Mapping[str, Sequence[str]]) -> None:
    """Put the table into its section in place of the old one; everything else there stays."""
    heads = ["set", "epsilon", *(curve.head for curve in CURVES.values())]
    table = [["seeds", "", *(", ".join(seeds.get(variant, ())) for variant in CURVES)]]
    for panel, (title, _) in PANELS.items():
        for epsilon in EPSILONS:
            cells = [columns.get(variant, {}).get((panel, epsilon), "") for variant in CURVES]
            table.append([title if epsilon == EPSILONS[0] else "", epsilon, *cells])
    before, section = PAGE.read_text(encoding="utf-8").split(f"## {TITLE}\n", 1)
    lines = section.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    lines[start:end] = sections.table(heads, table).splitlines()
    PAGE.write_text(f"{before}## {TITLE}\n" + "\n".join(lines) + "\n", encoding="utf-8")


def draw(columns: Mapping[str, Cells]) -> None:
    """A panel per set: every column as a curve, labelled beside it, and what chance would give."""
    with style.styled():
        figure, axes = style.new_figure(len(PANELS), across=3, width_in=10.2, height_in=3.3)
        for ax, (panel, (title, classes)) in zip(axes, PANELS.items(), strict=True):
            for variant, curve in CURVES.items():
                shown = {e: cell for e in EPSILONS if (cell := columns[variant].get((panel, e)))}
                if shown:
                    _plot(ax, shown, curve)
            ax.axhline(100 / classes, color=style.FAINT, linestyle=":", linewidth=1)
            ax.annotate(
                "chance", (_place("inf"), 100 / classes), (0, -10), textcoords="offset points", ha="right",
                size=8, color=style.FAINT,
            )  # fmt: skip
            ax.set_title(title)
            ax.set_xscale("log")
            ax.set_xticks([_place(e) for e in EPSILONS], ["∞" if e == "inf" else e for e in EPSILONS])
            ax.minorticks_off()
            ax.set_ylim(0, 113)
            ax.set_yticks(range(0, 101, 20))
            ax.set_xlabel("epsilon (smaller protects more)")
        axes[0].set_ylabel("ACC (%)")
        style.save_svg(figure, FIGURE)


def _place(epsilon: str) -> float:
    """Where an epsilon stands: infinity one step after the largest."""
    return 220.0 if epsilon == "inf" else float(epsilon)


def _plot(ax: Axes, shown: Mapping[str, str], curve: Curve) -> None:
    numbers = {e: [float(part) for part in cell.split(" ± ")] for e, cell in shown.items()}
    where, means = [_place(e) for e in numbers], [mean for mean, *_ in numbers.values()]
    spread = [deviation[0] if deviation else 0.0 for _, *deviation in numbers.values()]
    look = {"color": curve.colour, "linewidth": curve.width}
    ax.errorbar(where, means, yerr=spread, linestyle="", marker="o", elinewidth=0.8, color=curve.colour)
    ax.plot(where[1:], means[1:], linestyle=curve.line, **look)
    ax.plot(where[:2], means[:2], linestyle=":", color=curve.colour, linewidth=1)  # to no noise at all
    look = {"size": 8, "color": curve.colour, "weight": "bold" if curve.width > 2 else "normal"}
    if not curve.at:
        ax.text(0.03, 0.99, curve.label, transform=ax.transAxes, va="top", **look)
    elif curve.at in numbers:
        side = "left" if curve.offset[0] else "center"
        point = _place(curve.at), numbers[curve.at][0]
        ax.annotate(curve.label, point, curve.offset, textcoords="offset points", ha=side, **look)


if __name__ == "__main__":
    main()
