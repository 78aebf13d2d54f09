"""One stage of local vision-language training: some parameters move, the others stay as they are, bit by bit.

A stage begins with a fresh optimiser, so that no moments stay. What is not trained has no gradient, and a
part without a trained parameter is in evaluation mode. A step scale multiplies the *learning rate*: Adam
would not notice a factor on the loss. A fresh Adam begins with steps of full size, which undo what sites had
in common; a warm-up (:func:`rising_rate`) lets the first be small. Pairs can be changed at random: images are
turned, moved, stretched and jittered, never mirrored, because reports name sides; words are left out of
reports.

Source: Loshchilov, Hutter, ICLR 2019 (AdamW); Goyal et al., "Accurate, Large Minibatch SGD", 2017 (warm-up);
Zhang, Jiang, Miura, Manning, Langlotz, MLHC 2022 (changes of images, a random part of the text).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional

from secfed.dp.training.optimisers import eager
from secfed.dp.training.step import Steps, StepSettings, ahead
from secfed.errors import ConfigError, RangeError

Batch = tuple[torch.Tensor, ...]  # (images [B, channels, size, size], tokens [B, length])
StageLoss = Callable[[nn.Module, Batch], torch.Tensor]
Network = TypeVar("Network", bound=nn.Module)
OptimizerName = Literal["adamw", "sgd"]

_PLAIN: Final = StepSettings()
_TURN_RAD: Final = 0.35  # 20 degrees
_MOVE: Final = 0.2  # of half the image
_STRETCH: Final = 0.1
_JITTER: Final = 0.3  # of an image's spread, as images are standardised


def begin_stage(
    model: nn.Module,
    trained: Collection[str],
    *,
    optimizer: OptimizerName = "adamw",
    learning_rate: float,
    weight_decay: float = 0.05,
    warmup: int = 0,
) -> torch.optim.Optimizer:
    """Let these parameters of the model move, and make the fresh optimiser over them."""
    train_only(model, trained)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser: torch.optim.Optimizer
    if optimizer == "sgd":
        optimiser = eager(torch.optim.SGD)(parameters, lr=learning_rate, weight_decay=weight_decay)
    else:
        optimiser = eager(torch.optim.AdamW)(
            parameters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )
    rising_rate(optimiser, warmup)
    return optimiser


def run_stage(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: StageLoss,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    settings: StepSettings = _PLAIN,
    early: bool = False,
) -> float:
    """Train in place, one optimiser step per batch; the mean loss over the steps, NaN without any.

    ``early`` lets a thread make batches :func:`ahead <secfed.dp.training.step.ahead>` of their turn; not for
    batches that an :class:`Augmentation` changes. The model is left in evaluation mode, without gradients.
    """
    steps = Steps(optimiser, lambda *batch: loss(model, batch), device, settings)
    with ExitStack() as stack:
        if early:
            batches = stack.enter_context(closing(ahead(batches, device)))
        for batch in batches:
            steps.take(batch)
    at_rest(model)
    return steps.mean()


def train_only(model: nn.Module, trained: Collection[str]) -> None:
    """Freeze every parameter but these, and put every wholly frozen part into evaluation mode."""
    wanted, own = set(trained), dict(model.named_parameters())
    if not wanted <= set(own):
        names = ", ".join(sorted(wanted - set(own))[:5])
        raise RangeError(f"a training stage names parameters that the model does not have: {names}")
    for name, parameter in own.items():
        parameter.requires_grad_(name in wanted)
        parameter.grad = None
    _set_modes(model, training=True)


def _set_modes(module: nn.Module, *, training: bool) -> None:
    """A part without parameters of its own (an activation) follows the part that it is in."""
    own = list(module.parameters())
    if own:
        training = any(parameter.requires_grad for parameter in own)
    module.training = training
    for child in module.children():
        _set_modes(child, training=training)


def at_rest(model: nn.Module) -> None:
    """Evaluation mode, no gradients kept, no parameter asks for one."""
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None


def frozen_copy(model: Network, names: Collection[str] | None = None) -> Network:
    """A copy that no training reaches: evaluation mode, and no parameter asks for a gradient.

    With ``names``, only these parameters are copied and all others are shared with the original. Nothing that
    is shared may be read while the original trains, except on purpose. ``ConfigError``: it cannot be copied.
    """
    # deepcopy takes what the memo says is copied already.
    shared = {
        id(value): value
        for name, value in model.named_parameters()
        if names is not None and name not in names
    }
    try:
        copied = copy.deepcopy(model, shared)
    except (RuntimeError, TypeError) as error:
        kind = type(error).__name__  # its text may quote values
        raise ConfigError(
            f"model.name: the algorithm needs copies of the model, and this one cannot be copied ({kind})",
            remedy="keep only parameters and buffers in it (weight norms: torch.nn.utils.parametrizations)",
        ) from None
    at_rest(copied)
    return copied


def rising_rate(optimiser: torch.optim.Optimizer, steps: int) -> None:
    """Let the learning rate rise linearly: k / steps of it in step k, then all; below 2 nothing changes."""
    if steps < 2:
        return
    full = [float(group["lr"]) for group in optimiser.param_groups]
    taken = 0

    def before_step(running: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal taken
        taken += 1
        for group, rate in zip(running.param_groups, full, strict=True):
            group["lr"] = rate * min(taken / steps, 1.0)

    optimiser.register_step_pre_hook(before_step)


def contrastive_batches(
    count: int, *, batch_size: int, steps: int | None, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Rows of one batch after another, [min(batch_size, count)], without replacement within a pass.

    All batches have one size, because the size is part of a contrastive loss: what a pass leaves over is
    not used in it, and a site with fewer records than a batch takes all of them every time.
    """
    size, made = min(batch_size, count), 0
    while steps is None or made < steps:
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - size + 1, size):
            if made == steps:
                return
            yield order[start : start + size]
            made += 1


@dataclass(frozen=True)
class Augmentation:
    """Changes batches; calling it draws from torch's default generator on the CPU, whatever the device."""

    images: float  # strength of the changes, 0 (none) to 1
    words: float  # the probability that a word is left out, below 1; the first token always stays

    def __call__(self, batch: Batch) -> Batch:
        """The batch, images and tokens with padding 0 at the end, in the same shapes; changed or itself."""
        images, tokens = batch
        return (
            turned(images, self.images) if self.images else images,
            shortened(tokens, self.words) if self.words else tokens,
        )


def turned(images: torch.Tensor, strength: float) -> torch.Tensor:
    """Every image turned, moved, stretched and jittered by amounts of its own."""
    count = len(images)

    def within(limit: float, *shape: int) -> torch.Tensor:
        drawn = (torch.rand(count, *shape) * 2 - 1) * (limit * strength)
        return drawn.to(images.device, images.dtype)

    angle, scale = within(_TURN_RAD), 1 + within(_STRETCH)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
    affine = torch.cat([rows, within(_MOVE, 2, 1)], dim=2)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return moved * (1 + within(_JITTER, 1, 1, 1)) + within(_JITTER, 1, 1, 1)


def shortened(tokens: torch.Tensor, probability: float) -> torch.Tensor:
    """Every report without some of its words; the others keep their order, and padding stays at the end."""
    stays = (torch.rand(tokens.shape) >= probability).to(tokens.device) & (tokens != 0)
    stays[:, 0] = True
    order = torch.argsort((~stays).to(torch.int8), dim=1, stable=True)
    return torch.where(stays.gather(1, order), tokens.gather(1, order), 0)
