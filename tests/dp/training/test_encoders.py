"""The two encoders of vision-language training under private training: timm's ViT and Hugging Face's BERT.

Both libraries are optional; the layers they are made of are covered by test_guards.py without them.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.models.encoder_libraries import mend_torchvision
from secfed.dp.training.engines import EngineName
from secfed.dp.training.losses import Batch
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, clipped, run


def vit(**options: object) -> nn.Module:
    mend_torchvision()
    timm = pytest.importorskip("timm", exc_type=ImportError)
    torch.manual_seed(0)
    return timm.models.vision_transformer.VisionTransformer(  # type: ignore[no-any-return]
        img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3, **options
    )


class Bert(nn.Module):
    """A small BERT with a head; ``explicit`` passes contiguous position and token type ids."""

    def __init__(self, *, explicit: bool) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        torch.manual_seed(0)
        self.body = transformers.BertModel(config, add_pooling_layer=False)
        self.head, self.explicit = nn.Linear(16, 3), explicit

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        more = {}
        if self.explicit:
            places = torch.arange(ids.shape[1]).expand(len(ids), -1).contiguous()
            more = {"position_ids": places, "token_type_ids": torch.zeros_like(ids)}
        return self.head(self.body(input_ids=ids, **more).last_hidden_state[:, 0])


def pictures() -> Batch:
    torch.manual_seed(1)
    return torch.randn(5, 3, 16, 16), torch.arange(5) % 3


def words() -> Batch:
    torch.manual_seed(1)
    return torch.randint(0, 50, (5, 9)), torch.arange(5) % 3


@pytest.fixture(autouse=True)
def _quiet() -> None:
    # What these libraries warn about on import is not ours to fix.
    warnings.simplefilter("ignore")


def check_equals_the_loop(engine: EngineName, model: nn.Module, batch: Batch) -> None:
    wanted, found = (clipped(name, model, CROSS_ENTROPY, batch) for name in ("loop", engine))
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
@pytest.mark.parametrize("frozen", [False, True])
def test_vit_clipped_sums_equal_the_loop(engine: EngineName, frozen: bool) -> None:
    model: Any = vit()
    if frozen:
        model.cls_token.requires_grad_(False)
        model.pos_embed.requires_grad_(False)
    check_equals_the_loop(engine, model, pictures())


def test_vit_with_dropout_needs_the_loop_or_frozen_tokens() -> None:
    with pytest.raises(ConfigError, match="contains dropout"):
        run(vit(drop_rate=0.1), pictures(), "hooks")
    run(vit(drop_rate=0.1), pictures(), "loop")


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_bert_equals_the_loop_with_explicit_positions_and_is_refused_without(engine: EngineName) -> None:
    """Invariant 11."""
    model, default = Bert(explicit=True), Bert(explicit=False)
    check_equals_the_loop(engine, model, words())
    assert torch.allclose(model(words()[0]), default(words()[0]), atol=1e-6)
    with pytest.raises(ConfigError, match="position"):
        run(default, words(), engine)
    run(default, words(), "loop")
