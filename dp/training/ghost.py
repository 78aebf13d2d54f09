"""The hooks of the engine "ghost": what they kept of one pass, as books.

Only the gradients of the layers' outputs are computed, never those of the weights, which the books replace.

* Linear layers, convolutions, embeddings and normalisations have books of their own, and so has whatever is
  built of them: attention whose projections are linear layers with the records along the first dimension, as
  in timm, in Hugging Face's BERT, and in Opacus's ``DPMultiheadAttention`` with ``batch_first=True``.
  ``nn.MultiheadAttention`` hides its projections in one function: it is for ``loop``.
* Tokens and tables of shape [1, T, d] that a module owns itself, such as a class token or positions, are
  replaced by one copy per record for the length of the pass, so that autograd gives a gradient per record.
* Any other layer with parameters leaves gradients per record: by Opacus's rule for it, or recomputed inside
  ``vmap`` with everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import torch
from opacus.grad_sample import GradSampleHooks
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from secfed.dp.training.book_keeping import Totals, convolution_book, linear_book
from secfed.dp.training.guards import hooked_layers, is_expanded, is_sampled, own_trainable
from secfed.dp.training.row_books import EmbeddingBook, RowsBook, norm_book


class Book(Protocol):
    """What a layer kept of a pass."""

    def squares(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """The squared norm of every record's gradient, per parameter: [B] float64, never too small."""

    def add(self, factors: torch.Tensor, kept: torch.Tensor | None, totals: Totals) -> None:
        """Add the sum over the ``kept`` records of factor * gradient, once, after :meth:`squares`."""


_BOOKS: Final[dict[type[nn.Module], Callable[..., Book]]] = {
    nn.Linear: linear_book,
    nn.Embedding: EmbeddingBook,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution_book),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), norm_book),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), norm_book),
}


class _Pass(NamedTuple):
    """One run of one layer: what entered, and where the gradient of its output will be."""

    book: Callable[[torch.Tensor, torch.Tensor], Book]
    inputs: torch.Tensor
    version: int
    edge: GradientEdge


class BookHooks:
    """Hooks that keep what entered every layer with trainable parameters, until :meth:`books` is asked."""

    def __init__(self, model: nn.Module) -> None:
        self._recording = True
        self._passes: list[_Pass] = []
        self._handles: list[Any] = []
        self._expanded: list[tuple[nn.Module, str, nn.Parameter]] = []
        for name, layer in hooked_layers(model, expand=True):
            if is_expanded(layer):
                self._handles.append(layer.register_forward_pre_hook(self._expand))
                self._handles.append(layer.register_forward_hook(self._restore, always_call=True))
                continue
            if any(True for _ in layer.buffers()):
                raise NotImplementedError(f"layer {name!r} has parameters and buffers")
            self._handles.append(layer.register_forward_hook(self._keep(name, _book_of(layer))))

    def disable_hooks(self) -> None:
        """Let the model run as if there were no hooks."""
        self._recording = False

    def enable_hooks(self) -> None:
        """Record again."""
        self._recording = True

    def remove_hooks(self) -> None:
        """Take the hooks away."""
        self.clear()
        for handle in self._handles:
            handle.remove()

    def clear(self) -> None:
        """Forget the pass that was kept."""
        self._passes.clear()
        self._restore()

    def books(self, losses: torch.Tensor) -> list[Book]:
        """The books of the pass that gave these losses, [B], one per record."""
        passes, self._passes = self._passes, []
        with self._paused():  # layers that run again keep nothing
            gradients = torch.autograd.grad(losses.sum(), [one.edge for one in passes], allow_unused=True)
        if any(one.inputs._version != one.version for one in passes):
            raise RuntimeError("what entered a layer was changed in place afterwards")
        with torch.no_grad():
            return [
                one.book(one.inputs, gradient)
                for one, gradient in zip(passes, gradients, strict=True)
                if gradient is not None
            ]

    def _records(self, layer: nn.Module) -> bool:
        return self._recording and layer.training and torch.is_grad_enabled()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self.disable_hooks()
        try:
            yield
        finally:
            self.enable_hooks()

    def _keep(
        self, name: str, book: Callable[[torch.Tensor, torch.Tensor], Book]
    ) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not self._records(layer):
                return
            if not (inputs and isinstance(inputs[0], torch.Tensor) and isinstance(output, torch.Tensor)):
                raise RuntimeError(f"layer {name!r} does not map one tensor, given by position, to another")
            kept = inputs[0].detach()
            self._passes.append(_Pass(book, kept, kept._version, get_gradient_edge(output)))

        return hook

    def _expand(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._records(layer):
            return
        for name, value in own_trainable(layer).items():
            copies = value.expand(len(inputs[0]), -1, -1)
            self._expanded.append((layer, name, value))
            self._passes.append(_Pass(_rows_of(value), copies, copies._version, get_gradient_edge(copies)))
            layer._parameters[name] = copies  # type: ignore[assignment]

    def _restore(self, *_run: object) -> None:
        while self._expanded:
            layer, name, value = self._expanded.pop()
            layer._parameters[name] = value


def _book_of(layer: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], Book]:
    make = _BOOKS.get(type(layer))
    if make is not None and own_trainable(layer).keys() <= {"weight", "bias"}:
        return lambda inputs, outputs: make(layer, inputs, outputs)
    if is_sampled(layer):
        sampler = GradSampleHooks.GRAD_SAMPLERS[type(layer)]
    else:
        sampler = ft_compute_per_sample_gradient
        prepare_layer(layer)
    return lambda inputs, outputs: RowsBook(sampler(layer, [inputs], outputs))


def _rows_of(value: nn.Parameter) -> Callable[[torch.Tensor, torch.Tensor], Book]:
    return lambda _copies, gradients: RowsBook({value: gradients})
