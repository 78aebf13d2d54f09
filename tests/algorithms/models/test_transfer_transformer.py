"""The models of transfer learning between modalities: sizes, names, padding, start, refusals."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from secfed.algorithms.framework.parameters import trainable, write_parameters
from secfed.algorithms.losses.objective import infonce
from secfed.algorithms.models.transfer_options import Modality, ModelKind, TransferFacts, is_shared
from secfed.algorithms.models.transfer_transformer import PairEncoder, initial, shapes
from secfed.errors import ConfigError
from tests.algorithms.transfer_transformer_case import (
    FACTS,
    KINDS,
    MODALITIES,
    blocks,
    classifier,
    images,
    inputs,
    model,
    options,
    texts,
)

PAPER_FACTS = TransferFacts((3, 224, 224), 40, 30522, 100, 4)
PAPER = options(width=384, depth=12, heads=6, patch=16)


@cache
def published(kind: ModelKind) -> dict[str, tuple[int, ...]]:
    return shapes(kind, PAPER_FACTS, PAPER)


def numbers(kind: ModelKind, part: str = "") -> int:
    return sum(math.prod(shape) for name, shape in published(kind).items() if name.startswith(part))


def test_parameter_counts_are_those_of_the_published_size() -> None:
    for kind in MODALITIES:
        assert numbers(kind, f"{kind}.blocks.0.") == 1_774_464
        assert numbers(kind, f"{kind}.blocks.0.attn.") == 591_360
        assert numbers(kind, f"{kind}.blocks.0.mlp.") == 1_181_568
        assert numbers(kind, f"{kind}.blocks.0.norm") == 1_536
        assert numbers(kind, f"{kind}.blocks.") == numbers("pairs", f"{kind}.blocks.") == 21_293_568
        assert numbers(kind, "norm.") == numbers("pairs", "norm.") == 768
    assert numbers("image", "image.embed.") == numbers("pairs", "image.embed.") == 371_328
    assert numbers("text", "text.embed.") == numbers("pairs", "text.embed.") == 11_737_344
    assert [numbers(kind) for kind in KINDS] == [21_704_164, 33_033_220, 54_696_576]


def test_names_are_those_that_sums_over_kinds_rely_on() -> None:
    block = [
        f"blocks.{k}.{layer}.{part}"
        for k in range(2)
        for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for part in ("weight", "bias")
    ]
    image = {"image.embed." + name for name in ("patch.weight", "patch.bias", "cls", "position")}
    text = {"text.embed." + name for name in ("token.weight", "position.weight", "segment.weight")}
    text |= {"text.embed.norm.weight", "text.embed.norm.bias"}
    image |= {f"image.{name}" for name in block}
    text |= {f"text.{name}" for name in block}
    norm, head = {"norm.weight", "norm.bias"}, {"head.weight", "head.bias"}
    assert set(shapes("image", FACTS, options())) == image | norm | head
    assert set(shapes("text", FACTS, options())) == text | norm | head
    assert set(shapes("pairs", FACTS, options())) == image | text | norm


@pytest.mark.parametrize("kind", KINDS)
def test_all_state_is_parameters_of_the_announced_shapes(kind: ModelKind) -> None:
    made = model(kind)
    state = made.state_dict()
    assert not list(made.buffers())
    assert {name: tuple(value.shape) for name, value in state.items()} == shapes(kind, FACTS, options())
    assert not any(isinstance(part, nn.modules.dropout._DropoutNd) for part in made.modules())
    assert trainable(made) == tuple(state)


def test_layer_norms_have_the_published_epsilons() -> None:
    epsilons = {
        name: part.eps for name, part in model("pairs").named_modules() if isinstance(part, nn.LayerNorm)
    }
    assert epsilons.pop("text.embed.norm") == 1e-12
    assert set(epsilons.values()) == {1e-6}


def test_attention_is_told_from_everything_else_by_name() -> None:
    names = [name for name in shapes("pairs", FACTS, options()) if is_shared(name, "attention")]
    assert len(names) == 2 * 2 * 4
    assert all(".attn." in name for name in names)
    assert is_shared("blocks.11.attn.proj.bias", "attention")
    for name in ("image.blocks.0.attn.qkv.aux", "image.blocks.0.mlp.fc1.weight", "head.weight", "norm.bias"):
        assert not is_shared(name, "attention")


def test_a_pair_encoder_gives_unit_rows_either_way() -> None:
    made = model("pairs")
    assert isinstance(made, PairEncoder)
    both = made(images(), texts())
    for found, expected in zip(both, (made.encode_images(images()), made.encode_texts(texts())), strict=True):
        assert found.shape == (6, 16)
        assert torch.allclose(found, expected, atol=1e-6)
        assert torch.allclose(found.norm(dim=1), torch.ones(6), atol=1e-6)


@pytest.mark.parametrize("kind", MODALITIES)
def test_a_record_does_not_depend_on_the_others_of_its_batch(kind: Modality) -> None:
    made, records = classifier(kind), inputs(kind)
    assert torch.allclose(made(records)[2:3], made(records[2:3]), atol=1e-5)


def test_a_block_is_the_pre_norm_block_of_pytorch() -> None:
    """An independent implementation of the same equations, with another layout of the parameters."""
    ours = classifier("image").tower.blocks[0]
    theirs = nn.TransformerEncoderLayer(
        16, 2, 64, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    with torch.no_grad():
        for value in ours.parameters():
            value.add_(0.1 * torch.randn(value.shape))
        theirs.self_attn.in_proj_weight.copy_(ours.attn.qkv.weight)
        theirs.self_attn.in_proj_bias.copy_(ours.attn.qkv.bias)
    pairs = [(ours.attn.proj, theirs.self_attn.out_proj), (ours.mlp.fc1, theirs.linear1)]
    pairs += [(ours.mlp.fc2, theirs.linear2), (ours.norm1, theirs.norm1), (ours.norm2, theirs.norm2)]
    for mine, other in pairs:
        other.load_state_dict(mine.state_dict())
    tokens, kept = torch.randn(3, 7, 16), torch.arange(7) < torch.tensor([[7], [4], [2]])
    assert torch.allclose(ours(tokens, None), theirs(tokens), atol=1e-5)
    masked = ours(tokens, kept), theirs(tokens, src_key_padding_mask=~kept)
    assert torch.allclose(masked[0][kept], masked[1][kept], atol=1e-5)


# Padding


@pytest.mark.parametrize("mask", [True, False])
def test_padding_matters_only_without_the_mask(mask: bool) -> None:
    made, full, short = classifier("text", mask_padding=mask), (texts() != 0).all(dim=1), texts()[:1, :5]
    assert bool(full.any())
    assert int((short == 0).sum()) == 1
    before = made(texts())
    assert torch.allclose(made(short), before[:1], atol=1e-6) == mask
    with torch.no_grad():
        made.text.embed.token.weight[0] = torch.randn(16)
    after = made(texts())
    assert torch.equal(before[full], after[full])
    if mask:
        assert torch.equal(before, after)
    else:
        assert not torch.allclose(before[~full], after[~full], atol=1e-4)


def test_the_first_token_is_attended_to_whatever_it_is() -> None:
    empty = torch.zeros(2, 9, dtype=torch.int64)
    scores = classifier("text")(empty)
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize("mask", [True, False])
def test_the_row_of_padding_is_zero_and_does_not_train(mask: bool) -> None:
    made = classifier("text", mask_padding=mask)
    optimiser = torch.optim.AdamW(made.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        cross_entropy(made(texts()), torch.arange(6) % 4).backward()
        optimiser.step()
    rows = made.text.embed.token.weight
    assert not rows[0].any()
    assert bool(rows[1:].any(dim=1).all())


# Stochastic depth


def test_blocks_are_skipped_more_often_the_later_they_are() -> None:
    made = classifier("image", depth=5, drop_path=0.2)
    assert [block.skip for block in made.tower.blocks] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])
    assert [block.skip for block in classifier("image", depth=1, drop_path=0.2).tower.blocks] == [0.0]


def test_a_skipped_branch_is_left_out_for_whole_records_and_keeps_its_expectation() -> None:
    block = classifier("image", drop_path=0.25).tower.blocks[1]
    thinned = block._thinned(torch.ones(4000, 3, 2))
    assert thinned.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert torch.equal(thinned, thinned[:, :1, :1].expand_as(thinned))
    assert float(thinned.mean()) == pytest.approx(1.0, abs=0.05)


def test_stochastic_depth_acts_in_training_only() -> None:
    made = classifier("image", drop_path=0.9)
    plain = classifier("image")
    assert not torch.allclose(made(images()), plain(images()), atol=1e-4)
    assert torch.equal(made.eval()(images()), plain.eval()(images()))
    assert torch.equal(classifier("image")(images()), plain(images()))


# The start


def test_models_start_from_the_same_blocks_embeddings_and_final_norm() -> None:
    states = initial(7, FACTS, options())
    image, text = (blocks(states["pairs"], kind) for kind in MODALITIES)
    assert len(image) == 24
    assert set(image) == set(text)
    assert all(torch.equal(image[name], text[name]) for name in image)
    for kind in MODALITIES:
        common = set(states[kind]) & set(states["pairs"])
        assert set(states[kind]) - common == {"head.weight", "head.bias"}
        assert all(torch.equal(states[kind][name], states["pairs"][name]) for name in common)
    assert bool((states["pairs"]["norm.weight"] == 1).all())
    assert not states["pairs"]["norm.bias"].any()
    assert not states["text"]["text.embed.token.weight"][0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_fits_its_model_and_shares_no_storage(kind: ModelKind) -> None:
    states = initial(7, FACTS, options())
    write_parameters(model(kind), states[kind])
    storages = [value.data_ptr() for state in states.values() for value in state.values()]
    assert len(set(storages)) == len(storages)


def test_a_start_depends_on_the_seed_alone() -> None:
    found = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        found.append(initial(7, FACTS, options()))
        assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(global_seed)))
    other = initial(8, FACTS, options())
    for kind in KINDS:
        assert all(torch.equal(found[0][kind][name], found[1][kind][name]) for name in found[0][kind])
        for name in ("head.weight", f"{kind}.blocks.0.attn.qkv.weight", "text.embed.token.weight"):
            if name in other[kind]:
                assert not torch.equal(found[0][kind][name], other[kind][name])


# Training


def test_every_parameter_of_a_pair_encoder_gets_a_gradient() -> None:
    made = model("pairs")
    infonce(*made(images(), texts()), 0.07).backward()
    assert [name for name, value in made.named_parameters() if value.grad is None] == []
    idle = {name for name, value in made.named_parameters() if not value.grad.any()}
    assert idle == set()
    assert not made.text.embed.segment.weight.grad[1].any()


@pytest.mark.parametrize("kind", MODALITIES)
def test_training_is_the_same_twice_and_learns(kind: Modality) -> None:
    found = []
    for _ in range(2):
        made = classifier(kind, drop_path=0.1)
        write_parameters(made, initial(4, FACTS, options())[kind])
        optimiser = torch.optim.AdamW(made.parameters(), lr=3e-3, weight_decay=0)
        torch.manual_seed(9)
        losses = []
        for _ in range(40):
            optimiser.zero_grad()
            loss = cross_entropy(made(inputs(kind)), torch.arange(6) % 4)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        found.append(losses)
    assert found[0] == found[1]
    assert found[0][-1] < 0.5 * found[0][0]


# Refusals


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"width": 15}, r"model\.heads: 2 does not divide model\.width = 15"),
        ({"depth": 0}, r"model\.depth"),
        ({"drop_path": 1.0}, r"model\.drop_path"),
        ({"mlp_ratio": 0.0}, r"model\.mlp_ratio"),
        ({"patch": 0}, r"model\.patch"),
        ({"padding": True}, r"model\.padding: unknown key"),
    ],
)
def test_impossible_options_are_refused(table: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        options(**table)


@pytest.mark.parametrize("shape", [(3, 12, 18), (3, 13, 13), (3, 4, 4)])
@pytest.mark.parametrize("kind", ["image", "pairs"])
def test_images_that_the_patches_do_not_fill_are_refused(
    kind: ModelKind, shape: tuple[int, int, int]
) -> None:
    with pytest.raises(ConfigError, match=r"model\.patch: images of") as caught:
        shapes(kind, TransferFacts(shape, 9, 20, 5, 4), options())
    assert "divisor" in str(caught.value)
