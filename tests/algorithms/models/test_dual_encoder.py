"""The dual encoder: structure, independence of records and padding, refusals, missing packages."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from secfed.algorithms.models.dual_encoder import DualEncoder, shapes_only
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.config import torchvision_repair
from secfed.config.schema import checked
from secfed.errors import ConfigError
from tests.algorithms.dual_encoder_case import (
    LENGTH,
    OBJECTIVES,
    VOCABULARY,
    Shapes,
    count,
    detached,
    model,
    on_meta,
    options,
    pairs,
    pretrain_loss,
)

# Structure


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_names_split_into_encoder_and_alignment(objective: str) -> None:
    dual = model(objective=objective)
    names = {name for name, _ in dual.named_parameters()}
    assert set(dual.encoder_names) | set(dual.align_names) == names
    assert not set(dual.encoder_names) & set(dual.align_names)
    assert {name.split(".")[0] for name in dual.encoder_names} == {"image_encoder", "text_encoder"}
    assert {name.split(".")[0] for name in dual.align_names} >= {"image_align", "text_align"}
    assert any(name.startswith("objective.") for name in dual.align_names) == (objective == "mgca")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_all_state_is_parameters(objective: str) -> None:
    dual = model(objective=objective)
    assert not list(dual.named_buffers())
    assert list(dual.state_dict()) == [name for name, _ in dual.named_parameters()]


def test_no_layer_mixes_records_or_draws_random_numbers() -> None:
    for size in ("tiny", "small", "paper"):
        for layer in on_meta(size, objective="mgca").modules():
            assert not isinstance(layer, nn.modules.batchnorm._NormBase)
            assert not (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0)


def test_parameter_counts_are_those_of_the_specification() -> None:
    dual = on_meta("paper")
    millions = {name: round(count(part) / 1e6, 2) for name, part in dual.named_children()}
    alignment = count(dual.image_align) + count(dual.text_align)
    print(millions, round(count(dual) / 1e6, 2))
    assert millions["image_encoder"] == 85.80
    # The printed 79.38 has six unused cross-attention layers; positions of longer texts and the second
    # token type are without use here.
    cross_attention = 4 * (768 * 768 + 768) + 2 * 768
    unused = 6 * cross_attention + (512 - 112 + 1) * 768
    assert count(dual.text_encoder) == pytest.approx(79.38e6 - unused, abs=0.005e6)
    assert round(alignment / 1e6, 1) == 17.9
    assert count(on_meta("paper", objective="gloria")) - count(dual) == pytest.approx(2 * 1.84e6, rel=0.01)
    assert round(count(on_meta("small")) / 1e6, 1) == 3.2
    torch.manual_seed(0)
    tiny = DualEncoder(options(), (1, 32, 32), 40, 75)
    assert round(count(tiny) / 1e6, 2) == 0.29


def test_shapes_only_has_the_names_and_shapes_of_the_model() -> None:
    dual, shapes = model(objective="mgca"), shapes_only(Shapes(), options(objective="mgca"))  # type: ignore[arg-type]
    assert {value.device.type for value in shapes.parameters()} == {"meta"}
    assert [(n, v.shape) for n, v in dual.named_parameters()] == [
        (n, v.shape) for n, v in shapes.named_parameters()
    ]
    usable = copy.deepcopy(shapes).to_empty(device="cpu")
    usable.load_state_dict(dual.state_dict())
    assert torch.equal(usable(*pairs()).image, dual(*pairs()).image)


# What comes out


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_embeddings_have_their_shapes_and_norm_one(objective: str, pool: str) -> None:
    images, tokens = pairs()
    aligned = model(objective=objective, pool=pool)(images, tokens)
    for whole in aligned.pair:
        assert whole.shape == (6, 64)
        assert torch.allclose(whole.norm(dim=1), torch.ones(6), atol=1e-6)
    parts = objective != "convirt"
    assert aligned.patches.shape == (6, 4 * parts, 64)
    assert aligned.words.shape == (6, (LENGTH - 1) * parts, 64)
    assert aligned.is_word.shape == aligned.words.shape[:2]
    if parts:
        assert torch.equal(aligned.is_word, tokens[:, 1:] != 0)
    assert (aligned.patch_weights is None) == (aligned.word_weights is None) == (objective != "mgca")
    assert aligned.tokens is tokens


def test_mixed_precision_gives_float32_embeddings() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        aligned = model(objective="mgca")(*pairs())
    for value in (*aligned.pair, aligned.patches, aligned.words, aligned.patch_weights):
        assert value is not None
        assert value.dtype == torch.float32


def test_encode_then_align_is_forward() -> None:
    dual, (images, tokens) = model(objective="gloria"), pairs()
    whole, split = dual(images, tokens), dual.align(detached(dual.encode(images, tokens)), tokens)
    assert torch.equal(whole.image, split.image)
    assert torch.equal(whole.words, split.words)


def test_a_frozen_encoder_lets_only_alignment_learn() -> None:
    dual, (images, tokens) = model(), pairs()
    dual.objective(dual.align(detached(dual.encode(images, tokens)), tokens)).total.backward()
    assert {name for name, value in dual.named_parameters() if value.grad is not None} == set(
        dual.align_names
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_embeddings_do_not_depend_on_other_records(objective: str) -> None:
    dual, (images, tokens) = model(objective=objective), pairs()
    together, alone = dual(images, tokens), dual(images[2:3], tokens[2:3])
    for name in ("image", "text", "patches", "words"):
        assert torch.allclose(getattr(together, name)[2:3], getattr(alone, name), atol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_padding_changes_no_embedding(objective: str, pool: str) -> None:
    dual, (images, tokens) = model(objective=objective, pool=pool), pairs()
    wanted, short = dual(images, tokens), dual(images, tokens[:, :10])  # no report has more than nine words
    with torch.no_grad():
        dual.text_encoder.embeddings.word_embeddings.weight[0] += 5.0
    found = dual(images, tokens)
    for other in (short, found):
        assert torch.allclose(other.text, wanted.text, atol=1e-6)
        assert torch.allclose(other.words[other.is_word], wanted.words[wanted.is_word], atol=1e-5)


def test_every_word_and_its_place_count() -> None:
    dual, (images, tokens) = model(), pairs()
    text = dual(images, tokens).text
    swapped = tokens.clone()
    swapped[0, [1, 2]] = torch.tensor([3, 4])
    other = swapped.clone()
    other[0, [1, 2]] = torch.tensor([4, 3])
    first, second = dual(images, swapped).text, dual(images, other).text
    assert not torch.allclose(first[0], second[0], atol=1e-6)
    assert torch.equal(first[1:], text[1:])


def test_attention_weights_are_those_of_the_alignment_block() -> None:
    dual, (images, tokens) = model(objective="mgca"), pairs()
    aligned, features = dual(images, tokens), dual.encode(images, tokens)
    kept = features.words
    for weights, align, values, mask in (
        (aligned.patch_weights, dual.image_align, features.image, None),
        (aligned.word_weights, dual.text_align, features.text, kept),
    ):
        seen: list[torch.Tensor] = []
        attention = align.block.attn
        attention.fused_attn = False  # this path applies its dropout layer to the attention itself
        handle = attention.attn_drop.register_forward_hook(lambda _m, _i, out, seen=seen: seen.append(out))
        align(values, mask)
        handle.remove()
        assert weights is not None
        assert not weights.requires_grad
        assert torch.allclose(weights, seen[0][:, :, 0, 1:].mean(dim=1), atol=1e-6)
    assert aligned.word_weights is not None
    assert not aligned.word_weights[~kept[:, 1:]].any()
    assert (aligned.word_weights[kept[:, 1:]] > 0).all()


# The keys of the objectives

# The published values, and for each key another one.
KEYS = [
    ("gloria", "gloria_weights", (1.0, 1.0), (1.0, 0.5)),
    ("gloria", "gloria_scale", 10.0, 8.0),
    ("gloria", "gloria_t1", 4.0, 3.0),
    ("gloria", "gloria_t2", 5.0, 4.0),
    ("gloria", "gloria_t3", 10.0, 8.0),
    ("mgca", "prototypes", 500, 8),
    ("mgca", "mgca_weights", (1.0, 1.0, 1.0), (1.0, 0.7, 0.5)),
    ("mgca", "mgca_local_temperature", 0.1, 0.2),
    ("mgca", "mgca_prototype_temperature", 0.2, 0.3),
    ("mgca", "mgca_epsilon", 0.05, 0.1),
    ("mgca", "mgca_sinkhorn_rounds", 3, 1),
    ("mgca", "mgca_frozen_rounds", 1, 0),
]
MOVES = [row for row in KEYS if row[1] not in ("prototypes", "mgca_frozen_rounds")]


@pytest.mark.parametrize(("objective", "key", "published", "other"), MOVES)
def test_the_keys_of_an_objective_reach_its_loss(
    objective: str, key: str, published: object, other: object
) -> None:
    plain, said, changed = (
        pretrain_loss(model(objective=objective, **more), *pairs())
        for more in ({}, {key: published}, {key: other})
    )
    assert torch.equal(said.total, plain.total)
    assert abs(float((changed.total - plain.total).detach())) > 1e-4
    assert torch.equal(changed.infonce, plain.infonce)  # robust weights do not depend on the objective


@pytest.mark.parametrize(("objective", "key", "published", "other"), KEYS)
def test_a_key_has_its_published_value_and_is_refused_for_another_objective(
    objective: str, key: str, published: object, other: object
) -> None:
    table = {"name": "vision-language", "objective": objective}
    assert getattr(checked(VisionLanguageOptions, table, "model"), key) == published
    assert getattr(options(**{**table, key: other}), key) == other
    for chosen in set(OBJECTIVES) - {objective}:
        with pytest.raises(ConfigError, match=rf'model\.{key}: has no effect .*"{chosen}"') as error:
            options(objective=chosen, **{key: published})
        assert f'"{objective}"' in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gloria_weights", (1.0, -0.5)),
        ("gloria_weights", (0.0, 0.0)),
        ("gloria_weights", (1.0,)),
        ("gloria_scale", 0.0),
        ("gloria_t1", -1.0),
        ("gloria_t2", 0.0),
        ("gloria_t3", 1e6),
        ("mgca_weights", (0.0, 0.0, 0.0)),
        ("mgca_weights", (1.0, 1.0)),
        ("mgca_local_temperature", 0.0),
        ("mgca_prototype_temperature", 0.0),
        ("mgca_epsilon", 1e-7),
        ("mgca_sinkhorn_rounds", 0),
        ("mgca_frozen_rounds", -1),
        ("size", "large"),
        ("temperature", 0.0),
        ("objective", "clip"),
        ("pool", "max"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_key(key: str, value: object) -> None:
    owner = key.partition("_")[0]
    chosen = {"objective": owner} if owner in OBJECTIVES else {}
    with pytest.raises(ConfigError, match=rf"model\.{key}"):
        options(**{**chosen, key: value})


def test_prototypes_stay_as_they_are_in_the_first_rounds() -> None:
    for rounds in (0, 1, 3):
        dual = model(objective="mgca", mgca_frozen_rounds=rounds)
        found = [dual.frozen_names(number) for number in range(1, 6)]
        assert found == [("objective.prototypes",)] * rounds + [()] * (5 - rounds)
    assert model(objective="mgca").frozen_names(1) == ("objective.prototypes",)
    assert model(objective="gloria").frozen_names(1) == model().frozen_names(1) == ()


# Refusals and packages


@pytest.mark.parametrize("shape", [(1, 20, 20), (1, 16, 24), (1, 0, 0)])
def test_images_that_patches_do_not_fill_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"model\.size"):
        DualEncoder(options(), shape, LENGTH, VOCABULARY)


@pytest.mark.parametrize("package", ["timm", "transformers"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"\[vision-language\]") as error:
        DualEncoder(options(), (1, 16, 16), LENGTH, VOCABULARY)
    assert package in str(error.value)


class _Declared:
    """Records what would be declared to torch."""

    made: list[_Declared] = []  # noqa: RUF012

    def __init__(self, *_args: object) -> None:
        self.operators: list[str] = []
        self.made.append(self)

    def define(self, schema: str) -> None:
        self.operators.append(schema.split("(")[0])


@pytest.mark.parametrize(
    ("text", "operators"), [("", None), ("raise RuntimeError('no operator')", ["nms", "qnms"])]
)
def test_only_a_broken_torchvision_is_mended(
    text: str, operators: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torchvision_repair, "_KEPT", [])
    monkeypatch.setattr(torch.library, "Library", _Declared)
    monkeypatch.setattr(_Declared, "made", [])
    torchvision_repair.mend_torchvision()
    found = [library.operators for library in _Declared.made]
    assert found == ([] if operators is None else [operators])
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
