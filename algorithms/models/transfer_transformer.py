"""The three models of transfer learning between modalities: an image and a text classifier, a pair encoder.

    image -> image.embed -> image.blocks -> norm -> head                  (image classifier)
    text  -> text.embed  -> text.blocks  -> norm -> head                  (text classifier)
    image and text, each through its own tower, the same norm, L2 norm 1  (pair encoder)

Parameters with the same name have the same shape in all three, so that sums over sites of different kinds
need no renaming. The first token of a tower's output stands for the whole image or text.

There is no dropout and no batch normalisation; ``drop_path`` draws from torch's global generator.

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning" (FedCola), ECCV 2024. Blocks:
Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021. Stochastic depth: Huang et al., "Deep
Networks with Stochastic Depth", ECCV 2016.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.losses.objective import full_precision
from secfed.algorithms.models.encoders import initialise, run_layers
from secfed.algorithms.models.transfer_options import (
    Modality,
    ModelKind,
    TransferFacts,
    TransferTransformerOptions,
)
from secfed.errors import ConfigError
from secfed.wire.layout import State

_STD = 0.02  # of tables and positions; of linear layers at the width of ViT-Small
_WIDTH = 384


def _std(width: int) -> float:
    """Of the weights of linear layers: larger where sums have fewer terms."""
    return _STD * float((_WIDTH / width) ** 0.5)


class ImageEmbedding(nn.Module):
    """Patches of an image as tokens, a class token before them, and a learned position for each."""

    def __init__(self, facts: TransferFacts, options: TransferTransformerOptions) -> None:
        super().__init__()
        channels, height, across = facts.image_shape
        if height != across or height % options.patch or height < options.patch:
            raise ConfigError(
                f"model.patch: images of {height} x {across} pixels do not consist of patches of "
                f"{options.patch} x {options.patch}",
                remedy="use square images and set model.patch to a divisor of their side",
            )
        width, patches = options.width, (height // options.patch) ** 2
        self.patch = nn.Conv2d(channels, width, options.patch, stride=options.patch)
        self.cls = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + patches, width))
        nn.init.trunc_normal_(self.cls, std=_STD)
        nn.init.trunc_normal_(self.position, std=_STD)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, c, h, w] to [B, 1 + patches, width]."""
        patches = self.patch(images).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1) + self.position


class TextEmbedding(nn.Module):
    """Tokens, their positions and one segment, summed and normalised; padding's row is 0 and never trains."""

    def __init__(self, facts: TransferFacts, options: TransferTransformerOptions) -> None:
        super().__init__()
        width = options.width
        self.token = nn.Embedding(facts.vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(facts.text_length, width)
        self.segment = nn.Embedding(2, width)  # the second is never used; the published model has it
        self.norm = nn.LayerNorm(width, eps=1e-12)
        for table in (self.token, self.position, self.segment):
            nn.init.trunc_normal_(table.weight, std=_STD)
        with torch.no_grad():
            self.token.weight[0].zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, L] int64 to [B, L, width]."""
        # Ids with a row per record: private training with hooks needs them for every table.
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1).contiguous()
        summed = self.token(tokens) + self.position(places) + self.segment(torch.zeros_like(tokens))
        embedded: torch.Tensor = self.norm(summed)
        return embedded


class Attention(nn.Module):
    """Multi-head self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, is_token: torch.Tensor | None) -> torch.Tensor:
        """[B, T, width] to the same shape; ``is_token`` is [B, T] bool, False where nothing attends to."""
        batch, length, width = tokens.shape
        split = self.qkv(tokens).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mask = None if is_token is None else is_token[:, None, None, :]
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        joined: torch.Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


class Mlp(nn.Module):
    """Two linear layers with the exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T, width] to the same shape."""
        mixed: torch.Tensor = self.fc2(gelu(self.fc1(tokens)))
        return mixed


