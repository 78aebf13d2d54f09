"""The four training losses of FMCSC, each with its declaration whether it decomposes over records.

What decomposes gives one value per record; the multi-view loss compares records with each other, gives one
number, and training with the record as privacy unit refuses it.

Source: Chen et al., NeurIPS 2024, equations (1), (5), (6), (7).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.losses.contrastive import eq5, model_contrast, ntxent
from secfed.algorithms.models.multiview import MultiviewNetwork
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.errors import WrongState


def network_of(model: nn.Module) -> MultiviewNetwork:
    """The network itself, which a privacy engine may have wrapped."""
    if isinstance(model, MultiviewNetwork):
        return model
    for module in model.modules():
        if isinstance(module, MultiviewNetwork):
            return module
    raise WrongState("these losses train a MultiviewNetwork and nothing else")


def _error(rebuilt: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Squared error per record, mean over features: [n]. ``rebuilt`` may be one row for all records."""
    return (rebuilt - view).square().mean(dim=1)


def pretraining_loss(owned: Sequence[int]) -> DeclaredLoss:
    """Reconstruction of the views a site holds. Batch: those views, in order.

    Decoders of absent views are left alone: trained towards zero they would spoil the average.
    """

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        network = network_of(model)
        errors = [
            _error(network.reconstruct(view, network.enc[view](x)), x)
            for view, x in zip(owned, batch, strict=True)
        ]
        return torch.stack(errors).sum(dim=0)

    return DeclaredLoss("reconstruction", True, loss)


def multiview_loss(options: FmcscOptions) -> DeclaredLoss:
    """Reconstruction of all views, and the contrast of each with the common semantics. Batch: all views."""
    contrast = {"eq5": eq5, "ntxent": ntxent}[options.contrast]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        network = network_of(model)
        low = network.encode(batch)
        common = network.common(low)
        total = torch.zeros((), device=common.device)
        for view, (x, z) in enumerate(zip(batch, low, strict=True)):
            r = network.view_features(view, z)
            total = total + _error(network.reconstruct(view, z), x).mean()
            total = total + contrast(common, r, temperature=options.temperature)
        return total

    return DeclaredLoss(f"feature contrast ({options.contrast})", False, loss)


def distillation_loss(view: int, options: FmcscOptions) -> DeclaredLoss:
    """Teach the model of one view what the multi-view model knows. Batch: all views, then h to be matched.

    The model sees one view; it reconstructs *all* views, and its h follows the given one. Without
    distillation (an ablation) only the reconstruction is left.
    """

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        network = network_of(model)
        *views, target = batch
        low = network.encode([x if at == view else None for at, x in enumerate(views)])
        total = torch.zeros(len(target), device=target.device)
        for at, (x, z) in enumerate(zip(views, low, strict=True)):
            row = z if at == view else z[:1]
            total = total + _error(network.reconstruct(at, row), x)
        if options.distillation:
            total = total + _error(network.common(low), target)
        return total

    return DeclaredLoss("distillation", True, loss)


def single_view_loss(view: int, views: int, options: FmcscOptions) -> DeclaredLoss:
    """Reconstruction of the site's own view, and the model contrast. Batch: the view, then the global h."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        network = network_of(model)
        x, reference = batch
        if not options.model_contrast:
            return _error(network.reconstruct(view, network.enc[view](x)), x)
        low = network.encode([x if at == view else None for at in range(views)])
        contrast = model_contrast(
            network.common(low), reference, low[view], temperature=options.model_temperature
        )
        return _error(network.reconstruct(view, low[view]), x) + contrast

    return DeclaredLoss("model contrast", True, loss)
