"""How much memory a site needs to train a dual encoder: an estimate before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.algorithms.models.encoders import VisionEncoder
from secfed.algorithms.models.towers import TowerEncoder

_FLOAT_BYTES: Final = 4  # parameters and moments stay float32 under mixed precision
_ADAM_MOMENTS: Final = 2


def memory_estimate(
    options: VisionLanguageOptions,
    image_shape: tuple[int, int, int],
    text_length: int,
    vocabulary: int,
    *,
    batch: int,
    anchor: bool = True,
) -> dict[str, int]:
    """Bytes of each part of one site's training, all parameters trained with AdamW in float32.

    Nothing of the model is allocated; the forward pass runs on shapes. Not counted: the framework itself, its
    fragmentation, the data set, and the vector that is sent (8 bytes a parameter, after training). Mixed
    precision about halves the activations; fused attention keeps less than is counted here.
    """
    with torch.device("meta"):
        model = DualEncoder(options, image_shape, text_length, vocabulary)
        images = torch.empty(batch, *image_shape)
        tokens = torch.ones(batch, text_length, dtype=torch.int64)
    parameters = _FLOAT_BYTES * sum(value.numel() for value in model.parameters())
    activations = _saved_bytes(lambda: model.objective(model(images, tokens)).total, *model.parameters())
    if options.gradient_checkpointing:
        # What is computed again is there too, one layer at a time.
        features = model.encode(images, tokens)
        activations += max(
            _one_layer(_layer_of(model.image_encoder), features.image),
            _one_layer(_layer_of(model.text_encoder), features.text),
        )
    return {
        "parameters": parameters,
        "gradients": parameters,
        "moments": _ADAM_MOMENTS * parameters,
        "anchor": parameters if anchor else 0,
        "activations": activations,
    }


def _layer_of(encoder: Any) -> nn.Module:
    """The first of an encoder's layers, or the one on top of a tower."""
    if isinstance(encoder, VisionEncoder):
        return encoder.blocks[0]
    return cast(nn.Module, encoder.block if isinstance(encoder, TowerEncoder) else encoder.encoder.layer[0])


def _one_layer(layer: nn.Module, tokens: torch.Tensor) -> int:
    """Bytes that one transformer layer keeps, its input not counted."""
    tokens = tokens.detach()
    return _saved_bytes(lambda: layer(tokens), *layer.parameters(), tokens)


def _saved_bytes(forward: Callable[[], torch.Tensor], *without: torch.Tensor) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, but for some tensors."""
    kept: dict[int, torch.UntypedStorage] = {}  # holding a storage keeps its address from being used again
    known = {value.untyped_storage()._cdata for value in without}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage
        return value

    with saved_tensors_hooks(keep, lambda value: value):
        result = forward()
    del result
    return sum(storage.nbytes() for storage in kept.values())
