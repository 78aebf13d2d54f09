from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.mgca import Mgca, sinkhorn, token_loss, token_weights
from tests.algorithms.losses_case import dot, draws, looped_contrast, number, shares

LENGTHS = (3, 1, 5, 2)


def batch() -> Aligned:
    """Four pairs; reports of 3, 1, 5 and 2 words among 5 places; images of 6 patches."""
    is_word = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return Aligned(
        image=normalize(draws(4, 6, seed=1), dim=1),
        text=normalize(draws(4, 6, seed=2), dim=1),
        patches=draws(4, 6, 6, seed=3),
        words=draws(4, 5, 6, seed=4),
        is_word=is_word,
        patch_weights=draws(4, 6, seed=5).abs(),
        word_weights=draws(4, 5, seed=6).abs() * is_word,
    )


def mgca(weights: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Mgca:
    torch.manual_seed(3)
    return Mgca(0.2, embedding=6, prototypes=5, weights=weights).double()


def unit(row: list[float]) -> list[float]:
    return [x / math.sqrt(dot(row, row)) for x in row]


def looped_weights(attention: list[float]) -> list[float]:
    ordered, clipped = sorted(attention), []
    edges = []
    for share in (0.1, 0.9):
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        edges.append(ordered[low] * (1 - (place - low)) + ordered[high] * (place - low))
    for value in attention:
        clipped.append(min(max(value, edges[0]), edges[1]))
    return [value / sum(clipped) for value in clipped]


def looped_side(
    queries: list[list[float]], keys: list[list[float]], attention: list[float], temperature: float
) -> float:
    """One direction of the token term of one pair."""
    queries, keys = [unit(row) for row in queries], [unit(row) for row in keys]
    contexts = []
    for query in queries:
        share = shares([dot(query, key) / temperature for key in keys])
        contexts.append(unit([sum(a * key[k] for a, key in zip(share, keys, strict=True)) for k in range(6)]))
    logits = [[dot(query, context) / temperature for context in contexts] for query in queries]
    total = 0.0
    for t, weight in enumerate(looped_weights(attention)):
        along = -math.log(shares(logits[t])[t])
        across = -math.log(shares([row[t] for row in logits])[t])
        total += weight * (along + across) / 2
    return total


def looped_token_loss(aligned: Aligned, pairs: list[int], temperature: float = 0.1) -> float:
    total = 0.0
    for b in pairs:
        words = aligned.words[b].tolist()[: LENGTHS[b]]
        word_weights = aligned.word_weights[b].tolist()[: LENGTHS[b]]
        patches, patch_weights = aligned.patches[b].tolist(), aligned.patch_weights[b].tolist()
        total += looped_side(words, patches, word_weights, temperature)
        total += looped_side(patches, words, patch_weights, temperature)
    return total / len(pairs)


def looped_codes(scores: list[list[float]], smoothing: float = 0.05, rounds: int = 3) -> list[list[float]]:
    """Sinkhorn's algorithm on exponentials; [B][K]."""
    records, prototypes = len(scores), len(scores[0])
    mass = [[math.exp(value / smoothing) for value in row] for row in scores]
    everything = sum(map(sum, mass))
    mass = [[value / everything for value in row] for row in mass]
    for _ in range(rounds):
        for k in range(prototypes):
            used = sum(mass[b][k] for b in range(records))
            for b in range(records):
                mass[b][k] /= used * prototypes
        for b in range(records):
            used = sum(mass[b])
            mass[b] = [value / (used * records) for value in mass[b]]
    return [[value / sum(row) for value in row] for row in mass]


def looped_prototype_loss(
    aligned: Aligned,
    prototypes: torch.Tensor,
    temperature: float = 0.2,
    smoothing: float = 0.05,
    rounds: int = 3,
) -> float:
    centres = [unit(row) for row in prototypes.tolist()]
    scores = [
        [[dot(row, centre) for centre in centres] for row in side.tolist()]
        for side in (aligned.image, aligned.text)
    ]
    codes = [looped_codes(side, smoothing, rounds) for side in scores]
    guesses = [[shares([value / temperature for value in row]) for row in side] for side in scores]
    total = 0.0
    for code, guess in ((codes[0], guesses[1]), (codes[1], guesses[0])):
        for b in range(len(code)):
            total -= sum(q * math.log(p) for q, p in zip(code[b], guess[b], strict=True)) / len(code)
    return total / 2


def test_mgca_equals_a_brute_force_loop_over_its_three_terms():
    aligned, model = batch(), mgca((0.5, 2.0, 3.0))
    expected = (
        0.5 * looped_contrast((aligned.image @ aligned.text.T / 0.2).tolist())
        + 2.0 * looped_token_loss(aligned, [0, 1, 2, 3])
        + 3.0 * looped_prototype_loss(aligned, model.prototypes)
    )
    assert number(model(aligned).total) == pytest.approx(expected, rel=1e-9)


def test_a_report_without_words_takes_no_part_in_the_token_term():
    aligned = batch()
    is_word = aligned.is_word.clone()
    is_word[2] = False
    found = token_loss(replace(aligned, is_word=is_word), temperature=0.1)
    assert number(found) == pytest.approx(looped_token_loss(aligned, [0, 1, 3]), rel=1e-9)


def test_the_token_term_is_zero_without_any_words():
    aligned = batch()
    assert (
        number(token_loss(replace(aligned, is_word=torch.zeros_like(aligned.is_word)), temperature=0.1))
        == 0.0
    )


def test_token_weights_are_clipped_at_their_quantiles_and_sum_to_one():
    attention = draws(3, 11, seed=1).abs()
    real = torch.arange(11) < torch.tensor([11, 4, 1])[:, None]
    found = token_weights(attention, real)
    for b, count in enumerate((11, 4, 1)):
        assert found[b, :count].tolist() == pytest.approx(looped_weights(attention[b, :count].tolist()))
        assert not found[b, count:].any()


@pytest.mark.parametrize("attention", [None, torch.zeros(2, 4)])
def test_tokens_without_attention_weigh_the_same(attention):
    real = torch.tensor([[True, True, False, False], [True, True, True, True]])
    assert token_weights(attention, real).tolist() == [[0.5, 0.5, 0.0, 0.0], [0.25] * 4]


def test_no_gradient_flows_through_token_weights():
    aligned = batch()
    attention = aligned.patch_weights.requires_grad_()
    total = token_loss(replace(aligned, words=aligned.words.requires_grad_()), temperature=0.1)
    assert torch.autograd.grad(total, [attention], allow_unused=True) == (None,)


def test_codes_equal_a_brute_force_loop():
    scores = draws(9, 4, seed=1) / 3
    found = sinkhorn(scores, smoothing=0.05, rounds=3)
    assert torch.allclose(found, torch.tensor(looped_codes(scores.tolist()), dtype=torch.float64), atol=1e-12)


def test_codes_of_a_record_sum_to_one_and_prototypes_are_used_about_equally():
    scores = (
        normalize(draws(64, 32, seed=1), dim=1) @ normalize(draws(8, 32, seed=2), dim=1).T
        + 0.3 * torch.eye(8)[0]
    )
    plain = (scores / 0.05).softmax(dim=1).sum(dim=0)
    codes = sinkhorn(scores, smoothing=0.05, rounds=3)
    assert torch.allclose(codes.sum(dim=1), torch.ones(64, dtype=torch.float64))
    assert (codes >= 0).all()
    assert plain.max() > 20  # without balancing, one prototype takes most of the records
    assert codes.sum(dim=0).tolist() == pytest.approx([8.0] * 8, abs=3.0)
    assert sinkhorn(scores, smoothing=0.05, rounds=200).sum(dim=0).tolist() == pytest.approx(
        [8.0] * 8, rel=1e-6
    )


def test_codes_are_finite_where_exponentials_overflow():
    scores = torch.tensor([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]])
    codes = sinkhorn(scores, smoothing=1e-3, rounds=3)
    assert torch.isfinite(codes).all()
    assert codes.sum(dim=1).tolist() == pytest.approx([1.0, 1.0])


