"""The largest held-out loss that counts: what a record or batch adds whose loss is larger, or no number.

Without a cap one record could decide a mean over all hospitals, and a model that gives one record no finite
score would have to be an error, which tells that the record is there.
"""

from __future__ import annotations

from typing import Final

import torch

LOSS_CAP: Final = 2.0**10  # far above log(classes), the loss of a model that knows nothing


def capped(losses: torch.Tensor) -> torch.Tensor:
    """Losses of at most :data:`LOSS_CAP`; NaN counts as that much, too."""
    return torch.nan_to_num(losses, nan=LOSS_CAP, posinf=LOSS_CAP, neginf=LOSS_CAP).clamp(max=LOSS_CAP)
