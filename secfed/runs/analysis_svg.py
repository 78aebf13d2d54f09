"""Figures of an analysis as small SVG elements: forests, curves and bars, without a library.

Security: every text is escaped. Colours come from the page, so that figures follow light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final

from secfed.algorithms.statistics.results import Figure

_WIDTH: Final = 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 28, 46
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LONGEST_LABEL: Final = 30
_TICKS: Final = 5


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element."""
    drawn = _forest(figure) if figure.kind == "forest" else _axes(figure)
    height = drawn[0]
    label = escape(figure.title, quote=True)
    head = f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {height}" font-size="12">'
    return "\n".join([head, *drawn[1], "</svg>"])


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "currentColor", width: float = 1) -> str:
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {where} stroke="{colour}" stroke-width="{width}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high."""
    rough = (high - low) / _TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _forest(figure: Figure) -> tuple[int, list[str]]:
    """A line for each estimate with its interval; ratios on a logarithmic axis."""
    logarithmic = "ratio" in figure.x
    points = {name: one[0] for name, one in figure.series.items()}
    values = [
        v for point in points.values() for v in point if math.isfinite(v) and (v > 0 or not logarithmic)
    ]
    neutral = 1.0 if logarithmic else 0.0
    values.append(neutral)

    def scaled(value: float) -> float:
        return math.log10(max(value, 1e-12)) if logarithmic else value

    low, high = min(map(scaled, values)), max(map(scaled, values))
    left, height = 210, _TOP + 24 * len(points) + _BOTTOM

    def x(value: float) -> float:
        share = (scaled(value) - low) / ((high - low) or 1.0)
        return left + min(max(share, 0.0), 1.0) * (_WIDTH - left - _RIGHT)

    base = height - _BOTTOM
    lines = [_text(_WIDTH / 2, 16, figure.title), _line(x(neutral), _TOP, x(neutral), base, "#999")]
    for row, (name, (estimate, lower, upper)) in enumerate(points.items()):
        y = _TOP + 24 * row + 12
        lines.append(_text(left - 8, y + 4, name[:_LONGEST_LABEL], "end"))
        lines.append(_line(x(lower), y, x(upper), y, _COLOURS[0], 2))
        lines.append(f'<circle cx="{x(estimate):.1f}" cy="{y}" r="4" fill="{_COLOURS[0]}"/>')
    lines.append(_line(left, base, _WIDTH - _RIGHT, base))
    for tick in _ticks(low, high):
        value = 10.0**tick if logarithmic else tick
        lines.append(_text(x(value), base + 16, f"{value:.3g}"))
    lines.append(_text((left + _WIDTH) / 2, base + 34, figure.x))
    return height, lines


def _axes(figure: Figure) -> tuple[int, list[str]]:
    """Lines, steps or bars over two axes."""
    series = {name: [(p[0], p[1]) for p in points] for name, points in figure.series.items()}
    xs = [p[0] for points in series.values() for p in points] or [0.0]
    ys = [p[1] for points in series.values() for p in points] or [0.0]
    bars = figure.kind == "bars"
    count = max((len(points) for points in series.values()), default=1)
    width = (max(xs) - min(xs)) / max(count - 1, 1) if bars else 0.0
    low_x, high_x, high_y = min(xs), max(xs) + (width or 0.0), max(*ys, 1e-12)
    height = 300
    base = height - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (value - low_x) / ((high_x - low_x) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return base - value / high_y * (base - _TOP)

    lines = [_text(_WIDTH / 2, 16, figure.title)]
    for k, (name, points) in enumerate(series.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        if bars:
            part = width / len(series) or 1.0
            lines += [_bar(x(a + k * part), y(b), x(a + (k + 1) * part), base, colour) for a, b in points]
        else:
            path = _path(points, step=figure.kind == "step")
            where = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in path)
            lines.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(series) > 1:
            lines.append(_bar(_WIDTH - 140, 26 + 16 * k, _WIDTH - 130, 36 + 16 * k, colour))
            lines.append(_text(_WIDTH - 124, 35 + 16 * k, name[:_LONGEST_LABEL], "start"))
    lines += [_line(_LEFT, base, _WIDTH - _RIGHT, base), _line(_LEFT, _TOP, _LEFT, base)]
    lines += [_text(x(tick), base + 16, f"{tick:.4g}") for tick in _ticks(low_x, high_x)]
    lines += [_text(_LEFT - 6, y(tick) + 4, f"{tick:.4g}", "end") for tick in _ticks(0.0, high_y)]
    lines.append(_text((_LEFT + _WIDTH) / 2, base + 34, figure.x))
    lines.append(_text(_LEFT, _TOP - 6, figure.y, "start"))
    return height, lines


def _bar(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    where = f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1 - 1, 1):.1f}" height="{max(y2 - y1, 0):.1f}"'
    return f'<rect {where} fill="{colour}"/>'


def _path(points: Sequence[tuple[float, float]], *, step: bool) -> list[tuple[float, float]]:
    if not step:
        return list(points)
    path = list(points[:1])
    for (_, before), (at, value) in pairwise(points):
        path += [(at, before), (at, value)]
    return path
