"""Laplace noise the way the FMCSC paper adds it, to reproduce its figure. NOT a privacy guarantee.

The paper adds Laplace(0, s / epsilon) to every uploaded parameter and states neither a clipping bound nor a
sensitivity. s = 1, as here, does not hold: one site's update was measured at an L1 norm of about 5,000, which
makes ``epsilon = 50`` about 250,000 for one release, of several per round. Guarantees: :mod:`secfed.dp`.

Source: Chen et al., NeurIPS 2024 (arXiv 2410.09484), figures 4c and 9; what a guarantee would
need: Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, definition 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def laplace(shape: Sequence[int], epsilon: float, generator: torch.Generator) -> torch.Tensor:
    """Independent float32 noise with scale 1 / epsilon for every coordinate of a tensor of this shape.

    In simulation the generator is seeded from the study's seed: whoever knows it can take the noise off. At
    ``epsilon = inf`` the noise is all -0.0, as x + (-0.0) has the bits of x, and the generator is not used.
    """
    width = 1.0 / epsilon
    if width == 0.0:
        return torch.full(tuple(shape), -0.0)
    # The difference of two exponential variables is a Laplace variable.
    up = torch.empty(tuple(shape), dtype=torch.float64).exponential_(generator=generator)
    down = torch.empty(tuple(shape), dtype=torch.float64).exponential_(generator=generator)
    return (width * (up - down)).to(torch.float32)
