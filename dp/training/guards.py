"""Models that per-record clipping cannot protect, refused before any gradient is computed.

A guard that is silent proves nothing; the engines are therefore also compared with the plain loop, on
made-up records (:mod:`secfed.dp.training.engine_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from secfed.errors import ConfigError

_LOOP = 'use engine = "loop"'


def check_model(model: nn.Module, optimiser: Optimizer | None = None) -> dict[str, nn.Parameter]:
    """Checks that hold for every engine, with its optimiser if any; returns the trainable parameters."""
    for name, module in model.named_modules():
        statistics = isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
        if isinstance(module, _BatchNorm) or (statistics and module.track_running_stats):
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) mixes the records of a batch and keeps "
                "statistics of them without noise",
                remedy="use GroupNorm or LayerNorm",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) shortens the vectors that a record looks up, "
                "which would carry records out without noise",
                remedy="leave out max_norm",
            )
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not parameters:
        raise ConfigError("the model has no trainable parameters")
    known = {id(value) for value in model.parameters()}
    for group in [] if optimiser is None else optimiser.param_groups:
        if any(id(value) not in known for value in group["params"]):
            raise ConfigError(
                "the optimiser steps a parameter that is not in the model, so its gradient gets no noise",
                remedy="build the optimiser from model.parameters()",
            )
    return parameters


def is_sampled(module: nn.Module) -> bool:
    """Whether Opacus has a hand-written rule for this type of layer.

    Any other layer with parameters of its own is recomputed inside ``vmap``, with everything below it.
    """
    from opacus.grad_sample import GradSampleHooks  # takes seconds to import

    return type(module) in GradSampleHooks.GRAD_SAMPLERS


def own_trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that a module owns itself, by their names in it."""
    return {name: value for name, value in module.named_parameters(recurse=False) if value.requires_grad}


def is_expanded(module: nn.Module) -> bool:
    """Whether all that a module owns itself are tokens and tables [1, T, d], which broadcast over records.

    The engine "ghost" gives each record a copy of its own, so such a module need not be recomputed. One that
    uses them otherwise is found by the comparison with the loop, which weighs records differently.
    """
    own = own_trainable(module).values()
    shaped = all(value.dim() == 3 and len(value) == 1 for value in own)
    return bool(own) and shaped and not is_sampled(module)


def check_hooked(model: nn.Module, *, expand: bool = False) -> None:
    """Checks of a model that passed :func:`check_model`, for engines that use hooks.

    ``expand``: modules of :func:`is_expanded` are not recomputed.
    """
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        if getattr(module, "inplace", False):
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) works in place, which hooks cannot follow",
                remedy=f"set inplace=False, or {_LOOP}",
            )
        own = own_trainable(module).values()
        for value in own:
            if owners.setdefault(id(value), name) != name:
                raise ConfigError(
                    f"layers {owners[id(value)]!r} and {name!r} share a parameter",
                    remedy=f"untie it, or {_LOOP}",
                )
        if not own or is_sampled(module) or (expand and is_expanded(module)):
            continue
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            raise ConfigError(
                f"layer {name!r} ({type(module).__name__}) has no per-record gradients",
                remedy=f"use its counterpart in opacus.layers, or {_LOOP}",
            )
        for below, part in module.named_modules(prefix=name):
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
                raise ConfigError(
                    f"layer {name!r} owns parameters directly and contains dropout ({below!r}), which "
                    "cannot be recomputed per record",
                    remedy=f"set its dropout to 0, move the parameters into a layer of their own, or {_LOOP}",
                )
            if list(part.buffers(recurse=False)):
                raise ConfigError(
                    f"layer {name!r} owns parameters directly and contains buffers ({below!r})",
                    remedy=f"move the parameters into a layer of their own, or {_LOOP}",
                )


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Refuse a forward pass that writes to a buffer: such state would leave the site without noise."""
    before = {name: (id(value), value._version) for name, value in model.named_buffers()}
    yield
    after = {name: (id(value), value._version) for name, value in model.named_buffers()}
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"the forward pass changed buffer {name!r}, which would carry records out without noise",
                remedy="use layers without running state, or freeze them with eval()",
            )


class ForwardCounter:
    """Counts how often each hooked layer runs with gradients in one step: exactly once is sound.

    A layer that runs twice has its activations paired with the wrong gradients as soon as one of the
    passes is not differentiated (opacus issue 461); a layer that does not run has no gradient to clip.
    """

    def __init__(self, model: nn.Module, *, expand: bool = False) -> None:
        self.enabled = True
        self._counts: dict[str, int] = {}
        self._handles = []
        for name, module in hooked_layers(model, expand=expand):
            self._counts[name] = 0
            # Before the layer runs, so that this refusal comes before any of Opacus's.
            self._handles.append(module.register_forward_pre_hook(self._count(name)))

    def _count(self, name: str) -> Callable[[nn.Module, object], None]:
        def hook(module: nn.Module, _inputs: object) -> None:
            if self.enabled and module.training and torch.is_grad_enabled():
                self._counts[name] += 1
                if self._counts[name] > 1:
                    self._refuse(name, "a second time")

        return hook

    def check(self) -> None:
        """End one step, in which every layer must have run, and start the next."""
        idle = [name for name, count in self._counts.items() if count == 0]
        self.restart()
        if idle:
            self._refuse(idle[0], "not once")

    def restart(self) -> None:
        """Begin a step anew, whatever has run."""
        self._counts = dict.fromkeys(self._counts, 0)

    @staticmethod
    def _refuse(name: str, times: str) -> None:
        raise ConfigError(
            f"layer {name or 'the model itself'!r} ran {times} in one step; per-record gradients are only "
            "defined for one forward pass",
            remedy=f"join the inputs into one pass, freeze layers that are not used, or {_LOOP}",
        )

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def hooked_layers(
    module: nn.Module, name: str = "", *, expand: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """The layers that get hooks: those with trainable parameters of their own, outermost first."""
    if own_trainable(module):
        yield name, module
        if not is_sampled(module) and not (expand and is_expanded(module)):
            return  # everything below is recomputed with it
    for child_name, child in module.named_children():
        yield from hooked_layers(child, f"{name}.{child_name}" if name else child_name, expand=expand)
