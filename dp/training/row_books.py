"""Books of layers whose gradients are few numbers per record: summed first, then measured and added.

Whatever rounding there was in those sums, what is measured is what is added, so it makes no norm too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from secfed.dp.training.book_keeping import Totals, row_squares, wide


class RowsBook:
    """Gradients per record as they are: [B, ...] for each parameter."""

    def __init__(self, rows: dict[nn.Parameter, torch.Tensor]) -> None:
        self._rows = {value: part for value, part in rows.items() if value.requires_grad}

    def squares(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """The squared norm of every record's gradient, per parameter: [B] float64."""
        for value, rows in self._rows.items():
            yield value, row_squares(rows)

    def add(self, factors: torch.Tensor, kept: torch.Tensor | None, totals: Totals) -> None:
        """As of :class:`~secfed.dp.training.book_keeping.OuterBook`."""
        for value, rows in self._rows.items():
            totals.add_rows(value, rows if kept is None else rows[kept], factors)


class EmbeddingBook:
    """An embedding: indices [B, ...] and gradients of the vectors that were looked up, [B, ..., d].

    A record may look up one row many times, so its gradient is first summed per (record, row).
    """

    def __init__(self, layer: nn.Embedding, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        records = len(outputs)
        self._weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self._records = records
        rows = layer.num_embeddings
        ids = inputs.reshape(records, -1)
        owner = torch.arange(records, device=ids.device)[:, None]
        pairs, places = torch.unique(owner * rows + ids, return_inverse=True)
        self._owners, self._ids = pairs // rows, pairs % rows
        looked_up = outputs.reshape(-1, layer.embedding_dim)
        self._rows = looked_up.new_zeros((len(pairs), layer.embedding_dim), dtype=wide(looked_up))
        self._rows.index_add_(0, places.reshape(-1), looked_up.to(self._rows.dtype))
        if layer.padding_idx is not None:  # as autograd does
            self._rows[self._ids == layer.padding_idx] = 0.0

    def squares(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """As of :class:`RowsBook`."""
        found = torch.zeros(self._records, dtype=torch.float64, device=self._rows.device)
        yield self._weight, found.index_add_(0, self._owners, row_squares(self._rows))

    def add(self, factors: torch.Tensor, kept: torch.Tensor | None, totals: Totals) -> None:
        """As of :class:`RowsBook`."""
        owners, ids, rows = self._owners, self._ids, self._rows
        if kept is not None:
            chosen = kept[owners]
            owners, ids, rows = (kept.cumsum(dim=0) - 1)[owners[chosen]], ids[chosen], rows[chosen]
        totals.of(self._weight).index_add_(0, ids, rows.double().mul_(factors[owners, None]))


def norm_book(layer: Any, inputs: torch.Tensor, outputs: torch.Tensor) -> RowsBook:
    """A normalisation with a weight and perhaps a bias: inputs and gradients of its outputs, [B, ...]."""
    rows: dict[nn.Parameter, torch.Tensor] = {}
    if layer.weight.requires_grad:
        rows[layer.weight] = _per_record(layer, _NORMALISED[type(layer)](layer, inputs) * outputs)
    if getattr(layer, "bias", None) is not None and layer.bias.requires_grad:
        rows[layer.bias] = _per_record(layer, outputs)
    return RowsBook(rows)


def _per_record(layer: Any, products: torch.Tensor) -> torch.Tensor:
    """Summed over the positions of every record: [B, d]."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        places = products.reshape(len(products), -1, math.prod(layer.normalized_shape))
        return places.sum(dim=1, dtype=wide(products))
    return products.flatten(2).sum(dim=2, dtype=wide(products)) if products.dim() > 2 else products


_NORMALISED: Final[dict[type[nn.Module], Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    nn.LayerNorm: lambda layer, inputs: functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps),
    nn.RMSNorm: lambda layer, inputs: functional.rms_norm(inputs, layer.normalized_shape, eps=layer.eps),
    nn.GroupNorm: lambda layer, inputs: functional.group_norm(inputs, layer.num_groups, eps=layer.eps),
    **dict.fromkeys(
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        lambda layer, inputs: functional.instance_norm(inputs, eps=layer.eps),
    ),
}
