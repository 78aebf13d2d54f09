"""Forward and backward passes of common layers for many records at once, in exact arithmetic.

Every rule uses :mod:`secfed.dp.training.exact` alone: what it gives for one record follows from that record
and the weights, to the last bit. Gradients are of the network that rounds what enters and what comes back,
which differs from float32's by as little as float32 itself does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import nn

from secfed.dp.training.exact import Alive, exp, factor_bits, rounded_weights, term_bits

_SCORE_BITS: Final = 50  # nothing is summed: only to find numbers that are not usable


class Part(Protocol):
    """The gradients of one parameter for every record of a batch."""

    squares: torch.Tensor  # [B] float64, squared L2 norms, never too small
    elements: int  # numbers that are kept for each record

    def clipped(self, factors: torch.Tensor) -> torch.Tensor:
        """The sum over records of factor * gradient, in the parameter's shape; its order is not fixed."""
        ...


class _Rows:
    """Gradients that are there: [B, ...]."""

    def __init__(self, rows: torch.Tensor, shape: torch.Size, alive: Alive) -> None:
        self._rows, self._shape = rows.reshape(len(rows), -1), shape
        self.elements = self._rows.shape[1]
        self.squares = alive.squares(self._rows)

    def clipped(self, factors: torch.Tensor) -> torch.Tensor:
        return (factors @ self._rows).reshape(self._shape)


class _Outer:
    """Gradients b a^T of a matrix, of which only a [B, d] and b [B, p] are there."""

    elements = 0  # the layer has them

    def __init__(self, inputs: torch.Tensor, outputs: torch.Tensor, alive: Alive) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.squares = alive.squares(inputs) * alive.squares(outputs)

    def clipped(self, factors: torch.Tensor) -> torch.Tensor:
        return (self._outputs * factors[:, None]).T @ self._inputs


class Rule:
    """One layer with its weights, for one batch after the other."""

    @abstractmethod
    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:
        """[B, ...] to the layer's outputs, float64."""

    @abstractmethod
    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:
        """The gradient of the layer's outputs to that of its inputs."""

    def parts(self) -> Iterator[tuple[nn.Parameter, Part]]:
        """Gradients of the layer's trainable parameters, once after each :meth:`backward`."""
        return iter(())


class _Weighted(Rule):
    """A layer with a weight and perhaps a bias."""

    def __init__(self, layer: nn.Linear | nn.Conv2d | nn.GroupNorm) -> None:
        given = layer.weight, layer.bias
        self._own = [value for value in given if isinstance(value, nn.Parameter)]
        self._parts: list[Part] = []

    def parts(self) -> Iterator[tuple[nn.Parameter, Part]]:
        for value, part in zip(self._own, self._parts, strict=False):
            if value.requires_grad:
                yield value, part


class _Linear(_Weighted):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self._bits = factor_bits(layer.in_features)
        self._back_bits = term_bits(layer.out_features) - self._bits
        self._weight = rounded_weights(layer.weight, self._bits)

    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:
        if values.dim() != 2:
            raise ValueError("a linear layer of several positions")
        self._inputs = alive.rounded(values, self._bits)
        outputs = self._inputs @ self._weight.T
        return outputs + self._own[1].detach() if len(self._own) > 1 else outputs

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:
        gradient = alive.rounded(gradient, self._back_bits)
        self._parts = [
            _Outer(self._inputs, gradient, alive),
            _Rows(gradient, gradient.shape[1:], alive),
        ]
        return gradient @ self._weight


