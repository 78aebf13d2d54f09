"""The figure of a sweep: a panel per data set and metric, a curve per variant, spread over the seeds."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE, is_error
from secfed.errors import ConfigError
from secfed.runs import figure_style as style
from secfed.sweep.file import SweepFile, Value
from secfed.sweep.plan import SweepPlan, is_inf
from secfed.sweep.report import Labels, losses, metric_title
from secfed.sweep.results import Group, Row, groups, metric_names
from secfed.sweep.store import FIGURE_FILES

Scale: TypeAlias = Literal["log", "linear", "categorical"]
Curve: TypeAlias = tuple[tuple[str, Value], ...]

_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_DODGE = 0.03  # of the step between two values, so that error bars do not hide each other
_MOST_TICKS = 12
_MOST_NAMES, _LONGEST_NAME = 5, 16  # below an axis; more or longer ones stand beside it, a row each
_ROW_IN, _NAME_WIDTH = 0.3, 46
_NAMES_IN, _TITLE_LETTERS_PER_IN = 3.0, 10.5
_NOTE_SIZE = 7
_LETTERS_PER_IN = 17.5  # of that size
_NOTE_LINE_IN, _LEGEND_LINE_IN = 0.125, 0.19
_PNG_DPI = 160


def write_figure(plan: SweepPlan, rows: Sequence[Row], out: Path) -> tuple[Path, ...]:
    """Write ``figure.svg`` and ``figure.png``, and name them; neither without metrics to put side by side.

    ``ConfigError``: ``sweep.figure`` names a metric that no run has, or a scale that does not suit.
    """
    sweep = plan.sweep
    x = x_dimension(sweep)
    known = metric_names(rows)
    for name in sweep.figure.metrics:
        if known and name not in known:
            remedy = f"use one of: {', '.join(known)}; then run the sweep again: its runs stay"
            raise ConfigError(f"sweep.figure.y: no run has a metric {name!r}", remedy=remedy)
    metrics = list(sweep.figure.metrics) or known[:1]
    if not metrics or not known or x is None:
        return ()
    with style.styled():
        figure = _draw(plan, rows, x, metrics)
        svg, png = (out / name for name in FIGURE_FILES)
        style.save_svg(figure, svg)
        figure.savefig(png, dpi=_PNG_DPI, metadata={"Software": None})
    return svg, png


def x_dimension(sweep: SweepFile) -> str | None:
    """What runs along the horizontal axis: what the file says, else the first axis, else the variants."""
    if sweep.figure.x is not None:
        return sweep.figure.x
    if sweep.axes:
        return sweep.axes[0].name
    return next((name for name in ("variant", "panel") if name in sweep.dimensions), None)


def positions(values: Sequence[Value], scale: Scale | None) -> dict[Value, float]:
    """Where each value stands: one step apart, or by its size or logarithm; inf one step after the rest.

    A ``scale`` of None is ``linear`` where all values are finite numbers, else ``categorical``. ConfigError
    if the values do not suit the scale.
    """
    finite = [value for value in values if not is_inf(value)]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in finite)
    if scale is None:
        scale = "linear" if numeric and len(finite) == len(values) else "categorical"
    if scale == "categorical":
        return {value: float(at) for at, value in enumerate(values)}
    if not numeric or (scale == "log" and any(value <= 0 for value in finite)):
        needed = "positive numbers" if scale == "log" else "numbers"
        remedy = 'set sweep.figure.x_scale = "categorical"'
        raise ConfigError(f'sweep.figure.x_scale: "{scale}" needs {needed}', remedy=remedy)
    at = {value: float(np.log10(value)) if scale == "log" else float(value) for value in finite}
    places = sorted(at.values())
    step = (places[-1] - places[0]) / max(len(places) - 1, 1) if places else 0.0
    beyond = (places[-1] if places else 0.0) + (step or 1.0)
    return at | {value: beyond for value in values if is_inf(value)}


@dataclass(frozen=True)
class _Along:
    """The dimension that a panel's points lie along."""

    x: str
    places: Mapping[Value, float]
    labels: Labels

    @property
    def rows(self) -> int:
        """How many names stand beside the panels; 0 where there is room for them below."""
        names = [self.labels.value(self.x, value) for value in self.places if isinstance(value, str)]
        crowded = len(names) > _MOST_NAMES or max(map(len, names), default=0) > _LONGEST_NAME
        return len(names) if crowded else 0


