"""Figures of a run, from its report only: metrics, dropouts, and what rounds cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE, error_of, is_withheld
from secfed.runs import figure_style as style
from secfed.runs.run_report import PHASES, WAIT, RunReport, ordered_metrics
from secfed.wire.stages import STAGES

_PANEL_IN = 2.9
_WITHHELD = f"withheld: error above {WITHHELD_ABOVE:g}"
_STAGE_COLOURS = {
    "train": "#9A9A9A",
    "advertise": style.SKY,
    "choose": style.BLUE,
    "share": style.GREEN,
    "confirm": style.YELLOW,
    "mask": style.ORANGE,
    "consistency": style.PURPLE,
    "unmask": style.VERMILION,
}


def write_figures(report: RunReport, folder: Path) -> tuple[Path, ...]:
    """Write and name ``metrics.svg``, ``participation.svg`` and ``cost.svg``, those that have data."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style.styled():
        drawn = {"metrics": _metrics(report), "participation": _participation(report), "cost": _cost(report)}
        for name, figure in drawn.items():
            if figure is not None:
                path = folder / f"{name}.svg"
                style.save_svg(figure, path)
                written.append(path)
    return tuple(written)


def _metrics(report: RunReport) -> Figure | None:
    """One panel per metric; the initial model stands at round 0."""
    points = [(0, report.initial or {}), *((item.round, item.metrics or {}) for item in report.rounds)]
    names = ordered_metrics(values for _, values in points)
    if not names:
        return None
    across = min(len(names), 3)
    figure, panels = style.new_figure(len(names), across=across, width_in=max(3.6, _PANEL_IN * across))
    spent = max((one.epsilon for one in report.privacy.sites), default=0.0) if report.privacy else 0.0
    for axes, name, colour in zip(panels, names, cycle(style.CYCLE), strict=False):
        known = [(x, values[name]) for x, values in points if name in values and math.isfinite(values[name])]
        axes.plot([x for x, _ in known], [y for _, y in known], color=colour, marker=_marker(known))
        errors = [error_of(dict(points)[x], name) for x, _ in known]
        if any(error is not None for error in errors):
            widths = [error or 0.0 for error in errors]
            where, means = [x for x, _ in known], [y for _, y in known]
            axes.errorbar(where, means, yerr=widths, linestyle="", capsize=3, color=colour)
        if any(is_withheld(values, name) for _, values in points):
            axes.text(0.5, 0.5, _WITHHELD, ha="center", va="center", transform=axes.transAxes)
        axes.set_title(name.replace("_", " "))
        axes.margins(x=0.08, y=0.15)
        _rounds_axis(axes)
        if spent:
            axes.set_xlabel(f"round; epsilon {spent:.3g} after the last")
        if name in report.chance:
            axes.axhline(report.chance[name], color=style.FAINT, linestyle=":", linewidth=1)
        if known:
            # Beside the panel, where no curve is.
            axes.annotate(
                f"{known[-1][1]:.4g}",
                (1.0, known[-1][1]),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                annotation_clip=False,
                ha="left",
                va="center",
                color=colour,
                weight="bold",
            )
        for item in report.rounds:
            if item.aborted:
                axes.axvspan(item.round - 0.5, item.round + 0.5, color=style.GRID, linewidth=0)
    return figure


def _participation(report: RunReport) -> Figure | None:
    """Survivors per round, and who was lost at which stage above them."""
    rounds = report.rounds
    if not rounds:
        return None
    figure, (axes,) = style.new_figure(1)
    x = [item.round for item in rounds]
    base = [float(len(item.survivors)) for item in rounds]
    _bars(axes, x, base, [0.0] * len(x), "in the sum", style.BLUE)
    lost = [Counter(stage for site, stage in item.drops if site not in item.survivors) for item in rounds]
    stages = [stage for stage in STAGES if any(stage in counts for counts in lost)]
    for stage in stages:
        heights = [float(counts[stage]) for counts in lost]
        _bars(axes, x, heights, base, f"lost at {stage}", _STAGE_COLOURS[stage])
        base = [low + height for low, height in zip(base, heights, strict=True)]
    # Who answered all along but is in no sum, because the round was given up for want of the others.
    rest = [max(0.0, len(item.asked) - low) for item, low in zip(rounds, base, strict=True)]
    if any(rest):
        _bars(axes, x, rest, base, "not in the sum", style.GRID)
    axes.set_title("Hospitals in each round's sum")
    axes.set_ylim(0, max(1, *(len(item.asked) for item in rounds)) * 1.08)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _rounds_axis(axes)
    if stages or any(rest):
        _legend(axes)
    return figure


def _cost(report: RunReport) -> Figure | None:
    """Bytes per site and seconds by phase, per round."""
    rounds = report.rounds
    if not rounds:
        return None
    figure, (sizes, times) = style.new_figure(2, across=2)
    x = [item.round for item in rounds]
    unit, scale = _unit(max(max(r.bytes_up_per_site.max, r.bytes_down_per_site.max) for r in rounds))
    for label, colour, series in (
        ("up", style.BLUE, [item.bytes_up_per_site for item in rounds]),
        ("down", style.ORANGE, [item.bytes_down_per_site for item in rounds]),
    ):
        values = [size.mean / scale for size in series]
        sizes.plot(x, values, color=colour, marker=_marker(x), label=label)
    sizes.set_title(f"Bytes per hospital ({unit})")
    sizes.margins(x=0.08, y=0.1)
    sizes.set_ylim(bottom=0)
    base = [0.0] * len(x)
    # Minutes or days of waiting for people would flatten everything else.
    named = (name for item in rounds for name in item.seconds if name != WAIT)
    phases = list(dict.fromkeys((*PHASES, *named)))
    for phase, colour in zip(phases, style.CYCLE, strict=False):
        heights = [item.seconds.get(phase, 0.0) for item in rounds]
        _bars(times, x, heights, base, phase, colour)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    times.set_title("Seconds by phase")
    for axes in (sizes, times):
        _rounds_axis(axes)
        _legend(axes)
    return figure


def _bars(
    axes: Axes, x: Sequence[int], heights: Sequence[float], base: Sequence[float], label: str, colour: str
) -> None:
    # Many thin bars would flicker: beyond a hundred rounds they touch and form an area.
    axes.bar(
        x, heights, bottom=base, width=0.75 if len(x) <= 100 else 1.0, label=label, color=colour, linewidth=0
    )


def _rounds_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)


def _marker(points: Sequence[object]) -> str:
    return "o" if len(points) <= 40 else ""


def _unit(largest: float) -> tuple[str, float]:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0
