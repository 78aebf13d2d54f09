"""Draws kept runs: a panel per panel and score, a row per variant, a dot per seed and a bar at their mean.

A line joins the dots of one seed: equal records, division and batches.

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
import sections
from kept_runs import Place, Row
from matplotlib.axes import Axes

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
    named = {one.name: one.label for one in sweep.panels} or {"": ""}
    panels = {name: label for name, label in named.items() if any(place[0] == name for place in found)}
    variants = {one.name: one.label for one in sweep.variants}
    here = [name for name in variants if any((panel, name) in found for panel in panels)]
    height = 0.8 + 0.3 * len(here)
    with style.styled():
        figure, axes = style.new_figure(
            len(panels) * len(scores), across=len(scores), width_in=7.6, height_in=height
        )
        places = [(panel, score) for panel in panels for score in scores]
        for ax, (panel, score) in zip(axes, places, strict=True):
            if (above := axes[scores.index(score)]) is not ax:
                ax.sharex(above)
            _panel(ax, found, panel, here, score)
            first = score == scores[0]
            ax.set_yticks(
                range(len(here)), [textwrap.fill(variants[name], 28) for name in here] if first else []
            )
            ax.set_title(panels[panel] if first else "")
            if panel == list(panels)[-1]:
                ax.set_xlabel(f"{score.replace('_', ' ')} (%)")
        style.save_svg(figure, target)


def _panel(
    ax: Axes, found: Mapping[Place, Mapping[int, Row]], panel: str, variants: Sequence[str], score: str
) -> None:
    runs = [found.get((panel, name), {}) for name in variants]
    for seed in sorted(set().union(*runs)):
        values = [kept_runs.score(of[seed], score) if seed in of else None for of in runs]
        along = [math.nan if value is None else 100 * value for value in values]
        ax.plot(along, range(len(along)), "o-", color=style.BLUE, alpha=0.4, linewidth=0.6, markeredgewidth=0)
    for at, of in enumerate(runs):
        values = [kept_runs.score(run, score) for run in of.values()]
        there = [100 * value for value in values if value is not None]
        if there:
            ax.plot([statistics.fmean(there)] * 2, [at - 0.32, at + 0.32], color=style.INK)
    ax.set_ylim(len(variants) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.grid(axis="y", visible=False)


if __name__ == "__main__":
    sys.exit(main())
