"""A forest plot: a line for each estimate with its interval, and both in numbers beside it."""

from __future__ import annotations

import math
from typing import Final

from secfed.algorithms.statistics.results import Figure
from secfed.runs.svg_parts import COLOURS, element, line, ratio_ticks, text, ticks

_WIDTH: Final = 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 190, 170, 34, 46
_ROW: Final = 24
_LONGEST_LABEL: Final = 28
_MARGIN: Final = 0.05  # of the axis, left free at both ends
_WIDEST: Final = math.log(1e4)  # of a ratio either way; what is beyond is drawn to the edge


def forest(figure: Figure) -> str:
    """Ratios on a logarithmic axis."""
    logarithmic = "ratio" in figure.x
    points = {name: one[0] for name, one in figure.series.items()}

    def scaled(value: float) -> float:
        if not logarithmic:
            return value
        return min(max(math.log(value) if value > 0 else -math.inf, -_WIDEST), _WIDEST)

    neutral = 1.0 if logarithmic else 0.0
    values = [scaled(v) for point in points.values() for v in point if not math.isnan(v)]
    finite = [scaled(neutral), *(v for v in values if math.isfinite(v))]
    margin = _MARGIN * ((max(finite) - min(finite)) or 1.0)
    low, high = min(finite) - margin, max(finite) + margin

    def x(value: float) -> float:
        share = (scaled(value) - low) / (high - low)
        return _LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    base = _TOP + _ROW * len(points)
    lines = [text(_WIDTH / 2, 14, figure.title), line(x(neutral), _TOP, x(neutral), base, "#888", 1, "4 3")]
    for row, (name, (estimate, lower, upper)) in enumerate(points.items()):
        y = _TOP + _ROW * row + _ROW / 2
        lines.append(text(_LEFT - 8, y + 4, name[:_LONGEST_LABEL], "end"))
        if math.isnan(estimate + lower + upper):
            continue
        lines.append(line(x(lower), y, x(upper), y, COLOURS[0], 2))
        lines += [line(x(end), y - 4, x(end), y + 4, COLOURS[0], 2) for end in (lower, upper)]
        lines.append(f'<circle cx="{x(estimate):.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}"/>')
        numbers = f"{estimate:.3g} ({lower:.3g} to {upper:.3g})"
        lines.append(text(_WIDTH - 4, y + 4, numbers, "end"))
    lines.append(line(_LEFT, base, _WIDTH - _RIGHT, base))
    round_numbers = ratio_ticks(math.exp(low), math.exp(high)) if logarithmic else ticks(low, high)
    for tick in round_numbers:
        lines += [line(x(tick), base, x(tick), base + 4), text(x(tick), base + 16, f"{tick:.3g}")]
    lines.append(text((_LEFT + _WIDTH - _RIGHT) / 2, base + 34, figure.x))
    return element(figure.title, _WIDTH, base + _BOTTOM, lines)
