"""Norms and clipped sums of linear, convolution and embedding layers, from what entered and what came back.

The gradient of one record at a linear layer is G = sum_t b_t a_t^T over its positions t, where a_t entered
the layer and b_t is the gradient of its output. Book-keeping keeps a and b, computes the norm of every G, and
later the clipped sum over records, sum_n f_n G_n, as one matrix product: no second backward pass, and no
gradient of a single record in memory. All of it in float64, from the very a and b that the pass left. A
convolution is a linear layer whose a_t are the patches under its kernel, one such layer for each group; what
follows holds for it with S^2 summed over the groups.

Why a clipped G stays within C. Terms of a sum over positions can be many times as large as the sum, and then
rounding is what is left of it: of a norm that is too small, and of a G that is too large. Neither can be
excluded, so both are bounded by S = sum_t |b_t| |a_t|, the sum of the lengths of the terms, which is computed
without cancellation. A sum of m products in floating point, in whatever order, errs by at most gamma_m =
m u / (1 - m u) times the sum of their absolute values (u = 2^-53; Higham 2002, section 3.1). So

* the square of the norm, by any formula below, errs by at most gamma_m S^2, with m below 2^32: what is
  used as the norm is sqrt(norm^2 + eta^2 S^2) with eta = 2^-10, never too small because eta^2 > gamma_m;
* f <= C / (eta S), so rounding moves a clipped G by at most gamma_m C / eta, with m the 4096 positions of a
  block plus the number of blocks: at most 2^-30 C each, for up to 2^24 positions in a pass. The sums of two
  data sets of which up to 2^17 records were drawn therefore differ by at most 2^-12 C more than exact sums.

The price: a record whose terms cancel by a factor k is clipped as if its norm were sqrt(1 + k^2 / 2^20) times
as large, 0.5 % at k = 100.

Where G is small enough to be kept for every record of a batch, it is, in float32: the numbers that were
measured are then the numbers that are added, whatever rounding made them, and S is needed for neither. Their
norm, in float64 and without cancellation, errs by a factor of at most 1 + gamma_m, and their sum over N
records by gamma_N N C: 2^-19 C for 2^17 records. The same holds for gradients of a bias, of a normalisation
and of the rows of an embedding, which are few numbers (:mod:`secfed.dp.training.row_books`), and for a single
position, where |G| = |b| |a| = S.

Why other sums are not in float32, at half the cost. With u = 2^-24, 64 records of one position and no eta at
all, two sums differ by up to 2 gamma_64 64 C = 2^-11 C, twice what the noise pays for; it grows with the
square of the number of records, and with 1 / eta where there are positions. Norms in float32 would do with a
larger eta, but where norms cost much, G is kept.

Source: Bu, Wang, Zha, Karypis 2023, "Differentially private optimization on large model at small cost"
(book-keeping; the cheaper of two norms per layer); Goodfellow 2015 and Li et al. 2022 (the norm from two
Gram matrices); Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1.

Security: a and b come from one batched pass of the model. How far they depend on which other records are in
the batch (last digits) is not bounded here; see :mod:`secfed.dp.training.mechanism`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import nn
from torch.nn import functional

_ETA: Final = 2.0**-10
_BLOCK: Final = 1 << 12  # positions in one matrix product; the proof above needs it
_NORM_ELEMENTS: Final = 1 << 24  # float64 numbers that a norm may need at a time: 128 MiB
_KEPT_ELEMENTS: Final = 1 << 22  # numbers that a book may keep from the norms to the sums: 16 MiB of float32
_CHUNK_ELEMENTS: Final = 1 << 19  # numbers that are converted at a time: 4 MiB


class Totals:
    """Where books add: for every parameter the sum over records, in float64."""

    def __init__(self, sums: Mapping[int, torch.Tensor]) -> None:
        self._sums = sums  # by the identity of the parameter
        self._written: set[int] = set()

    def of(self, value: nn.Parameter) -> torch.Tensor:
        """The sum itself, to add to."""
        self._written.add(id(value))
        return self._sums[id(value)]

    def add_rows(self, value: nn.Parameter, rows: torch.Tensor, factors: torch.Tensor) -> None:
        """Add the sum over records of factor * row: [B, ...] and [B] float64."""
        total, rows = self.of(value).view(-1), rows.flatten(1)  # also of no record at all
        step = max(1, _CHUNK_ELEMENTS // max(1, rows.shape[1]))
        for some, part in zip(torch.split(factors, step), torch.split(rows, step), strict=True):
            total.addmv_(part.double().T, some)

    def add_outer(
        self, value: nn.Parameter, left: torch.Tensor, right: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Add the sum over positions of scale * l r^T, by groups: [G, N, p], [G, N, d] and [N]."""
        first = id(value) not in self._written
        total = self.of(value).view(len(left), left.shape[2], right.shape[2])
        for start in range(0, left.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            scaled, others = left[:, block] * scales[block, None], right[:, block].double()
            if first and not start:  # nothing is there yet
                torch.bmm(scaled.mT, others, out=total)
            else:
                total += scaled.mT @ others


class OuterBook:
    """What a layer of outer products kept: inputs [B, G, T, d] and gradients of its outputs [B, G, T, p].

    G groups of channels, each with its own part of the weight, in this order.
    """

    def __init__(self, layer: nn.Module, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        self._weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self._bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self._inputs, self._outputs = inputs, outputs
        self._rows: torch.Tensor | None = None  # gradients of the weight, where they are small
        self._bias_rows: torch.Tensor | None = None

    def squares(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """The squared norm of every record's gradient, per parameter: [B] float64, never too small."""
        if self._weight.requires_grad:
            yield self._weight, self._weight_squares()
        if self._bias is not None and self._bias.requires_grad:
            self._bias_rows = self._outputs.sum(dim=2, dtype=wide(self._outputs)).flatten(1)
            yield self._bias, row_squares(self._bias_rows)

    def add(self, factors: torch.Tensor, kept: torch.Tensor | None, totals: Totals) -> None:
        """Add the sum over records of factor * gradient, per parameter, to ``totals``.

        ``kept`` says which records are added at all ([B] bool, None for all): a factor of 0 does not silence
        what is not a number. ``factors`` are theirs, in float64.
        """
        if self._rows is not None:
            totals.add_rows(self._weight, _of(self._rows, kept), factors)
        elif self._weight.requires_grad:
            inputs, outputs = (
                _of(part, kept).transpose(0, 1).flatten(1, 2) for part in (self._inputs, self._outputs)
            )
            scales = factors.repeat_interleave(self._inputs.shape[2])
            totals.add_outer(self._weight, outputs, inputs, scales)
        if self._bias_rows is not None and self._bias is not None:
            totals.add_rows(self._bias, _of(self._bias_rows, kept), factors)

    def _weight_squares(self) -> torch.Tensor:
        (records, groups, positions, width), height = self._inputs.shape, self._outputs.shape[-1]
        if positions == 1:
            return _one_term_squares(self._inputs, self._outputs)
        # In products of numbers, those in float64 counted three times, and a kept number 16 times.
        by_gram, by_rows = positions**2 * (width + height), positions * width * height
        few = records * groups * width * height <= _KEPT_ELEMENTS
        if few and by_rows + 16 * width * height < 3 * (by_gram + by_rows):
            dtype = wide(self._inputs)
            self._rows = self._outputs.to(dtype).mT @ self._inputs.to(dtype)
            return row_squares(self._rows)
        size = positions * (width + height)
        size += 2 * positions**2 if by_gram <= by_rows else width * height
        step = max(1, _NORM_ELEMENTS // max(1, groups * size))
        parts = []
        for start in range(0, records, step):
            inputs = self._inputs[start : start + step].double()
            outputs = self._outputs[start : start + step].double()
            parts.append(_outer_squares(inputs, outputs, by_gram <= by_rows))
        if step >= records and inputs.numel() + outputs.numel() <= _KEPT_ELEMENTS:
            self._inputs, self._outputs = inputs, outputs  # not to be converted again
        return torch.cat(parts)


def linear_book(layer: nn.Linear, inputs: torch.Tensor, outputs: torch.Tensor) -> OuterBook:
    """The book of a linear layer: inputs [B, ..., d] and gradients of its outputs [B, ..., p]."""
    parts = [part.reshape(len(part), 1, -1, part.shape[-1]) for part in (inputs, outputs)]
    return OuterBook(layer, *parts)


def convolution_book(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: torch.Tensor, outputs: torch.Tensor
) -> OuterBook:
    """The book of a convolution: inputs [B, c, ...] and gradients of its outputs [B, c', ...]."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    dimensions = len(layer.kernel_size)
    sizes = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
    for axis, (size, apart, step) in enumerate(sizes, start=2):
        patches = patches.unfold(axis, (size - 1) * apart + 1, step)[..., ::apart]
    kernel_first = [*range(2 + dimensions, 2 + 2 * dimensions), *range(2, 2 + dimensions)]
    shape = (len(inputs), layer.groups, -1, math.prod(outputs.shape[2:]))
    return OuterBook(layer, patches.permute(0, 1, *kernel_first).reshape(shape).mT, outputs.reshape(shape).mT)


def row_squares(rows: torch.Tensor) -> torch.Tensor:
    """The squared norm of every row, in float64: [B, ...] to [B]."""
    flat = rows.reshape(len(rows), -1)  # a parameter may be a single number
    step = max(1, _CHUNK_ELEMENTS // max(1, flat.shape[1]))
    norms = [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(flat, step)]
    return torch.cat(norms).square()


def wide(part: torch.Tensor) -> torch.dtype:
    """float32, or float64 for what is float64: sums over positions are not made in half precision."""
    dtype: torch.dtype = torch.promote_types(part.dtype, torch.float32)
    return dtype


def _of(rows: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    return rows if kept is None else rows[kept]


def _one_term_squares(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """|b a^T|^2 + eta^2 S^2 = (1 + eta^2) |a|^2 |b|^2 per record, summed over groups: nothing can cancel."""
    lengths = [torch.linalg.vector_norm(part[:, :, 0].double(), dim=2) for part in (inputs, outputs)]
    squares: torch.Tensor = (lengths[0] * lengths[1]).square().sum(dim=1)
    return squares * (1.0 + _ETA**2)


def _outer_squares(inputs: torch.Tensor, outputs: torch.Tensor, by_gram: bool) -> torch.Tensor:
    """|sum_t b_t a_t^T|^2 + eta^2 S^2 per record and group, summed over groups: [B, G, T, d or p] to [B]."""
    if by_gram:
        grams = inputs @ inputs.mT, outputs @ outputs.mT
        lengths = [gram.diagonal(dim1=2, dim2=3).sqrt() for gram in grams]
        squares = (grams[0] * grams[1]).sum(dim=(2, 3)).clamp_min(0.0)
    else:
        lengths = [torch.linalg.vector_norm(part, dim=3) for part in (inputs, outputs)]
        squares = torch.linalg.vector_norm(outputs.mT @ inputs, dim=(2, 3)).square()
    sums = (lengths[0] * lengths[1]).sum(dim=2)
    return torch.add(squares, (_ETA * sums).square()).sum(dim=1)
