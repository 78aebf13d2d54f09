"""What federated vision-language pre-training adds to a pre-training objective, as pure functions.

All of it is computed inside a site from that site's own values and what everybody received.

Source: those of :mod:`secfed.algorithms.vision_language.averaging`.
"""

from __future__ import annotations

from typing import Final, Literal

import torch

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.objective import full_precision, infonce
from secfed.wire.layout import State

AnchorReduction = Literal["mean", "sumdim"]
_SAME: Final = 1e-12  # two models nearer than this, relative to their length, are one


def anchor_loss(
    aligned: Aligned, anchor: Aligned, reduction: AnchorReduction = "sumdim", *, detach: bool = True
) -> torch.Tensor:
    """Squared distance of [B, d] embeddings to a frozen model's of the same batch, images plus texts.

    ``reduction`` is "sumdim", the squared distance of a record, mean over records; or "mean" over dimensions,
    too, which is 1 / d of it. Without ``detach`` a gradient reaches what the anchor was computed from.
    """
    scale = 1.0 if reduction == "mean" else float(aligned.image.shape[-1])
    image, text = (
        (full_precision(ours) - full_precision(theirs.detach() if detach else theirs)).square().mean()
        for ours, theirs in zip(aligned.pair, anchor.pair, strict=True)
    )
    return scale * (image + text)


def guidance_contrast(
    aligned: Aligned, anchor: Aligned, temperature: float, *, detach: bool = True
) -> torch.Tensor:
    """InfoNCE between a record's embedding and the anchor's, mean of both directions and both modalities."""
    image, text = (
        infonce(ours, theirs.detach() if detach else theirs, temperature)
        for ours, theirs in zip(aligned.pair, anchor.pair, strict=True)
    )
    return (image + text) / 2


def distance(one: State, other: State) -> float:
    """L2 distance of two models over all parameters, in float64."""
    squares = [(one[name].double() - other[name].double()).square().sum() for name in sorted(one)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def ema_scale(own: State, received: State, autoscale: float) -> float | None:
    """FedEMA's scale k = autoscale / ||received - own||, fixed once; None if the two models are the same."""
    length = max(distance(received, {name: torch.zeros_like(value) for name, value in received.items()}), 1.0)
    moved = distance(own, received)
    return None if moved <= _SAME * length else autoscale / moved


def ema_merge(own: State, received: State, scale: float) -> dict[str, torch.Tensor]:
    """FedEMA's start of a round: m * own + (1 - m) * received, m = min(scale * ||received - own||, 1)."""
    share = min(scale * distance(own, received), 1.0)
    merged = {}
    for name, value in received.items():
        sent = value.double()
        merged[name] = (sent + share * (own[name].double() - sent)).float()
    return merged


def ldawa_cosines(own: State, received: State) -> dict[str, float]:
    """cos(own, received) of every parameter tensor; 1 for zeros, which have no direction."""
    cosines = {}
    for name, value in received.items():
        local, sent = own[name].double().reshape(-1), value.double().reshape(-1)
        product = float(local.norm() * sent.norm())
        cosines[name] = max(-1.0, min(1.0, float(local @ sent) / product)) if product > 0 else 1.0
    return cosines