def test_no_gradient_flows_through_codes():
    scores = draws(6, 3, seed=1).requires_grad_()
    assert not sinkhorn(scores, smoothing=0.05, rounds=3).requires_grad


def test_the_gradient_of_the_prototype_term_treats_codes_as_constants():
    aligned, model = batch(), mgca((0.0, 0.0, 1.0))
    model(replace(aligned, text=aligned.text.requires_grad_())).total.backward()
    centres = normalize(model.prototypes.detach(), dim=1)
    codes = sinkhorn(aligned.image @ centres.T, smoothing=0.05, rounds=3)
    guess = (aligned.text.detach() @ centres.T / 0.2).softmax(dim=1)
    assert torch.allclose(aligned.text.grad, (guess - codes) @ centres / 0.2 / 4 / 2)


def test_prototypes_start_at_norm_one_and_are_used_at_norm_one_but_never_overwritten():
    model = mgca()
    assert torch.allclose(model.prototypes.norm(dim=1), torch.ones(5, dtype=torch.float64))
    before = number(model(batch()).total)
    with torch.no_grad():
        model.prototypes.mul_(torch.tensor([[1.0], [2.0], [0.5], [3.0], [9.0]]))
    stretched = model.prototypes.detach().clone()
    assert number(model(batch()).total) == pytest.approx(before, rel=1e-12)
    assert torch.equal(model.prototypes, stretched)


def test_prototypes_get_a_gradient_unless_they_are_frozen():
    model = mgca()
    free = model(batch()).total
    free.backward()
    assert model.prototypes.grad is not None
    assert (model.prototypes.grad.abs().max(dim=1).values > 0).all()
    model.prototypes.grad = None
    model.prototypes.requires_grad_(False)
    frozen = model(replace(batch(), image=batch().image.requires_grad_())).total
    frozen.backward()
    assert model.prototypes.grad is None
    assert number(frozen.detach()) == number(free.detach())
