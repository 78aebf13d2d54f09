"""A site's loss as it enters the DRO weights: capped, and blurred a little.

A batch whose loss is NaN or infinite, or cannot be computed, counts as the cap, as every loss beyond it does;
one below 0, which no contrastive loss is but by noise, counts as 0. So a site adds to every sum of the study,
whatever the model that it was given makes of its records.

Why a blur: the counting rule (:mod:`secfed.algorithms.dro.rule`) speaks of real numbers, but a loss
that comes out of a network is one of a few million float32 values. Somebody with the sums of three
sites could try every value for the first, solve for the other two, and keep the one try in which those
are float32 values as well. A blur below 2^-16, far under the loss's own sampling error, makes every try
fit. It is a hash of the losses of all batches, so that runs are reproducible, and whoever could compute
it knows those losses already.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import torch

from secfed.errors import RangeError
from secfed.wire.parts import all_finite

BLUR: Final = 2.0**-16  # largest; about 30 to 60 steps of float32 at losses between 2 and 8
_LABEL: Final = b"secfed/v1 loss blur"


def blurred_mean(losses: torch.Tensor, cap: float) -> float:
    """The mean of capped losses, [k] of batches (or records) and at least one, plus less than 2^-16.

    Security: the result is a single site's value; it may leave only inside a protected sum.
    """
    values = losses.detach().to("cpu", torch.float64).reshape(-1)
    if not values.numel():
        raise RangeError("DRO weights need the loss of a batch", remedy="set algorithm.loss_batches")
    seed = hashlib.sha256(_LABEL + values.numpy().astype("<f8").tobytes()).digest()
    all_finite(torch.isfinite(values), "losses for the robust weight")
    usable = torch.nan_to_num(values, nan=cap, posinf=cap, neginf=cap).clamp(min=0.0, max=cap)
    return float(usable.mean()) + BLUR * int.from_bytes(seed[:6], "big") / 2.0**48


def capped(loss: float, cap: float) -> float:
    """The loss between 0 (noise may have made it negative) and the cap, which NaN and Inf count as."""
    return min(max(loss, 0.0), cap) if math.isfinite(loss) else cap
