"""Draws kept runs: a panel per panel and score, a row per variant, a dot per seed and a bar at their mean.

A line joins the dots of one seed: equal records, division and batches. The mean of the first variant goes
through its panel as a dotted line.

    python benchmarks/kept_figure.py examples/vlp-flickr-towers.toml [--score NAME ...] [--update-docs]

Names are those of the sweep; without ``--score`` so are the scores. Writes docs/figures/NAME.svg.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import kept_runs
import kept_tables
import sections
from kept_runs import Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secfed.runs import figure_style as style
from secfed.sweep.file import SweepFile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--score", action="append", metavar="NAME")
    asked = parser.parse_args()
    sweep = SweepFile.load(asked.sweep)
    rows = kept_runs.kept(asked.sweep.stem)
    if not rows:
        print(f"Error: no runs of {asked.sweep.stem!r} are kept", file=sys.stderr)
        return 1
    target = sections.beside(sections.FIGURES / f"{asked.sweep.stem}.svg")
    draw(sweep, rows, asked.score or sweep.figure.metrics, target)
    print(f"wrote {target}")
    return 0


def draw(sweep: SweepFile, rows: Sequence[Row], scores: Sequence[str], target: Path) -> None:
    """A row of panels per panel of the sweep, a column per score; all in percent."""
    found = kept_runs.by_place(rows)
    variants = {one.name: textwrap.fill(one.label, 28) for one in sweep.variants}
    named = {one.name: one.label for one in sweep.panels} or {"": ""}
    shown = {panel: [name for name in variants if (panel, name) in found] for panel in named}
    shown = {panel: names for panel, names in shown.items() if names}
    with style.styled():
        heights = [0.8 + 0.3 * len(names) for names in shown.values()]
        figure = Figure(figsize=(7.6, sum(heights)), layout="constrained")
        grid = figure.subplots(
            len(shown), len(scores), squeeze=False, sharex="col", gridspec_kw={"height_ratios": heights}
        )
        for axes, (panel, names) in zip(grid, shown.items(), strict=True):
            for ax, score in zip(axes, scores, strict=True):
                _panel(ax, [found[panel, name] for name in names], score)
                ax.tick_params(axis="x", labelbottom=True)
            axes[0].set_yticks(range(len(names)), [variants[name] for name in names])
            axes[0].set_title(named[panel])
        for ax, score in zip(grid[-1], scores, strict=True):
            ax.set_xlabel(f"{kept_tables.word(score)} (%)")
        style.save_svg(figure, target)


def _panel(ax: Axes, runs: Sequence[Mapping[int, Row]], score: str) -> None:
    for seed in sorted(set().union(*runs)):
        values = [kept_runs.score(of[seed], score) if seed in of else None for of in runs]
        along = [math.nan if value is None else 100 * value for value in values]
        ax.plot(along, range(len(along)), "o-", color=style.BLUE, alpha=0.4, linewidth=0.6, markeredgewidth=0)
    for at, of in enumerate(runs):
        values = [kept_runs.score(run, score) for run in of.values()]
        there = [100 * value for value in values if value is not None]
        if there:
            mean = statistics.fmean(there)
            ax.plot([mean] * 2, [at - 0.32, at + 0.32], color=style.INK)
            if at == 0:
                ax.axvline(mean, color=style.FAINT, linewidth=0.8, linestyle=":")
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.set_yticks([])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.grid(axis="y", visible=False)


if __name__ == "__main__":
    sys.exit(main())
