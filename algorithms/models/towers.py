"""Public encoders that stay as they are: networks with their weights in a package, whose features are kept.

A tower maps an image, or the tokens of a report, to a grid of features; only what the dual encoder puts on
top of it trains and travels. Every party makes the tower from the package that it has itself: no path in a
study file leads to it, and nothing is downloaded or executed but the layers of timm and transformers.

Features of a record are computed once and kept in half precision, record by record, so that they depend on no
other record and on no order: a round then costs what the small trainable part costs. A :class:`Tower` of
one's own may be a timm model whose features are [channels, h, w] or [tokens, width], or any model of
transformers that gives ``last_hidden_state``.

Source: Liu et al., EfficientNet-Lite (Tan, Le, ICML 2019, without squeeze-and-excitation); Wang et al.,
"MiniLM", NeurIPS 2020, as all-MiniLM-L6-v2 of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import nn

from secfed.algorithms.data.encoder_packages import PACKAGE, folder_of, release_of
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.losses.objective import without_autocast
from secfed.algorithms.models.encoder_libraries import bert_classes, timm_layers
from secfed.algorithms.models.kept_features import KeptFeatures
from secfed.config.plugins import is_user_code, load_factory, make
from secfed.config.torchvision_repair import mending_torchvision
from secfed.errors import ConfigError

_REST: Final = "num_batches_tracked"
_KEY: Final = "a tower of [model]"


@dataclass(frozen=True)
class Tower:
    """One public encoder that stays as it is.

    ``make`` builds the network with its weights, on the CPU; it is called where records are, and only there,
    and may draw: what it leaves random is the same in every process.
    Of one image, [1, 3, H, W], its ``forward_features`` gives [1, width, h, w] or [1, tokens, width]; of the
    tokens of one report, [1, L], and their mask a call gives ``last_hidden_state``, [1, L, width]. It runs in
    evaluation mode.

    Security: it runs where records are, and the study names it, so a hospital's policy must permit it.
    """

    width: int  # of its features
    make: Callable[[], nn.Module]
    vocabulary: int = 0  # of a text encoder


def _efficientnet() -> nn.Module:
    timm_layers()
    folder = folder_of("efficientnet-lite0")
    from timm import create_model

    made: nn.Module = create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0, global_pool="")
    saved = torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True)
    # The same layers in the same order, under the names of another library.
    theirs = [value for name, value in saved.items() if _REST not in name and not name.startswith("_fc.")]
    ours = [name for name in made.state_dict() if _REST not in name]
    made.load_state_dict(dict(zip(ours, theirs, strict=True)), strict=False)
    return made


def _minilm() -> nn.Module:
    folder = folder_of("minilm-l6-v2")
    config_class, model_class = bert_classes()
    made: nn.Module = model_class(
        config_class.from_json_file(folder / "config.json"), add_pooling_layer=False
    )
    saved = load_file(folder / "model.safetensors")
    made.load_state_dict({name: saved[name] for name in made.state_dict()})  # without a pooler
    return made


TOWERS: Final = {
    "efficientnet-lite0": Tower(1280, _efficientnet),
    "minilm-l6-v2": Tower(384, _minilm, vocabulary=30522),
}
IMAGE_TOWERS, TEXT_TOWERS = ("efficientnet-lite0",), ("minilm-l6-v2",)


def tower(name: str) -> Tower:
    """One of these, or a user's own."""
    if name in TOWERS:
        return TOWERS[name]
    return _own(name, load_factory(name, _KEY))


@cache
def _own(name: str, factory: Callable[[], Any]) -> Tower:  # noqa: ARG001 - a notebook may define it again
    with torch.device("cpu"), seeded(0, "tower"):
        found = make(name, _KEY)
    if not isinstance(found, Tower):
        raise ConfigError(
            f"{_KEY}: {name!r} gives no Tower", remedy="return a secfed.algorithms.models.towers.Tower"
        )
    return found


@lru_cache(maxsize=4)
def network(found: Tower, device: str) -> nn.Module:
    """A tower on a device, in evaluation mode, without gradients."""
    with torch.device("cpu"), seeded(0, "tower"):  # in the middle of training, whose draws it must not move
        made: nn.Module = mending_torchvision(found.make)
    return made.eval().requires_grad_(False).to(device)


_KEPT: Final = KeptFeatures()


def features(name: str, records: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
    """Features of [B, ..] images or tokens, [B, T, width] float32, without a gradient.

    ``words``, [B, L] bool, says which tokens are not padding.
    """
    if records.is_meta:  # shapes only
        length = records.shape[1] if words is not None else (-(-records.shape[-1] // 32)) ** 2
        return records.new_empty(len(records), length, tower(name).width, dtype=torch.float32)
    own, found, rows = is_user_code(name), tower(name), []
    encoder = f"{name} {id(found) if own else release_of(name)}"
    for at, record in enumerate(records):
        mask = None if words is None else words[at]

        def compute(record: torch.Tensor = record, mask: torch.Tensor | None = mask) -> torch.Tensor:
            with torch.no_grad(), without_autocast(records):
                return _forward(found, str(records.device), record[None], mask)

        # Weights of one's own may change while their code does not, so nothing of them outlives the process.
        rows.append(_KEPT.of(encoder, found.width, record, compute, on_disk=not own))
    return torch.stack(rows).to(records.device, torch.float32)


def _forward(found: Tower, device: str, record: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    made: Any = network(found, device)
    if mask is not None:
        given: torch.Tensor = made(input_ids=record, attention_mask=mask[None].long()).last_hidden_state[0]
    else:
        given = made.forward_features(record if record.shape[1] == 3 else record.expand(-1, 3, -1, -1))[0]
        given = given.flatten(1).T if given.dim() == 3 else given
    if given.dim() != 2 or given.shape[1] != found.width:
        raise ConfigError(
            f"{_KEY}: of one record its network gives {tuple(given.shape)}, not [.., {found.width}]",
            remedy="give [1, width, h, w] or [1, tokens, width], and Tower the same width",
        )
    return given


class TowerEncoder(nn.Module):
    """What trains on top of a tower: its features normed, made ``width`` wide, and one transformer block.

    Images get the mean of their patches as a first token; reports have one.
    """

    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        _, block = timm_layers()
        found = tower(name)
        self.name, self._is_text = name, found.vocabulary > 0
        self.norm = nn.LayerNorm(found.width, elementwise_affine=False)
        self.adapt = nn.Linear(found.width, width)
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


def image_tower(name: str, width: int, heads: int) -> TowerEncoder:
    """A tower of images."""
    if tower(name).vocabulary:
        raise ConfigError(f"model.image_tower: {name} reads reports", remedy="set model.text_tower to it")
    return TowerEncoder(name, width, heads)


def text_tower(name: str, vocabulary: int, width: int, heads: int) -> TowerEncoder:
    """A tower of texts, once the tokens are its own."""
    if vocabulary != tower(name).vocabulary:
        folder = f'"{PACKAGE}{name}"' if name in TOWERS else "the folder of its tokenizer"
        raise ConfigError(
            f"model.text_tower: {name} reads tokens of its own, and the study has {vocabulary} others",
            remedy=f'set data.tokenizer = "folder" and data.tokenizer_folder = {folder}',
        )
    return TowerEncoder(name, width, heads)
