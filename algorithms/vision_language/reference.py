"""What a site's loss is compared with before it makes a robust weight: that of a model of its own.

Plain robust weights follow the loss, and so the site whose loss nothing can lower: reports that repeat leave
the contrast of a batch a floor, which differs from site to site. With ``reference_steps`` a site first trains
a model for itself, once, from the model it was given; from then on its robust weight is made from how far the
loss of a batch exceeds that model's on the same batch, at least 0 (:mod:`secfed.algorithms.dro.loss`).

Source: Agarwal, Zhang, "Minimax Regret Optimization for Robust Machine Learning under Distribution Shift",
COLT 2022; with a reference model and excesses cut off at 0, as here: Xie et al., "DoReMi", NeurIPS 2023.

Security: the reference is a single site's value; it stays at the site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from secfed.errors import MalformedMessage
from secfed.wire.layout import State

REFERENCE: Final = "reference"


class Reference:
    """One site's: the loss of each of its fixed batches under the model that it trained alone."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._losses: torch.Tensor | None = None

    def excess(self, losses: torch.Tensor, alone: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Losses less those of the reference, [batches] both; negative where the received model is better.

        ``alone`` trains a model and gives its losses of the same batches; it is called once. One that is not
        a number counts as 0, so that its batch counts as it is.
        """
        if not self._steps:
            return losses
        if self._losses is None:
            self._losses = torch.nan_to_num(alone())
        return losses - self._losses

    def save(self) -> State:
        """As one tensor, once there is one."""
        return {} if self._losses is None else {REFERENCE: self._losses}

    def load(self, state: State, batches: int) -> None:
        """Continue from :meth:`save`."""
        self._losses = state.get(REFERENCE) if self._steps else None
        if self._losses is not None and (
            self._losses.shape != (batches,) or not bool(torch.isfinite(self._losses).all())
        ):
            raise MalformedMessage(
                "the reference of robust weights that a site kept is damaged",
                remedy="restore the site's state folder from a backup, or start the study with an empty one",
            )
