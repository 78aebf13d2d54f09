from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.image_text import ConVirt, make_objective
from secfed.algorithms.losses.objective import infonce
from secfed.errors import ConfigError
from tests.algorithms.losses_case import draws, looped_contrast, number

NAMES = ("convirt", "gloria", "mgca")


def unit(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return normalize(draws(*shape, seed=seed), dim=-1).to(dtype)


def batch(pairs: int = 5, *, width: int = 6, dtype: torch.dtype = torch.float64) -> Aligned:
    """Reports of 1 to 4 words among 4 places, images of 3 patches."""
    is_word = torch.arange(4) < (1 + torch.arange(pairs) % 4)[:, None]
    attention = draws(pairs, 4, seed=6).abs().to(dtype)
    return Aligned(
        image=unit(pairs, width, seed=1, dtype=dtype),
        text=unit(pairs, width, seed=2, dtype=dtype),
        patches=draws(pairs, 3, width, seed=3, dtype=dtype),
        words=draws(pairs, 4, width, seed=4, dtype=dtype),
        is_word=is_word,
        patch_weights=draws(pairs, 3, seed=5).abs().to(dtype),
        word_weights=attention.masked_fill(~is_word, 0.0),
        tokens=torch.cat([torch.ones(pairs, 1, dtype=torch.long), is_word * 5], dim=1),
    )


def objective(name: str, width: int = 6) -> torch.nn.Module:
    torch.manual_seed(0)
    return make_objective(name, temperature=0.1, embedding=width, prototypes=4)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_infonce_equals_a_brute_force_double_loop(temperature):
    image, text = unit(7, 5, seed=1), unit(7, 5, seed=2)
    expected = looped_contrast((image @ text.T / temperature).tolist()) / 2
    assert number(infonce(image, text, temperature)) == pytest.approx(expected)


def test_infonce_of_one_pair_is_zero_and_sends_no_gradient():
    image, text = unit(1, 4, seed=1).requires_grad_(), unit(1, 4, seed=2)
    found = infonce(image, text, 0.07)
    found.backward()
    assert number(found.detach()) == 0.0
    assert image.grad is not None
    assert not image.grad.any()


def test_infonce_stays_finite_at_the_smallest_temperature():
    image = unit(6, 4, seed=1, dtype=torch.float32).requires_grad_()
    found = infonce(image, unit(6, 4, seed=2, dtype=torch.float32), 1e-6)
    found.backward()
    assert torch.isfinite(found)
    assert torch.isfinite(image.grad).all()


def test_infonce_keeps_float32_logits_under_mixed_precision():
    image, text = (unit(32, 16, seed=seed, dtype=torch.float32) for seed in (1, 2))
    exact = infonce(image, text, 0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = infonce(image, text, 0.01)
    assert found.dtype == torch.float32
    assert number(found) == number(exact)


def test_convirt_trains_the_infonce_itself():
    value = ConVirt(0.1)(batch())
    assert number(value.total) == number(value.infonce)


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_reports_the_same_plain_infonce(name):
    aligned = batch()
    found = objective(name)(aligned).infonce
    assert number(found) == pytest.approx(
        looped_contrast((aligned.image @ aligned.text.T / 0.1).tolist()) / 2
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_objective_depends_on_what_padding_holds(name):
    aligned = batch()
    padding = ~aligned.is_word.unsqueeze(2)
    other = replace(
        aligned,
        words=torch.where(padding, 1e6 * draws(5, 4, 6, seed=9), aligned.words),
        word_weights=torch.where(aligned.is_word, aligned.word_weights, 7.0),
    )
    model = objective(name)
    assert number(model(other).total) == pytest.approx(number(model(aligned).total), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_no_objective_depends_on_how_much_padding_there_is(name):
    aligned = batch()
    longer = replace(
        aligned,
        words=torch.cat([aligned.words, draws(5, 3, 6, seed=9)], dim=1),
        is_word=torch.cat([aligned.is_word, torch.zeros(5, 3, dtype=torch.bool)], dim=1),
        word_weights=torch.cat([aligned.word_weights, torch.zeros(5, 3, dtype=torch.float64)], dim=1),
        tokens=torch.cat([aligned.tokens, torch.zeros(5, 3, dtype=torch.long)], dim=1),
    )
    model = objective(name)
    assert number(model(longer).total) == pytest.approx(number(model(aligned).total), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_no_objective_depends_on_the_order_of_pairs(name):
    aligned, order = batch(), torch.tensor([3, 0, 4, 2, 1])
    mixed = Aligned(**{key: value[order] for key, value in vars(aligned).items()})
    model = objective(name)
    assert number(model(mixed).total) == pytest.approx(number(model(aligned).total), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_objectives_and_their_gradients_are_finite_with_an_empty_report(name, pairs):
    aligned = batch(pairs, dtype=torch.float32)
    is_word = aligned.is_word.clone()
    is_word[0] = False
    inputs = [
        value.requires_grad_() for value in (aligned.image, aligned.text, aligned.patches, aligned.words)
    ]
    weights = aligned.word_weights.masked_fill(~is_word, 0.0)
    model = objective(name)
    value = model(replace(aligned, is_word=is_word, word_weights=weights))
    value.total.backward()
    assert torch.isfinite(value.total)
    for tensor in (*inputs, *model.parameters()):
        assert tensor.grad is None or bool(torch.isfinite(tensor.grad).all())


@pytest.mark.parametrize("name", ["gloria", "mgca"])
def test_every_embedding_gets_a_gradient_and_padding_none(name):
    aligned = batch()
    inputs = [
        value.requires_grad_() for value in (aligned.image, aligned.text, aligned.patches, aligned.words)
    ]
    objective(name)(aligned).total.backward()
    # The one-word report of a pair has nothing to tell apart inside the pair, in MGCA's token term.
    several = aligned.is_word.sum(dim=1) > 1
    for tensor in inputs[:3]:
        assert (tensor.grad.flatten(1).abs().max(dim=1).values > 1e-9).all()
    words = inputs[3].grad.abs().max(dim=2).values
    assert (words[several][aligned.is_word[several]] > 1e-9).all()
    assert not words[~aligned.is_word].any()


@pytest.mark.parametrize("name", ["gloria", "mgca"])
def test_objectives_agree_with_finite_differences(name):
    aligned, model = batch(3, width=4), objective(name, 4).double()
    # Codes are constants of the gradient, so the prototype term is tested in its own file.
    if name == "mgca":
        model.weights = (1.0, 1.0, 0.0)
    inputs = (aligned.image, aligned.text, aligned.patches, aligned.words)

    def total(image, text, patches, words):
        return model(replace(aligned, image=image, text=text, patches=patches, words=words)).total

    assert torch.autograd.gradcheck(total, tuple(value.requires_grad_() for value in inputs))


@pytest.mark.parametrize("name", NAMES)
def test_objectives_under_mixed_precision_equal_those_without(name):
    aligned, model = batch(dtype=torch.float32), objective(name)
    exact = model(aligned)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(aligned)
    assert found.total.dtype == torch.float32
    assert number(found.total) == number(exact.total)


@pytest.mark.parametrize("name", NAMES)
def test_objectives_take_half_precision_embeddings(name):
    aligned, model = batch(), objective(name)
    half = Aligned(**{k: v.bfloat16() if v.is_floating_point() else v for k, v in vars(aligned).items()})
    value = model(half)
    assert value.total.dtype == value.infonce.dtype == torch.float32
    assert number(value.total) == pytest.approx(number(model(aligned).total), rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_objectives_work_without_weights_and_without_token_ids(name):
    bare = replace(batch(), patch_weights=None, word_weights=None, tokens=None)
    assert torch.isfinite(objective(name)(bare).total)


@pytest.mark.parametrize("name", NAMES)
def test_objectives_give_shapes_on_the_meta_device(name):
    aligned = Aligned(**{key: value.to("meta") for key, value in vars(batch(dtype=torch.float32)).items()})
    assert objective(name).to("meta")(aligned).total.shape == ()


def test_only_mgca_has_something_to_send():
    names = {name: dict(objective(name).state_dict()) for name in NAMES}
    found = {name: sorted(state) for name, state in names.items()}
    assert found == {"convirt": [], "gloria": [], "mgca": ["prototypes"]}


@pytest.mark.parametrize("temperature", [0.0, -0.1, 1e-9, math.nan, math.inf])
def test_a_temperature_that_cannot_work_is_refused(temperature):
    with pytest.raises(ConfigError, match=r"model\.temperature"):
        ConVirt(temperature)


def test_an_unknown_objective_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"model\.objective.*'clip'") as caught:
        make_objective("clip", temperature=0.07, embedding=8, prototypes=4)
    assert "convirt" in str(caught.value)
    assert "mgca" in str(caught.value)
