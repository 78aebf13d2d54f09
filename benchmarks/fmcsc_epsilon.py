"""Clustering against epsilon: tables and a figure of docs/results/fmcsc.md.

    python benchmarks/kept_runs.py keep runs/fmcsc-epsilon
    python benchmarks/fmcsc_epsilon.py [--update-docs]

The first command keeps what the sweep of ``examples/fmcsc-epsilon.toml`` has finished, the second puts all
that is kept into tables and figure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kept_runs
import sections
from kept_runs import OverSeeds
from matplotlib.axes import Axes

from secfed.runs import figure_style as style

PAGE = sections.ROOT / "docs" / "results" / "fmcsc.md"
TITLE = "Accuracy against epsilon"
FIGURE = sections.FIGURES / "fmcsc-epsilon.svg"
NAME: Final = "fmcsc-epsilon"
EPSILONS = ("inf", "100", "50", "20", "10", "5", "2")

SCORES: Final = {"acc": "ACC", "nmi": "NMI", "ari": "ARI"}


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
    "site-dp": Curve("FMCSC, site-level", "FMCSC, site-level", style.PURPLE, "-", 1.3, "20", (0, -12)),
}  # fmt: skip
PANELS = {  # name to title and number of classes
    "digits-views": ("digits", 10),
    "mnist-usps": ("MNIST-USPS, 1600 records", 10),
    "bdgp": ("BDGP, 1000 records", 5),
}

Point = tuple[str, str, str]  # panel, variant and epsilon


@dataclass(frozen=True)
class Measured:
    """One score at one point, in percent, and the seeds that it is over."""

    seeds: frozenset[int]
    found: OverSeeds

    def text(self) -> str:
        """Mean and deviation, as a cell has them."""
        spread = f" ± {self.found.deviation:.1f}" if self.found.seeds > 1 else ""
        return f"{self.found.mean:.1f}{spread}"


Scores = Mapping[tuple[Point, str], Measured]  # by point and score


def measured(runs: Iterable[kept_runs.Row]) -> Scores:
    """Every score of every point that a run is kept of."""
    kept = kept_runs.by_place(runs)
    found = {}
    for panel in PANELS:
        for variant in CURVES:
            for epsilon in EPSILONS:
                runs_here = kept.get((panel, kept_runs.at_axis(variant, "epsilon", epsilon)), {})
                for score in SCORES:
                    values = {
                        seed: 100 * value
                        for seed, run in runs_here.items()
                        if (value := kept_runs.score(run, score)) is not None
                    }
                    if values:
                        one = Measured(frozenset(values), OverSeeds.of([*values.values()]))
                        found[(panel, variant, epsilon), score] = one
    return found


def tables(scores: Scores) -> list[str]:
    """ACC with deviations; NMI and ARI, one beside the other."""
    shown = {"acc": ("acc",), "nmi": ("nmi", "ari")}
    return [_table(scores, names) for names in shown.values()]


def _table(scores: Scores, names: Sequence[str]) -> str:
    heads = ["set", "epsilon", *(curve.head for curve in CURVES.values())]
    rows = [["seeds", "", *(_seeds(scores, variant, names[0]) for variant in CURVES)]]
    for panel, (title, _) in PANELS.items():
        for epsilon in EPSILONS:
            cells = []
            for variant in CURVES:
                found = [scores.get(((panel, variant, epsilon), name)) for name in names]
                cells.append(" / ".join(_cell(one, alone=len(names) == 1) for one in found if one))
            rows.append([title if epsilon == EPSILONS[0] else "", epsilon, *cells])
    return sections.table(heads, rows)


def _cell(one: Measured, *, alone: bool) -> str:
    return one.text() if alone else f"{one.found.mean:.1f}"


def _seeds(scores: Scores, variant: str, name: str) -> str:
    """The seeds of a column; those of its points with the fewest, and with the most, if they differ."""
    found = {one.seeds for (point, score), one in scores.items() if (point[1], score) == (variant, name)}
    ordered = sorted((sorted(seeds) for seeds in found), key=len)
    ends = ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
    return "; ".join(", ".join(map(str, seeds)) for seeds in ends)


def write(parts: Sequence[str]) -> Path:
    """Put the tables into their section in place of its first ones; everything else there stays."""
    target = sections.beside(PAGE)
    before, section = target.read_text(encoding="utf-8").split(f"## {TITLE}\n", 1)
    new = iter(parts)
    section = re.sub(r"(?:^\|.*\n)+", lambda _: f"{next(new)}\n", section, count=len(parts), flags=re.M)
    target.write_text(f"{before}## {TITLE}\n{section}", encoding="utf-8")
    return target


def draw(scores: Scores) -> Path:
    """A row per score, a panel per set: every variant as a curve; in the first panel labelled beside it."""
    target = sections.beside(FIGURE)
    with style.styled():
        figure, axes = style.new_figure(
            len(SCORES) * len(PANELS), across=len(PANELS), width_in=10.2, height_in=3.0
        )
        places = [(score, panel) for score in SCORES for panel in PANELS]
        for ax, (score, panel) in zip(axes, places, strict=True):
            first = score == next(iter(SCORES))
            for variant, curve in CURVES.items():
                points = {e: scores.get(((panel, variant, e), score)) for e in EPSILONS}
                shown = {e: one.found for e, one in points.items() if one is not None}
                if shown:
                    _plot(ax, shown, curve, labelled=ax is axes[0])
            title, classes = PANELS[panel]
            if first:
                ax.set_title(title)
                ax.axhline(100 / classes, color=style.FAINT, linestyle=":", linewidth=1)
                ax.annotate(
                    "chance", (_place("inf"), 100 / classes), (0, -10), textcoords="offset points",
                    ha="right", size=8, color=style.FAINT,
                )  # fmt: skip
            ax.set_xscale("log")
            ax.set_xticks([_place(e) for e in EPSILONS], ["∞" if e == "inf" else e for e in EPSILONS])
            ax.minorticks_off()
            ax.set_ylim(0, 113)
            ax.set_yticks(range(0, 101, 20))
            if score == list(SCORES)[-1]:
                ax.set_xlabel("epsilon (smaller protects more)")
            if panel == next(iter(PANELS)):
                ax.set_ylabel(f"{SCORES[score]} (%)")
        style.save_svg(figure, target)
    return target


def _place(epsilon: str) -> float:
    """Where an epsilon stands: infinity one step after the largest."""
    return 220.0 if epsilon == "inf" else float(epsilon)


def _plot(ax: Axes, shown: Mapping[str, OverSeeds], curve: Curve, *, labelled: bool) -> None:
    where, means = [_place(e) for e in shown], [one.mean for one in shown.values()]
    spread = [one.deviation for one in shown.values()]
    look = {"color": curve.colour, "linewidth": curve.width}
    ax.errorbar(where, means, yerr=spread, linestyle="", marker="o", elinewidth=0.8, color=curve.colour)
    ax.plot(where[1:], means[1:], linestyle=curve.line, **look)
    ax.plot(where[:2], means[:2], linestyle=":", color=curve.colour, linewidth=1)  # to no noise at all
    look = {"size": 8, "color": curve.colour, "weight": "bold" if curve.width > 2 else "normal"}
    if not labelled:
        return
    if not curve.at:
        ax.text(0.03, 0.99, curve.label, transform=ax.transAxes, va="top", **look)
    elif curve.at in shown:
        side = "left" if curve.offset[0] else "center"
        point = _place(curve.at), shown[curve.at].mean
        ax.annotate(curve.label, point, curve.offset, textcoords="offset points", ha=side, **look)


def main() -> int:
    scores = measured(kept_runs.kept(NAME))
    print(f"wrote {write(tables(scores))} and {draw(scores)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
