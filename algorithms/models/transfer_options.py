"""Transfer learning between modalities: the ``[model]`` table, public facts of the data, parameter names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from secfed.config.schema import LATER, OPERATIONAL, ModelOptions
from secfed.errors import ConfigError

Modality = Literal["image", "text"]
ModelKind = Literal["image", "text", "pairs"]
Layers = Literal["all", "attention", "mlp"]

_GATED: Final[dict[Layers, tuple[str, ...]]] = {
    "all": ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"),
    "attention": ("attn.qkv", "attn.proj"),
    "mlp": ("mlp.fc1", "mlp.fc2"),
}
SharedLayers = Literal["attention", "mlp", "blocks"]
_BLOCK: Final = r"((image|text)\.)?blocks\.\d+\."
_SHARED: Final[dict[SharedLayers, re.Pattern[str]]] = {
    "attention": re.compile(_BLOCK + r"attn\.(qkv|proj)\.(weight|bias)"),
    "mlp": re.compile(_BLOCK + r"mlp\.(fc1|fc2)\.(weight|bias)"),
    "blocks": re.compile(_BLOCK + r".*"),
}


class TransferTransformerOptions(ModelOptions):
    """Options of ``transfer-transformer``: the same for all three models and all four towers.

    ViT-Small/16 is ``width = 384, depth = 12, heads = 6, patch = 16``, with ``drop_path = 0.1`` and
    ``mask_padding = false`` as published.
    """

    width: int = Field(default=64, ge=1, description="the width of every layer, a multiple of model.heads")
    depth: int = Field(default=3, ge=1, description="transformer blocks of each tower, at least 1")
    heads: int = Field(default=4, ge=1, description="attention heads, at least 1; they divide model.width")
    mlp_ratio: float = Field(
        default=4.0,
        gt=0,
        le=64,
        description="a hidden layer's width over model.width, above 0 and at most 64",
    )
    patch: int = Field(default=6, ge=1, description="pixels of a patch's side, a divisor of an image's side")
    drop_path: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="how often the last block is skipped in training, per record, at least 0 and below 1; "
        "it rises linearly from 0 at the first block",
    )
    mask_padding: bool = Field(default=True, description="true, or false to attend to padding, as published")

    weights: str | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="a local file that all blocks, the embedding of images and the last norm begin with: a "
        "state dict of timm's ViT (.safetensors or PyTorch), or the model.safetensors of another fedcola "
        "study, whose classifier of images counts; nothing is downloaded",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        json_schema_extra=OPERATIONAL | LATER,
        description="true or false: compute activations again instead of keeping them, for less memory",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            message = f"model.heads: {self.heads} does not divide model.width = {self.width}"
            raise ConfigError(message, remedy="set model.width to a multiple of model.heads")
        if self.start is not None and self.weights is not None:
            message = "model.weights: has no effect beside model.start, a whole model"
            raise ConfigError(message, remedy="remove one")
        return self

    @property
    def hidden(self) -> int:
        """Width of a block's hidden layer."""
        return max(1, round(self.width * self.mlp_ratio))


@dataclass(frozen=True)
class TransferFacts:
    """What a model has to know of the data; nothing in it depends on a record."""

    image_shape: tuple[int, int, int]  # channels, height and an equal width
    text_length: int  # with padding, which is token 0
    vocabulary: int
    image_classes: int  # at the sites with images only
    text_classes: int  # at the sites with texts only


def is_shared(name: str, layers: SharedLayers) -> bool:
    """Whether a parameter belongs to these layers of a block, with the tower's prefix or without."""
    return _SHARED[layers].fullmatch(name) is not None


def gated_weights(depth: int, layers: Layers) -> tuple[str, ...]:
    """Weights that gated layers take from the other modality's tower, without the tower's prefix."""
    return tuple(f"blocks.{k}.{layer}.weight" for k in range(depth) for layer in _GATED[layers])
