"""The models of ``secfed bench private-step``, each with a batch of made-up records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from secfed.algorithms.models.encoder_libraries import bert_classes, timm_layers
from secfed.algorithms.models.networks import MlpOptions, SmallCnnOptions, mlp, small_cnn
from secfed.errors import ConfigError

Case = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]

_CLASSES = 10


class _Words(nn.Module):
    """The mean of embedded words, and one linear layer."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, _CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.words(ids).mean(dim=1))
        return scores


class _Bert(nn.Module):
    """Hugging Face's BERT with a head; every input has a row for each record, as hooks need it."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        config_class, model_class = bert_classes()
        config = config_class(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=4 * width,
            max_position_embeddings=length,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.body: Any = model_class(config, add_pooling_layer=False)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]).expand(len(ids), -1).contiguous()
        tokens = self.body(input_ids=ids, position_ids=places, token_type_ids=torch.zeros_like(ids))
        scores: torch.Tensor = self.head(tokens.last_hidden_state[:, 0])
        return scores


def _linear(quick: bool) -> Case:
    """Four linear layers with norms between them: 0.53 million parameters."""
    narrow, wide = (8, 16) if quick else (256, 512)
    layers = [
        layer
        for _ in range(2)
        for layer in (nn.Linear(narrow, wide), nn.GELU(), nn.Linear(wide, narrow), nn.LayerNorm(narrow))
    ]
    return nn.Sequential(*layers, nn.Linear(narrow, _CLASSES)), _batch(torch.randn(64, narrow))


def _mlp(quick: bool) -> Case:
    """A model for tables: so small that what is counted is the overhead of a step."""
    hidden = (4,) if quick else (16,)
    return mlp((30,), _CLASSES, MlpOptions(name="mlp", hidden=hidden)), _batch(torch.randn(32, 30))


def _cnn(quick: bool) -> Case:
    """The built-in CNN on images of 28 x 28 pixels."""
    side, channels = (8, (2, 4)) if quick else (28, (16, 32))
    options = SmallCnnOptions(name="small-cnn", channels=channels)
    return small_cnn((1, side, side), _CLASSES, options), _batch(torch.randn(64, 1, side, side))


def _embedding(quick: bool) -> Case:
    vocabulary, width = (50, 4) if quick else (10_000, 64)
    return _Words(vocabulary, width), _batch(torch.randint(vocabulary, (64, 64)))


def _vit(quick: bool) -> Case:
    """A vision transformer of timm, as wide as ViT-Tiny, with four blocks and 65 tokens."""
    timm_layers()
    from timm.models.vision_transformer import VisionTransformer

    size: dict[str, Any] = (
        {"embed_dim": 16, "depth": 1, "num_heads": 2} if quick else {"embed_dim": 192, "depth": 4}
    )
    size = {"num_heads": 3, **size}
    side, count = (8, 4) if quick else (32, 16)
    model: nn.Module = VisionTransformer(img_size=side, patch_size=4, num_classes=_CLASSES, **size)
    return model, _batch(torch.randn(count, 3, side, side))


def _bert(quick: bool) -> Case:
    """BERT-Tiny: two layers of width 128, and a vocabulary of 30,522 words."""
    vocabulary, width, length = (50, 8, 6) if quick else (30_522, 128, 64)
    model = _Bert(vocabulary=vocabulary, width=width, layers=1 if quick else 2, length=length)
    return model, _batch(torch.randint(vocabulary, (32, length)))


def _batch(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return inputs, torch.randint(_CLASSES, (len(inputs),))


CASES: dict[str, Callable[[bool], Case]] = {"linear": _linear, "mlp": _mlp, "cnn": _cnn}
CASES |= {"embedding": _embedding, "vit": _vit, "bert": _bert}


def case(name: str, *, quick: bool = False) -> Case | None:
    """The model and its batch, the same at every call; None where its library is not installed."""
    torch.manual_seed(0)
    try:
        return CASES[name](quick)
    except ConfigError:
        if name in ("vit", "bert"):
            return None
        raise
