"""How well aligned texts find their images: recall inside batches of held-out pairs, as a mean over sites.

As :mod:`secfed.algorithms.metrics.retrieval` has it, for more numbers of found images and without a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from secfed.algorithms.canonical.projections import embedded
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.metrics.score_grid import mean_over_sites, on_grid
from secfed.wire.layout import Field, State

_AT: Final = (1, 5, 10)
SHARES: Final = tuple(f"eval/recall_at_{k}" for k in _AT)


def fields() -> list[Field]:
    """Of the sum of scores: four scalars of 64 bits."""
    return [Field(name, (), 1.0, 64) for name in (*SHARES, retrieval.COUNTED)]


def projected(views: Sequence[torch.Tensor], model: State) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and texts where they can be compared: [n, dimensions] each, of norm 1."""
    means, projections = (
        [model[f"{what}/{view}"].to(torch.float64) for view in (0, 1)] for what in ("mean", "projection")
    )
    image = embedded([views[0], None], means, projections)
    return image, embedded([None, views[1]], means, projections)


def recalls(views: Sequence[torch.Tensor], model: State, batch: int) -> dict[str, float]:
    """One site's means over its batches, by field name; zeros without pairs.

    Security: single-site values; they may leave only inside a protected sum.
    """
    image, text = projected(views, model)
    sums = dict.fromkeys(SHARES, 0.0)
    rows = retrieval.drawn_batches(len(image), batch)
    for part in rows:  # all of one size
        for name, share in retrieval.recall(image[part], text[part], len(part), _AT).items():
            sums[f"eval/{name}"] += share / len(rows)
    return on_grid(sums, SHARES)


def finish(totals: Mapping[str, torch.Tensor | float]) -> dict[str, float]:
    """The means over sites that have held-out pairs."""
    return mean_over_sites(totals, retrieval.COUNTED, {name.removeprefix("eval/"): name for name in SHARES})
