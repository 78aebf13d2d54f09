"""A site's loss as it enters the DRO weights: checked, capped, and blurred a little.

Why a blur: the counting rule (:mod:`secfed.algorithms.dro_cohort`) speaks of real numbers, but a loss
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

BLUR: Final = 2.0**-16  # largest; about 30 to 60 steps of float32 at losses between 2 and 8
_LABEL: Final = b"secfed/v1 loss blur"


def blurred_mean(losses: torch.Tensor, cap: float) -> float:
    """The mean of capped losses plus less than 2^-16.

    Args:
        losses: [k] one loss per batch (or record), at least 0; the more there are, the less can be guessed.
        cap: larger losses count as this.

    Raises:
        RangeError: none given, or NaN, infinite or negative ones. Names no value.

    Security: the result is a single site's value; it may leave only inside a protected sum.
    """
    values = losses.detach().to("cpu", torch.float64).reshape(-1)
    if not values.numel() or not bool(torch.isfinite(values).all()) or bool((values < 0.0).any()):
        raise bad_loss()
    seed = hashlib.sha256(_LABEL + values.numpy().astype("<f8").tobytes()).digest()
    return float(values.clamp(max=cap).mean()) + BLUR * int.from_bytes(seed[:6], "big") / 2.0**48


def checked(loss: float, *, noised: bool) -> float:
    """The loss, if it can be one; noise may have made it negative, then it counts as 0.

    Raises:
        RangeError: NaN, infinite or negative. Names no value.
    """
    if noised and math.isfinite(loss):
        return max(loss, 0.0)
    if not math.isfinite(loss) or loss < 0.0:
        raise bad_loss()
    return loss


def bad_loss() -> RangeError:
    """The error for a loss that is none, without the value."""
    return RangeError(
        "a loss for the DRO weights is missing, NaN, infinite or negative",
        remedy="lower the learning rate or check the site's data",
    )
