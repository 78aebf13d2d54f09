"""Self-supervised losses of images alone, which federated baselines add to the contrast of pairs.

Source: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, section 3; Han et al.,
"FedX: Unsupervised Federated Learning with Cross Knowledge Distillation", ECCV 2022, section 3.2; Grill et
al., "Bootstrap Your Own Latent", NeurIPS 2020, equations (1) and (2).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import log_softmax, normalize

from secfed.algorithms.losses.objective import full_precision


def masked_error(rebuilt: torch.Tensor, images: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Mean squared error over the pixels of hidden patches, and over no others.

    ``rebuilt`` is [B, P, c * s * s] for patches of s pixels a side, row by row, of [B, c, height, width]
    images; ``hidden`` is [B, P] bool.
    """
    errors = (full_precision(rebuilt) - patches_of(images, rebuilt.shape[1])).square().mean(dim=2)
    return (errors * hidden).sum() / hidden.sum().clamp(min=1)


def patches_of(images: torch.Tensor, count: int) -> torch.Tensor:
    """[B, count, c * s * s]: the pixels of every square patch, patches row by row."""
    across = round(count**0.5)
    parts = images.unfold(2, images.shape[2] // across, images.shape[2] // across)
    parts = parts.unfold(3, images.shape[3] // across, images.shape[3] // across)
    return parts.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def relation_loss(
    one: torch.Tensor, other: torch.Tensor, references: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """How differently two views of a record see the other records: mean Jensen-Shannon divergence.

    A view's relation is the softmax of its cosines to ``references``, [B, d] like both views, of which row b
    is record b itself and is left out. 0 for two records or fewer, which leave nothing to tell apart.
    """
    if len(one) < 3:
        return (one.sum() + other.sum()) * 0.0
    itself = torch.eye(len(one), dtype=torch.bool, device=one.device)
    first, second = (
        log_softmax(
            (full_precision(view) @ full_precision(references).T / temperature).masked_fill(itself, -1e9),
            dim=1,
        )
        for view in (one, other)
    )
    middle = torch.logaddexp(first, second) - math.log(2.0)
    apart = first.exp() * (first - middle) + second.exp() * (second - middle)
    return apart.masked_fill(itself, 0.0).sum(dim=1).mean() / 2


def bootstrap_loss(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared distance of [B, d] predictions and targets on the unit sphere, 2 - 2 cos, mean over records."""
    cosines = (normalize(full_precision(predicted), dim=1) * normalize(full_precision(target), dim=1)).sum(1)
    return (2.0 - 2.0 * cosines).mean()
