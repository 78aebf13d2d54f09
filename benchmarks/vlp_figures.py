"""ORACLE figures of vision-language pre-training: each site's robust weight, loss and recall by round.

Simulation only: in a study between hospitals nobody has the numbers that these figures show.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from vlp_oracle import Trajectory

_LABEL = "(oracle)"  # known in a simulation only


def write_figures(found: Trajectory, folder: Path) -> tuple[Path, ...]:
    """``dro.svg`` (only with robust weights) and ``convergence.svg``; equal trajectories give equal bytes."""
    from secfed.runs import figure_style as style  # matplotlib is slow to import

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    rounds = range(1, len(found.weights) + 1)
    with style.styled():
        if found.weights:
            figure, (weights, losses) = style.new_figure(2, across=2)
            _lines(weights, rounds, found.weights, found.sites)
            equal = 1 / len(found.sites)
            weights.axhline(equal, color=style.FAINT, linewidth=0.8, linestyle=":", label="equal weights")
            weights.set_title(f"Robust weight by round {_LABEL}")
            _lines(losses, rounds, found.losses, found.sites)
            losses.set_title(f"Loss that it is made from {_LABEL}")
            shown = weights.get_legend_handles_labels()
            figure.legend(*shown, loc="outside lower center", ncols=min(6, len(found.sites)))
            written.append(folder / "dro.svg")
            style.save_svg(figure, written[-1])
        figure, (recall,) = style.new_figure(1)
        versions = range(len(found.per_site))
        table = [
            [at.get(site, {}).get("recall_at_1", float("nan")) for site in found.sites]
            for at in found.per_site
        ]
        _lines(recall, versions, table, found.sites)
        known = [[value for value in row if value == value] for row in table]
        mean = [sum(row) / len(row) if row else float("nan") for row in known]
        recall.plot(versions, mean, color=style.INK, linewidth=2.4, label="mean")
        recall.set_title(f"Recall@1 by round {_LABEL}")
        recall.legend(ncols=2)
        written.append(folder / "convergence.svg")
        style.save_svg(figure, written[-1])
    return tuple(written)


def _lines(axes: Axes, at: range, table: Sequence[Sequence[float]], sites: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    from secfed.runs import figure_style as style

    for place, site in enumerate(sites):
        colour = style.CYCLE[place % len(style.CYCLE)]
        axes.plot(list(at), [row[place] for row in table], color=colour, marker="o", label=site)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
