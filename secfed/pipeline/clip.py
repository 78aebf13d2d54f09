"""Clipping: a joint norm bound for site-level privacy, and how much fixed point clips."""

from __future__ import annotations

from threading import Lock

import torch

from secfed.dp.mechanisms.noise import SiteNoise
from secfed.pipeline.stage import Stage
from secfed.wire.layout import Exchange, Summands


class JointClip(Stage):
    """Clips everything that a site contributes, jointly, to the L2 norm that its noise was planned for."""

    def __init__(self, noise: SiteNoise) -> None:
        self._noise = noise

    def at_site(self, exchange: Exchange, summands: Summands) -> Summands:  # noqa: ARG002
        """Float64 tensors of norm C at most, in scaled units."""
        return self._noise.clip(summands)


class ClippedShare(Stage):
    """The largest share of one contribution's numbers beyond ``protection.bound``, over a whole run.

    A bound that is too small changes every mean without a word. For simulations only, where the values of
    all sites are there; in a study the share of one hospital's clipped values is its own business.

    Args:
        bound: ``protection.bound``; fields with another one (counts, losses) are not looked at.

    Attributes:
        share: from 0 to 1.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._lock = Lock()
        self.share = 0.0

    def at_site(self, exchange: Exchange, summands: Summands) -> Summands:
        """Count, and hand on what came."""
        beyond = elements = 0
        for field in exchange.layout.fields:
            if field.bound == self._bound and field.name in summands:
                beyond += int((torch.as_tensor(summands[field.name]).abs() > field.bound).sum())
                elements += field.elements
        with self._lock:  # several sites may be worked for at a time
            self.share = max(self.share, beyond / elements if elements else 0.0)
        return summands
