"""Norms and clipped sums of linear and embedding layers, from what entered them and what came back.

The gradient of one record at a linear layer is G = sum_t b_t a_t^T over its positions t, where a_t entered
the layer and b_t is the gradient of its output. Book-keeping keeps a and b, computes the norm of every G, and
later the clipped sum over records, sum_n f_n G_n, as one matrix product: no second backward pass, and no
gradient of a single record in memory. All of it in float64, from the very a and b that the pass left.

Why a clipped G stays within C. Terms of a sum over positions can be many times as large as the sum, and then
rounding is what is left of it: of a norm that is too small, and of a G that is too large. Neither can be
excluded, so both are bounded by S = sum_t |b_t| |a_t|, the sum of the lengths of the terms, which is computed
without cancellation. A sum of m products in floating point, in whatever order, errs by at most gamma_m =
m u / (1 - m u) times the sum of their absolute values (u = 2^-53; Higham 2002, section 3.1). So

* the square of the norm, by either formula below, errs by at most gamma_m S^2, with m below 2^32: what is
  used as the norm is sqrt(norm^2 + eta^2 S^2) with eta = 2^-10, never too small because eta^2 > gamma_m;
* f <= C / (eta S), so rounding moves a clipped G by at most gamma_m C / eta, with m the 4096 positions of a
  block plus the number of blocks: at most 2^-30 C each, for up to 2^24 positions in a pass. The sums of two
  data sets of which up to 2^17 records were drawn therefore differ by at most 2^-12 C more than exact sums.

The price: a record whose terms cancel by a factor k is clipped as if its norm were sqrt(1 + k^2 / 2^20) times
as large, 0.5 % at k = 100.

Gradients of a bias and of the rows of an embedding are few numbers: they are summed per record in float64
first, and those values are what is measured and what is added.

Source: Bu, Wang, Zha, Karypis 2023, "Differentially private optimization on large model at small cost"
(book-keeping; the cheaper of two norms per layer); Goodfellow 2015 and Li et al. 2022 (the norm from two
Gram matrices); Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1.

Security: a and b come from one batched pass of the model. How far they depend on which other records are in
the batch (last digits) is not bounded here; see :mod:`secfed.dp.training.mechanism`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from opacus.grad_sample import GradSampleHooks
from torch import nn

_ETA: Final = 2.0**-10
_BLOCK: Final = 1 << 12  # positions in one matrix product; the proof above needs it
_NORM_ELEMENTS: Final = 1 << 24  # float64 numbers that a norm may need at a time: 128 MiB


class LinearBook:
    """What a linear layer kept of a batch: inputs [B, ..., d] and gradients of its outputs [B, ..., p]."""

    def __init__(self, layer: nn.Linear, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        records = len(outputs)
        self._layer = layer
        self._inputs = inputs.reshape(records, -1, inputs.shape[-1])
        self._outputs = outputs.reshape(records, -1, outputs.shape[-1])

    def squares(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The squared norm of every record's gradient, per parameter: [B] float64, never too small."""
        (records, positions, width), height = self._inputs.shape, self._outputs.shape[-1]
        by_gram = positions * positions <= width * height
        size = positions * (width + height) + (2 * positions**2 if by_gram else width * height)
        step = max(1, _NORM_ELEMENTS // max(1, size))
        if self._layer.weight.requires_grad:
            parts = [
                _outer_squares(
                    self._inputs[start : start + step].double(),
                    self._outputs[start : start + step].double(),
                    by_gram,
                )
                for start in range(0, records, step)
            ]
            yield self._layer.weight, torch.cat(parts)
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            yield self._layer.bias, self._bias_rows().square().sum(dim=1)

    def sums(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The sum over records of factor * gradient, per parameter, in float64.

        A record with factor 0 ([B] float64) is left out, whatever its numbers are.
        """
        kept = factors > 0
        used = factors[kept]
        if self._layer.weight.requires_grad:
            inputs, outputs = self._inputs[kept].flatten(0, 1), self._outputs[kept].flatten(0, 1)
            scales = used.repeat_interleave(self._inputs.shape[1])[:, None]
            total = torch.zeros_like(self._layer.weight, dtype=torch.float64)
            for start in range(0, len(inputs), _BLOCK):
                block = slice(start, start + _BLOCK)
                total += (outputs[block].double() * scales[block]).T @ inputs[block].double()
            yield self._layer.weight, total
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            yield self._layer.bias, used @ self._bias_rows()[kept]

    def _bias_rows(self) -> torch.Tensor:
        return self._outputs.sum(dim=1, dtype=torch.float64)


class EmbeddingBook:
    """An embedding: indices [B, ...] and gradients of the vectors that were looked up, [B, ..., d].

    A record may look up one row many times, so its gradient is first summed per (record, row).
    """

    def __init__(self, layer: nn.Embedding, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        records = len(outputs)
        self._layer, self._records = layer, records
        rows = layer.num_embeddings
        ids = inputs.reshape(records, -1)
        owner = torch.arange(records, device=ids.device)[:, None]
        pairs, places = torch.unique(owner * rows + ids, return_inverse=True)
        self._owners, self._ids = pairs // rows, pairs % rows
        self._rows = torch.zeros(len(pairs), layer.embedding_dim, dtype=torch.float64, device=ids.device)
        self._rows.index_add_(0, places.reshape(-1), outputs.reshape(-1, layer.embedding_dim).double())
        if layer.padding_idx is not None:  # as autograd does
            self._rows[self._ids == layer.padding_idx] = 0.0

    def squares(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """As of :class:`LinearBook`."""
        found = torch.zeros(self._records, dtype=torch.float64, device=self._rows.device)
        yield self._layer.weight, found.index_add_(0, self._owners, self._rows.square().sum(dim=1))

    def sums(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """As of :class:`LinearBook`."""
        scales = factors[self._owners]
        kept = scales > 0
        total = torch.zeros_like(self._layer.weight, dtype=torch.float64)
        yield self._layer.weight, total.index_add_(0, self._ids[kept], self._rows[kept] * scales[kept, None])


Book = LinearBook | EmbeddingBook
_BOOKS: Final[dict[type[nn.Module], Any]] = {nn.Linear: LinearBook, nn.Embedding: EmbeddingBook}


class BookKeepingHooks(GradSampleHooks):  # type: ignore[misc]  # Opacus has no types
    """Opacus's hooks, which keep books of linear and embedding layers instead of gradients per record.

    Every other layer leaves its gradients per record as always (``grad_sample``). Whoever uses the ``books``
    of a backward pass empties the list.
    """

    def __init__(self, model: nn.Module) -> None:
        self.books: list[Book] = []
        super().__init__(model, loss_reduction="sum")

    def capture_backprops_hook(
        self,
        module: nn.Module,
        _forward_input: Any,
        forward_output: Any,
        loss_reduction: str,
        batch_first: bool,
    ) -> None:
        """Called by torch once per layer and backward pass."""
        if not self.hooks_enabled or type(module) not in _BOOKS:
            super().capture_backprops_hook(
                module, _forward_input, forward_output, loss_reduction, batch_first
            )
            return
        inputs, outputs = self.rearrange_grad_samples(
            module=module,
            backprops=forward_output[0].detach(),
            loss_reduction=loss_reduction,
            batch_first=batch_first,
        )
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter._forward_counter -= 1  # type: ignore[attr-defined]  # Opacus's own account
        if not module.activations:
            del module.max_batch_len
        self.books.append(_BOOKS[type(module)](module, inputs[0], outputs))


def _outer_squares(inputs: torch.Tensor, outputs: torch.Tensor, by_gram: bool) -> torch.Tensor:
    """|sum_t b_t a_t^T|^2 + eta^2 S^2 per record, from [B, T, d] and [B, T, p]: [B]."""
    if by_gram:
        products = (inputs @ inputs.mT) * (outputs @ outputs.mT)
        squares = products.sum(dim=(1, 2)).clamp_min(0.0)
    else:
        squares = (outputs.mT @ inputs).square().sum(dim=(1, 2))
    lengths = torch.linalg.vector_norm(inputs, dim=2) * torch.linalg.vector_norm(outputs, dim=2)
    return torch.add(squares, (_ETA * lengths.sum(dim=1)).square())
