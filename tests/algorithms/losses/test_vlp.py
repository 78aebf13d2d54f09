from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from secfed.algorithms.losses import vlp
from secfed.algorithms.losses.features import Aligned


def unit(count: int, seed: int, size: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, size, generator=generator, dtype=torch.float64), dim=1)


def embeddings(count: int, seed: int, size: int = 6) -> Aligned:
    image, text = unit(count, seed, size), unit(count, seed + 100, size)
    nothing = torch.zeros(count, 0, size)
    return Aligned(image, text, nothing, nothing, torch.zeros(count, 0, dtype=torch.bool))


def leaves(aligned: Aligned) -> Aligned:
    aligned.image.requires_grad_()
    aligned.text.requires_grad_()
    return aligned


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)}


# anchors


@pytest.mark.parametrize("reduction", ["mean", "sumdim"])
def test_anchor_loss_equals_a_brute_force_sum_over_elements(reduction):
    one, other = embeddings(5, 1), embeddings(5, 2)
    total = 0.0
    for ours, theirs in zip(one.pair, other.pair, strict=True):
        for i in range(5):
            for j in range(6):
                total += (float(ours[i, j]) - float(theirs[i, j])) ** 2
    expected = total / 5 / (6 if reduction == "mean" else 1)
    assert float(vlp.anchor_loss(one, other, reduction)) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [vlp.anchor_loss, lambda a, b: vlp.guidance_contrast(a, b, 0.1)])
def test_no_gradient_reaches_the_anchor(loss):
    one, other = leaves(embeddings(4, 1)), leaves(embeddings(4, 2))
    loss(one, other).backward()
    for ours, theirs in zip(one.pair, other.pair, strict=True):
        assert theirs.grad is None
        assert ours.grad is not None
        assert ours.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["anchor_loss", "guidance_contrast"])
def test_an_anchor_that_is_not_detached_receives_a_gradient(name):
    one, other = embeddings(4, 1), leaves(embeddings(4, 2))
    arguments = () if name == "anchor_loss" else (0.1,)
    getattr(vlp, name)(one, other, *arguments, detach=False).backward()
    assert all(part.grad is not None and part.grad.abs().max() > 0 for part in other.pair)


def test_guidance_contrast_equals_a_brute_force_double_loop():
    one, other, temperature = embeddings(5, 1), embeddings(5, 2), 0.3
    terms = []
    for ours, theirs in zip(one.pair, other.pair, strict=True):
        for a, b in ((ours, theirs), (theirs, ours)):
            for i in range(5):
                logits = [float(a[i] @ b[j]) / temperature for j in range(5)]
                terms.append(math.log(sum(map(math.exp, logits))) - logits[i])
    assert float(vlp.guidance_contrast(one, other, temperature)) == pytest.approx(sum(terms) / len(terms))


# FedEMA


def test_distance_is_that_of_the_models_as_one_long_vector():
    one, other = model(1), model(2)
    squares = sum(
        (float(x) - float(y)) ** 2
        for name in one
        for x, y in zip(one[name].ravel(), other[name].ravel(), strict=True)
    )
    assert vlp.distance(one, other) == pytest.approx(math.sqrt(squares))
    assert vlp.distance(one, one) == 0.0


def test_the_first_merge_keeps_exactly_the_share_that_the_scale_was_fixed_for():
    own, received = model(1), model(2)
    scale = vlp.ema_scale(own, received, 0.7)
    assert scale is not None
    assert scale == pytest.approx(0.7 / vlp.distance(own, received))


def test_merge_equals_its_definition_element_by_element():
    own, received, scale = model(1), model(2), 0.05
    m = min(scale * vlp.distance(own, received), 1.0)
    assert 0 < m < 1
    merged = vlp.ema_merge(own, received, scale)
    for name in own:
        torch.testing.assert_close(merged[name], m * own[name] + (1 - m) * received[name])


def test_a_site_far_from_the_server_keeps_its_own_model_and_scale_zero_takes_the_servers():
    own, received = model(1), model(2)
    kept, taken = vlp.ema_merge(own, received, 1e6), vlp.ema_merge(own, received, 0.0)
    for name in own:
        torch.testing.assert_close(kept[name], own[name])
        assert torch.equal(taken[name], received[name])


def test_the_same_model_gives_no_scale_yet_and_merging_changes_no_bit():
    assert vlp.ema_scale(model(1), model(1), 0.7) is None
    merged = vlp.ema_merge(model(1), model(1), 3.0)
    assert all(torch.equal(merged[name], value) for name, value in model(1).items())


# FedLDAWA


def test_cosines_equal_their_definition_per_tensor():
    own, received = model(1), model(2)
    found = vlp.ldawa_cosines(own, received)
    for name in own:
        a, b = own[name].double().ravel().tolist(), received[name].double().ravel().tolist()
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        assert found[name] == pytest.approx(dot / math.hypot(*a) / math.hypot(*b))


def test_cosines_ignore_length_know_the_sign_and_treat_zeros_as_plain_averaging():
    own = {"same": torch.ones(3), "opposite": torch.ones(3), "zero": torch.ones(3), "fresh": torch.zeros(3)}
    received = {"same": 5 * torch.ones(3), "opposite": -torch.ones(3)}
    received |= {"zero": torch.zeros(3), "fresh": torch.ones(3)}
    found = vlp.ldawa_cosines(own, received)
    assert found == pytest.approx({"same": 1.0, "opposite": -1.0, "zero": 1.0, "fresh": 1.0})
    assert all(abs(value) <= 1.0 for value in found.values())
