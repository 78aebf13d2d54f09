"""Pretrained weights of the encoders from local files: timm's vision transformer and Hugging Face's BERT.

Nothing is downloaded, and no file is executed: PyTorch files are read with ``weights_only``. Only the side
that makes the initial model reads weights; everybody else receives them as the first broadcast.

What a file has beyond the encoder is left out: classifier, pooler, deeper layers, positions beyond a
report's length, a second token type. Images with one channel use the sum of the weights of all channels,
which is the same as repeating the image in every channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from secfed.algorithms.models.encoders import TextEncoder, VisionEncoder
from secfed.errors import ConfigError

State = Mapping[str, torch.Tensor]

_IMAGE_KEY: Final = "model.image_weights"
_TEXT_KEY: Final = "model.text_weights"
_TOWER_KEY: Final = "model.weights"
_CLASSIFIER: Final = "image/"
_TOWER_NAMES: Final = {
    "embed.patch.weight": "patch_embed.proj.weight",
    "embed.patch.bias": "patch_embed.proj.bias",
    "embed.cls": "cls_token",
    "embed.position": "pos_embed",
}
_FILES: Final = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")
_NESTED: Final = ("model", "state_dict")  # where training scripts keep the parameters beside other things
_PATCH: Final = "patch_embed.proj.weight"
_POSITION: Final = "embeddings.position_embeddings.weight"
_TYPE: Final = "embeddings.token_type_embeddings.weight"


def load_image_weights(encoder: VisionEncoder, path: Path) -> None:
    """Fill an image encoder of the same patch size, width and depth from a state dict with timm's names."""
    state = dict(_read(path, _IMAGE_KEY))
    for ours, theirs in (("prefix.cls", "cls_token"), ("prefix.pos", "pos_embed")):
        if theirs in state:
            state[ours] = state.pop(theirs)
    value = state.get(_PATCH)
    if value is not None and value.dim() == 4 and encoder.patch_embed.proj.in_channels == 1:
        state[_PATCH] = value.sum(dim=1, keepdim=True)
    _fill(encoder, state, _IMAGE_KEY, path, "use a ViT of the size and image side that the study has")


def load_text_weights(encoder: TextEncoder, path: Path) -> None:
    """Fill a text encoder of the same width from a Hugging Face BERT, a folder or its weight file."""
    state = {_bert_name(name): value for name, value in _read(path, _TEXT_KEY).items()}
    for name in (_POSITION, _TYPE):
        rows = len(encoder.get_parameter(name))
        if name in state and state[name].dim() == 2:
            state[name] = state[name][:rows]
    _fill(encoder, state, _TEXT_KEY, path, "use a BERT of the size and vocabulary that the study has")


def load_tower_weights(tower: nn.Module, norm: nn.Module, path: Path) -> None:
    """Fill an image tower of ``transfer-transformer``, and the norm after it, from timm's ViT of its size.

    A model of ``fedcola`` is read, too: of its parts, the classifier of images.
    """
    state = dict(_read(path, _TOWER_KEY))
    if any(name.startswith(_CLASSIFIER) for name in state):
        state = {name.removeprefix(_CLASSIFIER).removeprefix("image."): one for name, one in state.items()}
    for ours, theirs in _TOWER_NAMES.items():
        if theirs in state:
            state[ours] = state.pop(theirs)
    value = state.get("embed.patch.weight")
    if value is not None and value.dim() == 4 and tower.get_parameter("embed.patch.weight").shape[1] == 1:
        state["embed.patch.weight"] = value.sum(dim=1, keepdim=True)
    remedy = "use a ViT of the width, depth, patch and image side that the study has"
    _fill(tower, state, _TOWER_KEY, path, remedy)
    _fill(norm, {name.removeprefix("norm."): one for name, one in state.items()}, _TOWER_KEY, path, remedy)


def _bert_name(name: str) -> str:
    """Today's name inside ``BertModel``; the oldest files say gamma and beta."""
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def _read(path: Path, key: str) -> State:
    file = path
    if path.is_dir():
        file = next((path / name for name in _FILES if (path / name).is_file()), path / _FILES[0])
    if not file.is_file():
        raise ConfigError(
            f"{key}: there is no file {file}",
            remedy="download the weights yourself and name the file or folder; secfed never downloads",
        )
    content: Any
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:  # nothing in the file is executed
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, UnpicklingError, SafetensorError):
        message = f"{key}: {file} is not a file of weights"
        raise ConfigError(message, remedy="use .safetensors, or PyTorch's of tensors only") from None
    for name in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        raise ConfigError(f"{key}: {file} is not a table of weights by name", remedy="save a state dict")
    return {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}


def _fill(module: nn.Module, state: State, key: str, path: Path, remedy: str) -> None:
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        if name not in state:
            raise ConfigError(f"{key}: {path} has no {name!r}", remedy=remedy)
        value = state[name]
        if value.shape != parameter.shape:
            raise ConfigError(
                f"{key}: {name!r} of {path} has shape {tuple(value.shape)}, "
                f"but the study's model needs {tuple(parameter.shape)}",
                remedy=remedy,
            )
        if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
            raise ConfigError(f"{key}: {name!r} of {path} has values that are not numbers", remedy=remedy)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])