class Block(nn.Module):
    """A pre-norm transformer block; in training either branch is skipped with probability ``skip``."""

    def __init__(self, options: TransferTransformerOptions, skip: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(options.width, eps=1e-6)
        self.attn = Attention(options.width, options.heads)
        self.norm2 = nn.LayerNorm(options.width, eps=1e-6)
        self.mlp = Mlp(options.width, options.hidden)
        self.skip = skip

    def forward(self, tokens: torch.Tensor, is_token: torch.Tensor | None) -> torch.Tensor:
        """[B, T, width] to the same shape."""
        tokens = tokens + self._thinned(self.attn(self.norm1(tokens), is_token))
        return tokens + self._thinned(self.mlp(self.norm2(tokens)))

    def _thinned(self, branch: torch.Tensor) -> torch.Tensor:
        """The branch of some records only, scaled so that the expectation stays."""
        if not self.training or self.skip == 0:
            return branch
        survives = torch.rand(len(branch), 1, 1, device=branch.device) >= self.skip
        return branch * (survives / (1 - self.skip)).to(branch.dtype)


class Tower(nn.Module):
    """Embedding and blocks of one modality."""

    def __init__(self, kind: Modality, facts: TransferFacts, options: TransferTransformerOptions) -> None:
        super().__init__()
        self.embed = (ImageEmbedding if kind == "image" else TextEmbedding)(facts, options)
        last = max(options.depth - 1, 1)
        skips = (options.drop_path * k / last for k in range(options.depth))
        self.blocks = nn.ModuleList(Block(options, skip) for skip in skips)
        self.blocks.apply(partial(initialise, std=_std(options.width)))
        self._mask = kind == "text" and options.mask_padding
        self._again, self._random = options.gradient_checkpointing, options.drop_path > 0

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """[B, c, h, w] images or [B, L] tokens to [B, width]: the first token, before the final norm."""
        hidden, is_token = self.embed(records), None
        if self._mask:
            # The first token is never padding: a text without any would leave nothing to attend to.
            first = torch.arange(records.shape[1], device=records.device) == 0
            is_token = (records != 0) | first
        hidden = run_layers(self.blocks, hidden, is_token, again=self._again, random=self._random)
        summary: torch.Tensor = hidden[:, 0]
        return summary


class Classifier(nn.Module):
    """The model of the sites with one modality only."""

    def __init__(self, kind: Modality, facts: TransferFacts, options: TransferTransformerOptions) -> None:
        super().__init__()
        self.kind = kind
        self.add_module(kind, Tower(kind, facts, options))
        self.norm = nn.LayerNorm(options.width, eps=1e-6)
        self.head = nn.Linear(options.width, facts.image_classes if kind == "image" else facts.text_classes)
        initialise(self.head, _std(options.width))

    @property
    def tower(self) -> Tower:
        """The only tower, whose name is ``kind``."""
        return cast(Tower, self.get_submodule(self.kind))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """[B, c, h, w] images or [B, L] tokens to logits [B, classes]."""
        logits: torch.Tensor = self.head(self.norm(self.tower(records)))
        return logits

    def encode(self, records: torch.Tensor) -> torch.Tensor:
        """[B, c, h, w] images or [B, L] tokens to [B, width], rows of L2 norm 1, as a pair encoder's."""
        return _unit(self.norm(self.tower(records)))


class PairEncoder(nn.Module):
    """The model of the sites with pairs: two towers and one final norm for both."""

    def __init__(self, facts: TransferFacts, options: TransferTransformerOptions) -> None:
        super().__init__()
        self.image = Tower("image", facts, options)
        self.text = Tower("text", facts, options)
        self.norm = nn.LayerNorm(options.width, eps=1e-6)

    def encode_images(self, images: torch.Tensor) -> torch.Tensor:
        """[B, c, h, w] to [B, width], rows of L2 norm 1."""
        return _unit(self.norm(self.image(images)))

    def encode_texts(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, L] int64 to [B, width], rows of L2 norm 1."""
        return _unit(self.norm(self.text(tokens)))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of pairs: those of ``encode_images`` and ``encode_texts``."""
        # One call of the norm for both towers: clipping with hooks refuses a layer that runs twice.
        both = self.norm(torch.stack([self.image(images), self.text(tokens)], dim=1))
        return _unit(both[:, 0]), _unit(both[:, 1])


def _unit(features: torch.Tensor) -> torch.Tensor:
    # Float32 under mixed precision too: products of features are divided by a small temperature.
    return normalize(full_precision(features), dim=-1)


def build(
    kind: ModelKind, facts: TransferFacts, options: TransferTransformerOptions
) -> Classifier | PairEncoder:
    """The model of a kind of site, drawn from torch's global generator."""
    return PairEncoder(facts, options) if kind == "pairs" else Classifier(kind, facts, options)


def initial(
    seed: int, facts: TransferFacts, options: TransferTransformerOptions, folder: Path | None = None
) -> dict[ModelKind, State]:
    """The models of all kinds before the first round, from the study's seed and ``weights`` in ``folder``.

    The blocks of all four towers are equal, and so are the embeddings of a modality: adding one model's
    updates to another only means something if they start together.
    """
    with seeded(seed, "transfer-transformer", "pairs"):
        made = PairEncoder(facts, options)
        if options.weights is not None:
            from secfed.algorithms.models.local_weights import load_tower_weights

            load_tower_weights(made.image, made.norm, (folder or Path()) / options.weights)
        pairs = read_parameters(made)
    for name in pairs:
        if name.startswith("text.blocks."):
            pairs[name] = pairs["image." + name.removeprefix("text.")].clone()
    states: dict[ModelKind, State] = {"pairs": pairs}
    kinds: tuple[Modality, ...] = ("image", "text")
    for kind in kinds:
        with seeded(seed, "transfer-transformer", kind):
            drawn = read_parameters(Classifier(kind, facts, options))
        states[kind] = {name: pairs[name].clone() if name in pairs else own for name, own in drawn.items()}
    return states


def shapes(
    kind: ModelKind, facts: TransferFacts, options: TransferTransformerOptions
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's parameters, without storage for them."""
    with torch.device("meta"):
        model = build(kind, facts, options)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}