def _draw(plan: SweepPlan, rows: Sequence[Row], x: str, metrics: Sequence[str]) -> Figure:
    sweep, labels = plan.sweep, Labels(plan, rows)
    along = _Along(x, positions(_values(sweep, x), sweep.figure.x_scale), labels)
    points = groups(rows)
    curves = list(dict.fromkeys(_curve(group, x) for group in points if group.cells))
    begun = {group.at.get("panel") for group in points if group.cells}
    panels: list[str | None] = [None]
    if x != "panel" and sweep.panels:
        panels = [panel.name for panel in sweep.panels if panel.name in begun]
    across = len(metrics) if len(metrics) > 1 else min(len(panels), 3)
    panel_in = 2.6 if along.rows else max(5.6 / across, 3.6)
    width_in = panel_in * across + (_NAMES_IN if along.rows else 0.0)
    height_in = max(2.7, 0.9 + _ROW_IN * along.rows)
    shown = list(itertools.product(panels, metrics))
    figure, axes = style.new_figure(len(shown), across=across, width_in=width_in, height_in=height_in)
    for at, (ax, (panel, metric)) in enumerate(zip(axes, shown, strict=True)):
        members = [g for g in points if panel is None or g.at.get("panel") == panel]
        for number, curve in enumerate(curves):
            mine = [g for g in members if _curve(g, x) == curve and metric in g.cells]
            _plot(ax, mine, along, metric, number, len(curves), _name(labels, curve))
        if panel is not None:
            ax.set_title(textwrap.fill(labels.value("panel", panel), int(_TITLE_LETTERS_PER_IN * panel_in)))
        _axes(ax, along, sweep, metric, is_first=at % across == 0)
    seeds = sorted({group.cells[metric].n for group in points for metric in metrics if metric in group.cells})
    _annotate(figure, axes[0], sweep, labels, rows, seeds, several=len(curves) > 1 or any(curves))
    return figure


def _plot(
    ax: Axes, points: Sequence[Group], along: _Along, metric: str, number: int, curves: int, label: str
) -> None:
    x, places = along.x, along.places
    ordered = sorted(places.values())
    step = min((b - a for a, b in itertools.pairwise(ordered)), default=1.0)
    shift = (number - (curves - 1) / 2) * _DODGE * step
    points = sorted(points, key=lambda group: places[group.at[x]])
    finite = [group for group in points if not is_inf(group.at[x])]
    colour = style.CYCLE[number % len(style.CYCLE)]
    look: dict[str, Any] = {"color": colour, "marker": _MARKERS[number % len(_MARKERS)]}
    where = [places[group.at[x]] + shift for group in points]
    means = [group.cells[metric].mean for group in points]
    # NaN draws no bar, not even its ends: a single seed says nothing about others.
    cells = [group.cells[metric] for group in points]
    deviations = [cell.error if cell.std is None else cell.std for cell in cells]
    spread = [np.nan if deviation is None else deviation for deviation in deviations]
    # Names have nothing between them, and neither have the largest number and infinity.
    joined = len(finite) if isinstance(next(iter(places)), int | float) else 0
    bars = None if np.isnan(spread).all() else spread
    bar: dict[str, Any] = {"capsize": 2.5, "linestyle": "", "elinewidth": 1}
    if along.rows:
        ax.errorbar(means, where, xerr=bars, **bar, **look)
        ax.plot(means, where, label=label, linestyle="", **look)
        return
    ax.errorbar(where, means, yerr=bars, **bar, **look)
    ax.plot(where[:joined], means[:joined], label=label, linestyle="-" if joined else "", **look)
    if joined and joined < len(points):
        ax.plot(where[joined - 1 :], means[joined - 1 :], linestyle=":", linewidth=1.2, color=colour)


