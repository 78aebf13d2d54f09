"""Which losses may pass through per-record clipping, declared by the loss and checked numerically.

DP-SGD bounds what one record can do by clipping that record's gradient. This is sound only if the
batch loss is a sum of one term per record. A contrastive loss (InfoNCE, NT-Xent), a prototype loss or
batch normalisation puts every record into every term: replacing one record then changes *all* rows of
the "per-record" gradient, and an epsilon computed as if it changed one row is meaningless. So each loss
declares ``decomposes``; what does not decompose is refused at record level.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from secfed.errors import ConfigError

Batch = tuple[torch.Tensor, ...]
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class DeclaredLoss:
    """A training loss with its declaration.

    ``decomposes`` says that the loss of a batch is a sum (or mean) of one term per record, each of which
    depends on that record, the model and public data only. ``function`` then gives one loss per record, [B],
    otherwise one number for the whole batch; batches have the records along the first dimension.
    """

    name: str
    decomposes: bool
    function: Callable[[nn.Module, Batch], torch.Tensor]
    criterion: object = None  # that of (output, target) which it was made of, if it was

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss of a batch under the model that is trained."""
        return self.function(model, batch)


# What PyTorch ships and averages over records; all take reduction="none".
_KNOWN: dict[type[nn.Module], Any] = {
    nn.CrossEntropyLoss: nn.functional.cross_entropy,
    nn.NLLLoss: nn.functional.nll_loss,
    nn.MSELoss: nn.functional.mse_loss,
    nn.L1Loss: nn.functional.l1_loss,
    nn.SmoothL1Loss: nn.functional.smooth_l1_loss,
    nn.HuberLoss: nn.functional.huber_loss,
    nn.BCELoss: nn.functional.binary_cross_entropy,
    nn.BCEWithLogitsLoss: nn.functional.binary_cross_entropy_with_logits,
}


def supervised(criterion: Criterion) -> DeclaredLoss:
    """The loss of ``criterion(model(inputs), targets)`` over batches ``(inputs, targets)``.

    PyTorch's own averaged losses are known to decompose. Any other criterion must say so by an attribute
    ``decomposes``; it is then evaluated on one record at a time. It gives the mean over the records of a
    batch.
    """
    name = str(getattr(criterion, "name", getattr(criterion, "__name__", type(criterion).__name__)))
    declared = getattr(criterion, "decomposes", None)
    known = _unreduced(criterion)
    if declared is None and known is None:
        raise ConfigError(
            f"loss {name!r} does not declare whether it decomposes over records",
            remedy="give it an attribute decomposes = True or False",
        )
    if declared is False:
        return DeclaredLoss(name, False, lambda model, batch: criterion(model(batch[0]), batch[1]))
    rows = known or _one_by_one(criterion)

    def per_record(model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        losses = rows(model(inputs), targets)
        return losses.reshape(len(losses), -1).mean(dim=1)

    return DeclaredLoss(name, True, per_record, criterion)


def _unreduced(criterion: Any) -> Criterion | None:
    """The criterion with one value per element instead of a mean, for losses that PyTorch ships."""
    if isinstance(criterion, nn.Module):
        if type(criterion) not in _KNOWN:
            return None
        unreduced: Any = copy.copy(criterion)
        unreduced.reduction = "none"
        return cast(Criterion, unreduced)
    if any(criterion is known for known in _KNOWN.values()):  # a criterion need not have a hash
        return lambda output, target: criterion(output, target, reduction="none")
    return None


def _one_by_one(criterion: Criterion) -> Criterion:
    return lambda output, target: torch.stack(
        [criterion(output[at : at + 1], target[at : at + 1]) for at in range(len(output))]
    )


def require_decomposes(loss: DeclaredLoss) -> None:
    """The guard of record-level privacy: ConfigError for a loss that couples records."""
    if not loss.decomposes:
        raise ConfigError(
            f"loss {loss.name!r} couples the records of a batch, so clipping per-record gradients "
            "would not bound what one record can do, and the epsilon would be wrong",
            remedy='set privacy.unit = "group" (a fixed group of records is clipped as one unit), '
            'or privacy.unit = "site", or use a loss whose negatives are public',
        )


def check_decomposes(
    loss: DeclaredLoss,
    model: nn.Module,
    batch: Batch,
    *,
    replacement: Batch | None = None,
    tolerance: float = 1e-5,
) -> bool:
    """Test a loss's behaviour: does changing one record leave every other record's loss and gradient alone?

    Each record of the batch, of two or more, is replaced in turn: by its ``replacement``, or by the record
    before it. What is compared is the gradient of the *other* records' summed loss with respect to the model,
    in the mode it is trained in, without dropout: InfoNCE fails already for its values, batch normalisation
    for its statistics. One batch can refute the declaration, never prove it.
    """
    count = len(batch[0])
    if count < 2:
        raise ConfigError("a loss can only be checked on two records or more")
    replacements = replacement or tuple(torch.roll(part, 1, dims=0) for part in batch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def of_others(changed: Batch, index: int) -> torch.Tensor | None:
        values = loss(model, changed)
        if values.shape != (count,):
            return None
        others = torch.cat([values[:index], values[index + 1 :]])
        gradients = torch.autograd.grad(others.sum(), parameters, allow_unused=True)
        flat = [part.reshape(-1) for part in gradients if part is not None]
        return torch.cat([others.detach(), *flat]).double()

    moved = []  # of the largest number, for each record that changes; read once, from wherever it is
    for index in range(count):
        changed = tuple(part.clone() for part in batch)
        for part, other in zip(changed, replacements, strict=True):
            part[index] = other[index]
        before, after = of_others(batch, index), of_others(changed, index)
        if before is None or after is None:
            return False
        moved.append((before - after).abs().max() / before.abs().max().clamp_min(1e-12))
    return bool((torch.stack(moved) <= tolerance).all())  # NaN does not agree
