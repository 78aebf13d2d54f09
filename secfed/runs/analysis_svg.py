"""Figures of an analysis as small SVG elements: curves and bars, without a library; forests are beside it.

Security: every text is escaped. Colours come from the page, so that figures follow light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from secfed.algorithms.statistics.results import Figure
from secfed.runs.svg_parts import COLOURS, bar, element, line, text, ticks

_WIDTH: Final = 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 34, 46
_HIGH: Final = 266  # of the plane
_SQUARE: Final = 340  # of a plane of two shares
_LONGEST_LABEL: Final = 30
_ROW: Final = 16
_CHANCE: Final = "chance"  # the series that others are compared with
_WIDER, _LETTER, _MOST_LEFT = 30, 7, 220  # room for names beside numbers at risk
_NEXT_TO: Final = 34.0  # pixels between numbers at risk

_Points = Sequence[tuple[float, ...]]


def axes(figure: Figure) -> str:
    """Lines, steps or bars over two axes, with numbers at risk below where there are some."""
    return _Axes(figure).drawn()


class _Axes:
    def __init__(self, figure: Figure) -> None:
        self.figure, self.bars = figure, figure.kind == "bars"
        names = max((len(name) for name in figure.below), default=0) if len(figure.below) > 1 else 0
        self.left = min(max(_LEFT, _WIDER + _LETTER * names), _MOST_LEFT)
        points = [p for one in figure.series.values() for p in one] or [(0.0, 0.0)]
        points += [(x, high) for one in figure.bands.values() for x, _, high in one]
        count = max((len(one) for one in figure.series.values()), default=1)
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        self.step = (max(xs) - min(xs)) / max(count - 1, 1) if self.bars else 0.0
        self.low, self.high, self.top = min(xs), max(xs) + self.step, max(*ys, 1e-12)
        square = figure.kind == "line" and self.high == self.top == 1.0
        self.right = self.left + _SQUARE if square else _WIDTH - _RIGHT
        self.base = _TOP + (_SQUARE if square else _HIGH - _TOP)
        self.height = self.base + _BOTTOM + (_ROW * (len(figure.below) + 1) if figure.below else 0)

    def x(self, value: float) -> float:
        return self.left + (value - self.low) / ((self.high - self.low) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.base - value / self.top * (self.base - _TOP)

    def drawn(self) -> str:
        figure = self.figure
        lines = [text(_WIDTH / 2, 14, figure.title)]
        for k, (name, points) in enumerate(figure.series.items()):
            lines += self._series(k, name, points)
        lines += self._legend()
        lines += [
            line(self.left, self.base, self.right, self.base),
            line(self.left, _TOP, self.left, self.base),
        ]
        for tick in () if figure.labels else ticks(self.low, self.high):
            lines += [line(self.x(tick), self.base, self.x(tick), self.base + 4)]
            lines += [text(self.x(tick), self.base + 16, f"{tick:.4g}")]
        longest = int((self.right - self.left) / _LETTER / max(len(figure.labels), 1))
        for k, name in enumerate(figure.labels):
            lines.append(text(self.x(k + 0.5), self.base + 16, name[:longest]))
        for tick in ticks(0.0, self.top):
            lines += [line(self.left - 4, self.y(tick), self.left, self.y(tick))]
            lines += [text(self.left - 7, self.y(tick) + 4, f"{tick:.4g}", "end")]
        lines.append(text((self.left + self.right) / 2, self.base + 34, figure.x))
        lines.append(text(self.left, _TOP - 7, figure.y, "start"))
        return element(figure.title, _WIDTH, self.height, [*lines, *self._at_risk(figure.below)])

    def _series(self, k: int, name: str, points: _Points) -> list[str]:
        if self.bars:
            part = self.step / len(self.figure.series) or 1.0
            return [
                bar(
                    self.x(a + k * part),
                    self.y(b),
                    self.x(a + (k + 1) * part),
                    self.base,
                    COLOURS[k % len(COLOURS)],
                )
                for a, b in points
            ]
        stepped = self.figure.kind == "step"
        lines = []
        band = self.figure.bands.get(name, ())
        if band:
            edges = [_path([(p[0], p[side]) for p in band], step=stepped) for side in (1, 2)]
            where = self._where([*edges[0], *reversed(edges[1])])
            lines.append(f'<polygon points="{where}" fill="{COLOURS[k % len(COLOURS)]}" opacity="0.18"/>')
        where = self._where(_path([(p[0], p[1]) for p in points], step=stepped))
        chance = name == _CHANCE
        colour, more = ("#888", ' stroke-dasharray="5 4"') if chance else (COLOURS[k % len(COLOURS)], "")
        lines.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"{more}/>')
        return lines

    def _where(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)

    def _legend(self) -> list[str]:
        """Beside the plane where there is room; of curves that fall, where they begin; else to the right."""
        names = list(self.figure.series)
        if len(names) < 2:
            return []
        wide = _LETTER * min(max(map(len, names)), _LONGEST_LABEL) + 24
        x, top = _WIDTH - wide, _TOP - 8
        if self.right < _WIDTH - _RIGHT:
            x, top = self.right + 24, _TOP + 8
        elif self.figure.kind == "step":
            x, top = self.left + 12, self.base - 8 - _ROW * len(names)
        lines = []
        for k, name in enumerate(names):
            y, colour = top + _ROW * k, "#888" if name == _CHANCE else COLOURS[k % len(COLOURS)]
            lines.append(bar(x, y, x + 11, y + 10, colour))
            lines.append(text(x + 16, y + 9, name[:_LONGEST_LABEL], "start"))
        return lines

    def _at_risk(self, below: Mapping[str, _Points]) -> list[str]:
        """Numbers at risk under their times, as many as there is room for."""
        if not below:
            return []
        top = self.base + _BOTTOM + 8
        lines = [text(self.left - 7, top, "at risk", "end")]
        for k, (name, points) in enumerate(below.items()):
            y, last = top + _ROW * (k + 1), -_NEXT_TO
            if len(below) > 1:
                lines.append(text(self.left - _WIDER, y, name[:_LONGEST_LABEL], "end"))
            for time, count in points:
                if self.x(time) - last >= _NEXT_TO:
                    last = self.x(time)
                    lines.append(text(last, y, f"{count:.0f}"))
        return lines


def _path(points: Sequence[tuple[float, float]], *, step: bool) -> list[tuple[float, float]]:
    if not step:
        return list(points)
    path = list(points[:1])
    for (_, before), (at, value) in pairwise(points):
        path += [(at, before), (at, value)]
    return path