class _Conv2d(_Weighted):
    """A convolution as a matrix product over patches: [B, K, P], K numbers in each of P patches."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer)
        self._layer = layer
        self._padding = (0, 0) if isinstance(layer.padding, str) else layer.padding
        self._patch = layer.weight[0].numel()
        self._bits = factor_bits(self._patch)
        self._weight = rounded_weights(layer.weight, self._bits).reshape(-1, self._patch)

    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:
        layer, self._size = self._layer, values.shape[2:]
        height, width = (
            (self._size[at] + 2 * self._padding[at] - layer.kernel_size[at]) // layer.stride[at] + 1
            for at in (0, 1)
        )
        # Backward, a pixel sums over output channels and the patches that it is in, a weight over patches.
        self._back_bits = term_bits(max(layer.weight[:, 0].numel(), height * width)) - self._bits
        rounded = alive.rounded(values, self._bits)
        self._patches = nn.functional.unfold(
            rounded, layer.kernel_size, padding=self._padding, stride=layer.stride
        )
        outputs = (self._weight @ self._patches).reshape(len(values), -1, height, width)
        return outputs + self._own[1].detach().reshape(-1, 1, 1) if len(self._own) > 1 else outputs

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:
        layer, own = self._layer, alive.rounded(gradient.flatten(2), self._back_bits)
        rows = own @ self._patches.transpose(1, 2)
        self._parts = [
            _Rows(rows, layer.weight.shape, alive),
            _Rows(own.sum(2), own.shape[1:2], alive),
        ]
        return nn.functional.fold(
            self._weight.T @ own, self._size, layer.kernel_size, padding=self._padding, stride=layer.stride
        )


class _GroupNorm(_Weighted):
    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer)
        self._layer = layer

    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:
        layer = self._layer
        grouped = values.reshape(len(values), layer.num_groups, -1)
        self._count = grouped.shape[2]
        centred = grouped - alive.total(grouped, 2) / self._count
        variance = alive.total(centred * centred, 2) / self._count
        self._inverse = 1.0 / torch.sqrt(variance + layer.eps)
        self._normal = (centred * self._inverse).reshape(values.shape)
        if not self._own:
            return self._normal
        weight, bias = (value.detach().reshape(-1, *[1] * (values.dim() - 2)) for value in self._own)
        return self._normal * weight + bias

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:
        shape, grouped = gradient.shape, (len(gradient), self._layer.num_groups, -1)
        if self._own:
            channels, normal = (one.reshape(*shape[:2], -1) for one in (gradient, self._normal))
            scaled = channels * normal
            self._parts = [
                _Rows(alive.total(one, 2), self._own[0].shape, alive) for one in (scaled, channels)
            ]
            gradient = gradient * self._own[0].detach().reshape(-1, *[1] * (gradient.dim() - 2))
        gradient, normal = gradient.reshape(grouped), self._normal.reshape(grouped)
        mean = alive.total(gradient, 2) / self._count
        slope = alive.total(gradient * normal, 2) / self._count
        return ((gradient - mean - normal * slope) * self._inverse).reshape(shape)


class _ReLU(Rule):
    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        self._open = values > 0.0
        return values.clamp_min(0.0)

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        return torch.where(self._open, gradient, 0.0)


class _MaxPool2d(Rule):
    """Squares side by side: each pixel is in one of them, or in none at the far edges."""

    def __init__(self, side: int) -> None:
        self._side = side

    def _corners(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """Views of the first, second, ... pixel of all squares."""
        side, (height, width) = self._side, (size // self._side * self._side for size in pixels.shape[2:])
        for row in range(side):
            for column in range(side):
                yield pixels[..., row:height:side, column:width:side]

    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        self._shape = values.shape
        for at, corner in enumerate(self._corners(values)):
            if at == 0:
                largest, self._at = corner, torch.zeros_like(corner, dtype=torch.int16)
                continue
            self._at = torch.where(corner > largest, at, self._at)
            largest = torch.maximum(largest, corner)
        return largest

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        pixels = gradient.new_zeros(self._shape)
        for at, corner in enumerate(self._corners(pixels)):
            corner.copy_(torch.where(self._at == at, gradient, 0.0))
        return pixels


class _Flatten(Rule):
    def forward(self, values: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        self._shape = values.shape
        return values.flatten(1)

    def backward(self, gradient: torch.Tensor, alive: Alive) -> torch.Tensor:  # noqa: ARG002
        return gradient.reshape(self._shape)


def cross_entropy_slope(scores: torch.Tensor, classes: torch.Tensor, alive: Alive) -> torch.Tensor:
    """The gradient of each record's cross-entropy: [B, K] scores and [B] int64 to [B, K].

    A class that there is not counts as a record without usable numbers.
    """
    scores = alive.rounded(scores, _SCORE_BITS)
    weights = exp(scores - scores.amax(dim=1, keepdim=True))
    chances = weights / alive.total(weights, 1)
    alive.rows &= (classes >= 0) & (classes < scores.shape[1])
    return chances - (classes[:, None] == torch.arange(scores.shape[1])).to(torch.float64)


def rules(model: nn.Module) -> list[Rule] | None:
    """A rule for every layer, first to last; None for a model with anything else in it."""
    made, layers = list[Rule](), list(_layers(model))
    # The gradient of a layer, or a weight, that is there twice is a sum of two, and longer than either.
    own = [id(value) for layer in layers for value in layer.parameters()]
    if len(set(own)) < len(own):
        return None
    for layer in layers:
        rule = _rule(layer)
        # A hook, or a method set on the object itself, could do anything.
        if rule is None or _hooks(layer) or "forward" in vars(layer):
            return None
        made.append(rule)
    return made


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    if type(model) is not nn.Sequential or _hooks(model) or "forward" in vars(model):
        yield model
        return
    for layer in model:
        yield from _layers(layer)


def _hooks(layer: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name) for name in names)


def _rule(layer: nn.Module) -> Rule | None:
    """The rule of one layer. The type itself, since a subclass may compute something else."""
    kind = type(layer)
    if isinstance(layer, nn.Linear) and kind is nn.Linear:
        return _Linear(layer)
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        plain = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
        return _Conv2d(layer) if plain and not isinstance(layer.padding, str) else None
    if isinstance(layer, nn.GroupNorm) and kind is nn.GroupNorm:
        return _GroupNorm(layer) if (layer.weight is None) == (layer.bias is None) else None
    if isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d:
        usual = (layer.kernel_size, 0, 1, False, False)
        same = usual == (layer.stride, layer.padding, layer.dilation, layer.return_indices, layer.ceil_mode)
        return _MaxPool2d(layer.kernel_size) if same and isinstance(layer.kernel_size, int) else None
    if kind is nn.ReLU:
        return _ReLU()
    if isinstance(layer, nn.Flatten) and kind is nn.Flatten:
        return _Flatten() if (layer.start_dim, layer.end_dim) == (1, -1) else None
    return None
