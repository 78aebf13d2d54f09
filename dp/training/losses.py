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
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from secfed.errors import ConfigError

Batch = tuple[torch.Tensor, ...]
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@runtime_checkable
class UnitLoss(Protocol):
    """A training loss with its declaration.

    Attributes:
        name: for messages.
        decomposes: True if the loss of a batch is a sum (or mean) of one term per record, each of which
            depends on that record, the model and public data only.
    """

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def decomposes(self) -> bool:
        """Whether one term belongs to one record."""
        ...

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """One loss per record, [B], if it decomposes; otherwise one number for the whole batch.

        Args:
            model: the model being trained.
            batch: tensors with the records along the first dimension.
        """
        ...


@dataclass(frozen=True)
class DeclaredLoss:
    """A function of model and batch, with its declaration; see :class:`UnitLoss`."""

    name: str
    decomposes: bool
    function: Callable[[nn.Module, Batch], torch.Tensor]

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """See :class:`UnitLoss`."""
        return self.function(model, batch)


# What PyTorch ships and averages over records; all take reduction="none".
_KNOWN_FUNCTIONS: dict[Any, str] = {
    nn.functional.cross_entropy: "cross_entropy",
    nn.functional.nll_loss: "nll_loss",
    nn.functional.mse_loss: "mse_loss",
    nn.functional.l1_loss: "l1_loss",
    nn.functional.smooth_l1_loss: "smooth_l1_loss",
    nn.functional.huber_loss: "huber_loss",
    nn.functional.binary_cross_entropy: "binary_cross_entropy",
    nn.functional.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
}
_KNOWN_MODULES = (
    nn.CrossEntropyLoss,
    nn.NLLLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)


def supervised(criterion: Criterion, *, name: str = "", decomposes: bool | None = None) -> DeclaredLoss:
    """The loss of ``criterion(model(inputs), targets)`` over batches ``(inputs, targets)``.

    PyTorch's own averaged losses are known to decompose. Any other criterion must say so, by argument or
    by an attribute ``decomposes``; it is then evaluated on one record at a time.

    Args:
        criterion: mean over the records of a batch, from (output, target).
        name: for messages; by default the criterion's own.
        decomposes: the declaration.

    Raises:
        ConfigError: a criterion that declares nothing.
    """
    name = name or str(getattr(criterion, "name", getattr(criterion, "__name__", type(criterion).__name__)))
    declared = getattr(criterion, "decomposes", None) if decomposes is None else decomposes
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

    return DeclaredLoss(name, True, per_record)


def _unreduced(criterion: Any) -> Criterion | None:
    """The criterion with one value per element instead of a mean, for losses that PyTorch ships."""
    if isinstance(criterion, nn.Module):
        if type(criterion) not in _KNOWN_MODULES:
            return None
        kept: Any = copy.copy(criterion)
        kept.reduction = "none"
        return cast(Criterion, kept)
    if any(criterion is known for known in _KNOWN_FUNCTIONS):  # a criterion need not have a hash
        return lambda output, target: criterion(output, target, reduction="none")
    return None


def _one_by_one(criterion: Criterion) -> Criterion:
    return lambda output, target: torch.stack(
        [criterion(output[at : at + 1], target[at : at + 1]) for at in range(len(output))]
    )


def require_decomposes(loss: UnitLoss) -> None:
    """The guard of record-level privacy.

    Raises:
        ConfigError: the loss couples records; names it and the sound alternatives.
    """
    if not loss.decomposes:
        raise ConfigError(
            f"loss {loss.name!r} couples the records of a batch, so clipping per-record gradients "
            "would not bound what one record can do, and the epsilon would be wrong",
            remedy='set privacy.unit = "group" (a fixed group of records is clipped as one unit), '
            'or privacy.unit = "site", or use a loss whose negatives are public',
        )


def check_decomposes(
    loss: UnitLoss,
    model: nn.Module,
    batch: Batch,
    *,
    replacement: Batch | None = None,
    tolerance: float = 1e-5,
) -> bool:
    """Test a loss's behaviour: does changing one record leave every other record's loss and gradient alone?

    Each record is replaced in turn. What is compared is the gradient of the *other* records' summed loss
    with respect to the model: InfoNCE fails already for its values, batch normalisation for its
    statistics.

    Args:
        loss: must give one loss per record, [B].
        model: in the mode it is trained in, without dropout.
        batch: at least two records.
        replacement: [B] records to replace with, by default the batch turned by one place.
        tolerance: relative.

    Returns:
        Whether it decomposes on this batch. One batch can refute the declaration, never prove it.

    Raises:
        ConfigError: fewer than two records.
    """
    count = len(batch[0])
    if count < 2:
        raise ConfigError("a loss can only be checked on two records or more")
    others = replacement or tuple(torch.roll(part, 1, dims=0) for part in batch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def seen_by_others(changed: Batch, index: int) -> torch.Tensor | None:
        values = loss(model, changed)
        if values.shape != (count,):
            return None
        kept = torch.cat([values[:index], values[index + 1 :]])
        gradients = torch.autograd.grad(kept.sum(), parameters, allow_unused=True)
        flat = [part.reshape(-1) for part in gradients if part is not None]
        return torch.cat([kept.detach(), *flat]).double()

    for index in range(count):
        changed = tuple(part.clone() for part in batch)
        for part, other in zip(changed, others, strict=True):
            part[index] = other[index]
        before, after = seen_by_others(batch, index), seen_by_others(changed, index)
        if before is None or after is None:
            return False
        scale = max(float(before.abs().max()), 1e-12)
        # NaN is no agreement.
        if not float((before - after).abs().max()) <= tolerance * scale:
            return False
    return True