def _axes(ax: Axes, along: _Along, sweep: SweepFile, metric: str, *, is_first: bool) -> None:
    """What both axes say; names beside the panels stand at the first of a row only."""
    values = ax.xaxis if along.rows else ax.yaxis
    values.set_label_text(metric_title(sweep, metric).replace("_", " "))
    if sweep.figure.percent:
        values.set_major_formatter(PercentFormatter(xmax=1.0, symbol=""))
    shown = sorted(along.places.items(), key=lambda item: item[1])
    if along.rows:
        names = [textwrap.fill(along.labels.value(along.x, value), _NAME_WIDTH) for value, _ in shown]
        ax.set_yticks([place for _, place in shown], names if is_first else [""] * len(names))
        if is_first and sweep.figure.x_label:
            ax.set_ylabel(sweep.figure.x_label)
        ax.grid(visible=True, axis="both")
        ax.margins(x=0.08)
        ax.set_ylim(shown[-1][1] + 0.6, shown[0][1] - 0.6)  # the first one above
        return
    every = -(-len(shown) // _MOST_TICKS)
    shown = shown[::-1][::every][::-1]
    names = [textwrap.fill(along.labels.value(along.x, value), _LONGEST_NAME) for value, _ in shown]
    ax.set_xticks([place for _, place in shown], names)
    ax.set_xlabel(sweep.figure.x_label or along.labels.dimension(along.x))
    ax.margins(x=0.06, y=0.12)


def _annotate(
    figure: Figure,
    first: Axes,
    sweep: SweepFile,
    labels: Labels,
    rows: Sequence[Row],
    seeds: Sequence[int],
    *,
    several: bool,
) -> None:
    """Title, legend, and under the panels what a reader must know before believing a curve."""
    title = sweep.figure.title
    heading: dict[str, Any] = {"weight": "bold", "size": 11}
    above = int(bool(title))
    if several:  # the title heads the legend, which keeps both clear of the panels and of each other
        handles, names = first.get_legend_handles_labels()
        for name in labels.missing:
            handles.append(Line2D([], [], linestyle=""))
            names.append(f"{labels.value('variant', name)}: missing")
        legend = figure.legend(
            handles, names, loc="outside upper left", title=title or None, alignment="left"
        )
        legend.get_title().set(**heading)
        above += len(names)
    elif title:
        figure.suptitle(title, x=0.01, ha="left", **heading)
    notes = list(labels.notes)
    noisy = any(is_error(name) for row in rows for name in row.metrics)
    if noisy:
        notes.append(f"One seed: bars are the noise's error at 95 %; withheld above {WITHHELD_ABOVE:g}.")
    if len(sweep.seeds) > 1 and [number for number in seeds if number]:
        notes.append(_bars([number for number in seeds if number], noisy=noisy))
    for status in ("failed", "aborted"):
        if count := sum(row.status == status for row in rows):
            how = "failed" if status == "failed" else "were aborted (every round was given up)"
            notes.append(f"{count} of {len(rows)} runs {how} and are not in the means.")
    notes += losses(rows)
    width = int(figure.get_figwidth() * _LETTERS_PER_IN)
    text = "\n".join(textwrap.fill(note, width, subsequent_indent="      ") for note in notes)
    below = text.count("\n") + 1 if text else 0
    if text:
        figure.supxlabel(text, x=0.01, ha="left", size=_NOTE_SIZE, color=style.FAINT)
    # Words need room of their own, not the panels'.
    figure.set_figheight(figure.get_figheight() + above * _LEGEND_LINE_IN + below * _NOTE_LINE_IN)


def _bars(seeds: Sequence[int], *, noisy: bool = False) -> str:
    """What the bars are, and what it means that a point has none."""
    parts = []
    if seeds[-1] > 1:
        fewer = "up to " if any(1 < number < seeds[-1] for number in seeds) else ""
        parts.append(f"bars: sample standard deviation over {fewer}{seeds[-1]} seeds")
    if seeds[0] == 1 and not noisy:
        parts.append("points without a bar: one seed")
    if not parts:
        return ""
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _values(sweep: SweepFile, dimension: str) -> tuple[Value, ...]:
    named = {"variant": sweep.variants, "panel": sweep.panels}
    if dimension in named:
        return tuple(change.name for change in named[dimension])
    return next(axis.values for axis in sweep.axes if axis.name == dimension)


def _curve(group: Group, x: str) -> Curve:
    """What a curve is: everything that is neither along the axis nor a panel."""
    return tuple((name, value) for name, value in group.at.items() if name not in (x, "panel"))


def _name(labels: Labels, curve: Curve) -> str:
    named = {name: "" if name == "variant" else f"{labels.dimension(name)} " for name, _ in curve}
    return ", ".join(f"{named[name]}{labels.value(name, value)}" for name, value in curve)
