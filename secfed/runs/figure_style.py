"""How every figure looks, and how it is written so that equal data give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart under the common forms of colour blindness, and in grey.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
INK, FAINT, GRID = "#222222", "#6B6B6B", "#E3E3E3"

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures do not depend on the machine
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "svg.hashsalt": "secfed",  # element ids come from here, not from a random number
    "svg.fonttype": "path",
}


@contextmanager
def styled() -> Iterator[None]:
    """Use the style inside the block; the caller's own settings come back afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in _STYLE.items():
            mpl.rcParams[cast(Any, name)] = value
        yield


def new_figure(
    panels: int, *, across: int = 1, width_in: float = 7.2, height_in: float = 2.8
) -> tuple[Figure, list[Axes]]:
    """A figure of panels in rows; without pyplot, so nothing global is left behind."""
    rows = -(-panels // across)
    figure = Figure(figsize=(width_in, height_in * rows), layout="constrained")
    axes = list(figure.subplots(rows, across, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.set_axis_off()
    return figure, axes[:panels]


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same bytes."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
