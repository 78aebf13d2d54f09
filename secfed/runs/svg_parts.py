"""Parts of figures as SVG: lines, bars, texts, and round numbers for an axis.

Security: every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TICKS: Final = 5


def element(label: str, width: int, height: float, lines: Sequence[str]) -> str:
    """A figure of its parts; ``label`` is read to those who do not see it."""
    named = escape(label, quote=True)
    head = f'<svg role="img" aria-label="{named}" viewBox="0 0 {width} {height:.0f}" font-size="12">'
    return "\n".join([head, *lines, "</svg>"])


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = "currentColor", width: float = 1, dash: str = ""
) -> str:
    """A straight line."""
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line {where} stroke="{colour}" stroke-width="{width}"{more}/>'


def bar(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A filled rectangle, with a little room to its right."""
    where = f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1 - 1, 1):.1f}" height="{max(y2 - y1, 0):.1f}"'
    return f'<rect {where} fill="{colour}"/>'


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high."""
    rough = (high - low) / _TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round positive numbers from low to high for a logarithmic axis; closer over a short range."""
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [10.0**k * m for k in powers for m in factors if low <= 10.0**k * m <= high]
        if len(found) >= 3:
            return found[:: len(found) // 8 + 1]
    return [one for one in ticks(low, high) if one > 0]
