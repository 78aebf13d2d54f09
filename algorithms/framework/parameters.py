"""Model parameters as a State and back, with the checks a site makes before it trains on one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from secfed.errors import ConfigError, MalformedMessage
from secfed.wire.layout import State
from secfed.wire.parts import is_finite_tensor

_OTHER_TASKS: Final = "; see algorithm.task for what is no classification"
_SAME: Final = "the aggregator must run the same study file and the same version of the model"


TRAVELLING: Final = (
    "travelling_buffers"  # attribute of a module: names of its buffers that are a model's part
)


AT_HOME: Final = "stays_at_home"  # attribute of a model: names of parameters that are in no message


def _parts(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, and the buffers that modules declare, but for what stays at home."""
    buffers = {
        f"{name}.{own}" if name else own: getattr(module, own)
        for name, module in model.named_modules()
        for own in getattr(module, TRAVELLING, ())
    }
    stays: frozenset[str] = getattr(model, AT_HOME, frozenset())
    return {**{name: one for name, one in model.named_parameters() if name not in stays}, **buffers}


def read_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and declared buffers, by name: float32 on the CPU."""
    state = {}
    for name, parameter in _parts(model).items():
        value = parameter.detach().to(device="cpu", dtype=torch.float32)
        state[name] = value.clone(memory_format=torch.contiguous_format)
    return state


def check_shapes(received: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse, with a MalformedMessage, a model with other names or shapes than the study's."""
    if set(shapes) != set(received):
        names = ", ".join(sorted(set(shapes) ^ set(received))[:5])
        message = f"the received model does not have this study's parameters: {names}"
        raise MalformedMessage(message, remedy=_SAME)
    for name, shape in shapes.items():
        if tuple(received[name].shape) != shape:
            message = f"received parameter {name!r} has shape {tuple(received[name].shape)}, not {shape}"
            raise MalformedMessage(message, remedy=_SAME)


def shapes_of(state: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by ``prefix`` and name."""
    return {prefix + name: tuple(value.shape) for name, value in state.items()}


def write_parameters(model: nn.Module, state: State) -> None:
    """Put a received model into ``model``; a MalformedMessage if it does not fit or is not finite."""
    own = _parts(model)
    check_shapes(state, shapes_of(own))
    for name in own:
        if not is_finite_tensor(state[name]):
            message = f"received parameter {name!r} contains NaN or Inf"
            raise MalformedMessage(message, remedy="lower algorithm.learning_rate; training has diverged")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])


def names_of(model: nn.Module) -> list[tuple[str, ...]]:
    """Every parameter's names: one, or where layers share it, all of them; the first is that of messages."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return [tuple(names) for names in found.values()]


def alike(names: tuple[str, ...], chosen: Collection[str], key: str) -> bool:
    """Whether a parameter is among the chosen; ConfigError if only some of its names are.

    Security: else it leaves under one name what was to stay at the site under another.
    """
    inside = [name for name in names if name in chosen]
    if inside and len(inside) < len(names):
        others = ", ".join(name for name in names if name not in inside)
        raise ConfigError(
            f"{key}: names {inside[0]!r}, which is one parameter with {others}",
            remedy="name all of them, or none: layers that share a parameter train, stay and leave together",
        )
    return bool(inside)


def trainable(model: nn.Module, local: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the parameters that training changes, without those of ``local`` layers."""

    def stays(name: str) -> bool:
        return any(f"{name}.".startswith(f"{layer}.") for layer in local)

    for name, module in model.named_modules():
        # Batch statistics mix the records of a batch and are buffers, which no exchange carries.
        mixes = isinstance(module, nn.modules.batchnorm._BatchNorm) and not hasattr(module, TRAVELLING)
        if mixes and not stays(name):
            raise ConfigError(
                f"model.name: layer {name!r} is batch normalisation, whose statistics would not be summed",
                remedy='use torch.nn.GroupNorm or torch.nn.LayerNorm, or set algorithm.batch_norm = "pooled" '
                'or "frozen" where the algorithm has it',
            )
    every = names_of(model)
    at_site = {name for names in every for name in names if stays(name)}
    trains = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = tuple(
        one[0] for one in every if one[0] in trains and not alike(one, at_site, "algorithm.local_layers")
    )
    if not names:
        more = " outside the local layers" if local else ""
        message = f"model.name: the model has no trainable parameters{more}"
        raise ConfigError(message, remedy="use another model")
    return names


def check_scores(model: nn.Module, input_shape: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """Try a user's model on two records of zeros, before any site has to; it stays in evaluation mode.

    What PyTorch says about zeros tells nothing about anybody's records, so the ConfigError shows it.
    """
    model.eval()
    try:
        with torch.no_grad():
            scores = model(torch.zeros(2, *input_shape))
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ConfigError(
            f"model.name: the model cannot take records of shape {input_shape}: {said}",
            remedy="build its first layer from the shape that the factory is given",
        ) from error
    if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != (2, *outputs):
        given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        message = f"model.name: for 2 records the model gives {given}, not scores of shape {(2, *outputs)}"
        raise ConfigError(
            message, remedy="let it end with one score per class, for two classes too" + _OTHER_TASKS
        )
