"""Laplace noise the way the FMCSC paper adds it. NOT a privacy guarantee.

The paper's privacy study perturbs every coordinate of the parameters that a client uploads with
Laplace(0, s / epsilon) noise and plots accuracy against ``epsilon``. It states neither a clipping bound
nor a sensitivity, and without a clip the sensitivity of a trained parameter vector is unbounded. Taking
s = 1, as here, is an assumption that does not hold: one site's update was measured at an L1 norm of
about 5,000 (6.8 million parameters), which makes ``epsilon = 50`` an epsilon of about 250,000 for one
release; and a site makes several releases per round, over several rounds, that all add up.

It exists to reproduce that figure, under that name. Guarantees come from :mod:`secfed.dp`.

Source: Chen et al., NeurIPS 2024 (arXiv 2410.09484), figures 4c and 9; what a guarantee would
need: Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, definition 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from secfed.errors import RangeError


def scale(epsilon: float, sensitivity: float = 1.0) -> float:
    """The noise scale b = sensitivity / epsilon; 0 at epsilon = inf. The standard deviation is b * sqrt(2).

    Raises:
        RangeError: an epsilon or sensitivity that is not above 0.
    """
    if not epsilon > 0 or not 0 < sensitivity < math.inf:
        raise RangeError("epsilon and sensitivity must be above 0", remedy="use inf for no noise")
    return sensitivity / epsilon


def laplace(
    shape: Sequence[int], epsilon: float, generator: torch.Generator, sensitivity: float = 1.0
) -> torch.Tensor:
    """Independent Laplace noise with scale ``sensitivity / epsilon`` for every coordinate.

    Args:
        shape: of the tensor that the noise is added to.
        epsilon: the paper's; ``inf`` is no noise.
        generator: seeded like training: in simulation from the study's seed, so that whoever knows it can
            take the noise off again.
        sensitivity: the paper's unstated constant.

    Returns:
        float32 tensor of that shape. At ``epsilon = inf`` it is all -0.0 and the generator is not used:
        x + (-0.0) has the bits of x for every x, also for x = -0.0, which + 0.0 would change.

    Raises:
        RangeError: an epsilon or sensitivity that is not above 0.
    """
    width = scale(epsilon, sensitivity)
    if width == 0.0:
        return torch.full(tuple(shape), -0.0)
    # The difference of two exponential variables is a Laplace variable.
    up = torch.empty(tuple(shape), dtype=torch.float64).exponential_(generator=generator)
    down = torch.empty(tuple(shape), dtype=torch.float64).exponential_(generator=generator)
    return (width * (up - down)).to(torch.float32)
