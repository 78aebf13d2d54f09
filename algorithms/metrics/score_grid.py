"""Scores that a site adds to a sum: capped, and on a grid, so that the sum does not encode its parts.

Without a cap on held-out losses one record could decide a mean over all hospitals, and a model that gives one
record no finite score would have to be an error, which tells that the record is there.

A score such as accuracy is a fraction k / n with a small n of the site's own. A 64-bit lane carries the sum
of three of them exactly, and hardly ever have two triples of small fractions one sum: whoever has the total
finds the sites' scores *and* their numbers of records, without any dropout or help. On a grid that is the
same for all sites a total tells a sum of whole numbers, and very many triples have that.

The mean over sites moves by less than 0.05 of a percent.

Security: a total still tells much about sites whose numbers of held-out records are small *and* known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import torch

SCORE_STEP: Final = 2.0**-10
LOSS_CAP: Final = 2.0**10  # far above log(classes), the loss of a model that knows nothing


def capped(losses: torch.Tensor) -> torch.Tensor:
    """Losses of at most :data:`LOSS_CAP`; NaN counts as that much, too."""
    return torch.nan_to_num(losses, nan=LOSS_CAP, posinf=LOSS_CAP, neginf=LOSS_CAP).clamp(max=LOSS_CAP)


def on_grid(sums: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """What a site adds, with these of its fields at the nearest multiple of :data:`SCORE_STEP`."""
    rounded = {name: round(sums[name] / SCORE_STEP) * SCORE_STEP for name in sums if name in names}
    return {**sums, **rounded}


def mean_over_sites(
    totals: Mapping[str, torch.Tensor | float], counted: str, fields: Mapping[str, str]
) -> dict[str, float]:
    """Every metric as the mean of its field over the counted sites; empty where none was counted."""
    # A count is whole; fixed point (or its rounding) leaves it off by far less than one half.
    sites = round(float(totals[counted])) if counted in totals else 0
    return {name: float(totals[field]) / sites for name, field in fields.items()} if sites > 0 else {}
