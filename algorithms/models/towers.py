"""Public encoders that stay as they are: networks with their weights in a package, whose features are kept.

A tower maps an image, or the tokens of a report, to a grid of features; only what the dual encoder puts on
top of it trains and travels. Every party makes the tower from the package that it has itself: no path in a
study file leads to it, and nothing is downloaded or executed but the layers of timm and transformers.

Features of a record are computed once and kept in half precision, record by record, so that they depend on no
other record and on no order: a round then costs what the small trainable part costs.

Source: Liu et al., EfficientNet-Lite (Tan, Le, ICML 2019, without squeeze-and-excitation); Wang et al.,
"MiniLM", NeurIPS 2020, as all-MiniLM-L6-v2 of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import load_file
from torch import nn

from secfed.algorithms.data.encoder_packages import PACKAGE, folder_of, release_of
from secfed.algorithms.losses.objective import without_autocast
from secfed.algorithms.models.encoder_libraries import bert_classes, timm_layers
from secfed.algorithms.models.kept_features import KeptFeatures
from secfed.errors import ConfigError

ImageTower = Literal["efficientnet-lite0"]
TextTower = Literal["minilm-l6-v2"]
_REST: Final = "num_batches_tracked"


@dataclass(frozen=True)
class Tower:
    """One public encoder."""

    width: int  # of its features
    vocabulary: int  # of a text encoder; 0 for images
    make: Callable[[Path], nn.Module]


def _efficientnet(folder: Path) -> nn.Module:
    timm_layers()
    from timm import create_model

    made: nn.Module = create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0, global_pool="")
    saved = torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True)
    # The same layers in the same order, under the names of another library.
    theirs = [value for name, value in saved.items() if _REST not in name and not name.startswith("_fc.")]
    ours = [name for name in made.state_dict() if _REST not in name]
    made.load_state_dict(dict(zip(ours, theirs, strict=True)), strict=False)
    return made


def _minilm(folder: Path) -> nn.Module:
    config_class, model_class = bert_classes()
    made: nn.Module = model_class(
        config_class.from_json_file(folder / "config.json"), add_pooling_layer=False
    )
    saved = load_file(folder / "model.safetensors")
    made.load_state_dict({name: saved[name] for name in made.state_dict()})  # without a pooler
    return made


TOWERS: Final = {
    "efficientnet-lite0": Tower(1280, 0, _efficientnet),
    "minilm-l6-v2": Tower(384, 30522, _minilm),
}


@lru_cache(maxsize=4)
def network(name: str, device: str) -> nn.Module:
    """A tower on a device, in evaluation mode, without gradients."""
    made = TOWERS[name].make(folder_of(name)).eval().requires_grad_(False)
    return made.to(device)


_KEPT: Final = KeptFeatures()


def features(name: str, records: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
    """Features of [B, ..] images or tokens, [B, T, width] float32, without a gradient.

    ``words``, [B, L] bool, says which tokens are not padding.
    """
    if records.is_meta:  # shapes only
        length = records.shape[1] if words is not None else (-(-records.shape[-1] // 32)) ** 2
        return records.new_empty(len(records), length, TOWERS[name].width, dtype=torch.float32)
    encoder, rows = f"{name} {release_of(name)}", []
    for at, record in enumerate(records):
        mask = None if words is None else words[at]

        def compute(record: torch.Tensor = record, mask: torch.Tensor | None = mask) -> torch.Tensor:
            with torch.no_grad(), without_autocast(records):
                return _forward(network(name, str(records.device)), record[None], mask)

        rows.append(_KEPT.of(encoder, TOWERS[name].width, record, compute))
    return torch.stack(rows).to(records.device, torch.float32)


def _forward(tower: Any, record: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is not None:
        held: torch.Tensor = tower(input_ids=record, attention_mask=mask[None].long()).last_hidden_state[0]
        return held
    image = record if record.shape[1] == 3 else record.expand(-1, 3, -1, -1)
    grid: torch.Tensor = tower.forward_features(image)[0]
    return grid.flatten(1).T


class TowerEncoder(nn.Module):
    """What trains on top of a tower: its features normed, made ``width`` wide, and one transformer block.

    Images get the mean of their patches as a first token; reports have one.
    """

    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        _, block = timm_layers()
        self.name, self._is_text = name, TOWERS[name].vocabulary > 0
        self.norm = nn.LayerNorm(TOWERS[name].width, elementwise_affine=False)
        self.adapt = nn.Linear(TOWERS[name].width, width)
        self.block = block(width, heads, qkv_bias=True)

    def forward(self, records: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        """[B, channels, size, size] images, or [B, L] tokens with ``words``, to [B, T, width]."""
        tokens = self._with_mean(self.adapt(self.norm(features(self.name, records, words))))
        mixed: torch.Tensor = self.block(tokens, attn_mask=None if words is None else words[:, None, None, :])
        return mixed

    def untrained(self, records: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        """The same tokens before anything that trains: the tower's own features, each normed."""
        return self._with_mean(self.norm(features(self.name, records, words)))

    def _with_mean(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens if self._is_text else torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)


def text_tower(name: str, vocabulary: int, width: int, heads: int) -> TowerEncoder:
    """A tower of texts, once the tokens are its own."""
    if vocabulary != TOWERS[name].vocabulary:
        raise ConfigError(
            f"model.text_tower: {name} reads tokens of its own, and the study has {vocabulary} others",
            remedy=f'set data.tokenizer = "folder" and data.tokenizer_folder = "{PACKAGE}{name}"',
        )
    return TowerEncoder(name, width, heads)
