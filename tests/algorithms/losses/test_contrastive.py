from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from secfed.algorithms.losses.contrastive import eq5, model_contrast, ntxent


def rows(count: int, seed: int, *, unit: bool = True) -> torch.Tensor:
    made = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(made, dim=1) if unit else made


def test_ntxent_equals_a_brute_force_double_loop():
    common, view, temperature = rows(6, 1), rows(6, 2, unit=False), 0.5
    stacked = torch.cat([view, common])
    terms = []
    for a in range(12):
        logits = {b: float(stacked[a] @ stacked[b]) / temperature for b in range(12) if b != a}
        total = math.log(sum(math.exp(value) for value in logits.values()))
        terms.append(total - logits[(a + 6) % 12])
    assert float(ntxent(common, view, temperature=temperature)) == pytest.approx(sum(terms) / 12)


def test_ntxent_of_one_record_has_no_negatives():
    assert float(ntxent(rows(1, 1), rows(1, 2), temperature=0.5)) == 0.0


def test_ntxent_at_a_large_temperature_is_the_log_of_the_other_rows():
    found = ntxent(rows(16, 1), rows(16, 2), temperature=1e6)
    assert float(found) == pytest.approx(math.log(31), abs=1e-5)


def test_ntxent_does_not_change_when_its_inputs_are_swapped():
    one, two = rows(8, 1), rows(8, 2, unit=False)
    assert float(ntxent(one, two, temperature=0.5)) == pytest.approx(float(ntxent(two, one, temperature=0.5)))


def test_eq5_equals_a_brute_force_double_loop():
    common, view, temperature = rows(5, 1), rows(5, 2, unit=False), 0.7
    terms = []
    for i in range(5):
        s = [float(torch.cosine_similarity(common[i], view[j], dim=0)) / temperature for j in range(5)]
        terms.append(math.log(sum(math.exp(s[j]) for j in range(5) if j != i)) - s[i])
    assert float(eq5(common, view, temperature=temperature)) == pytest.approx(sum(terms) / 5)


def test_eq5_can_be_negative_because_the_positive_is_not_in_its_denominator():
    common = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert float(eq5(common, common, temperature=0.5)) == pytest.approx(-4.0)


def test_eq5_of_one_record_is_zero_and_has_a_gradient():
    common, view = rows(1, 1).requires_grad_(), rows(1, 2)
    found = eq5(common, view, temperature=0.5)
    found.backward()
    assert float(found.detach()) == 0.0
    assert common.grad is not None
    assert not common.grad.any()


def test_eq5_ignores_the_length_of_view_features_and_ntxent_does_not():
    common, view = rows(6, 1), rows(6, 2)
    assert float(eq5(common, 3 * view, temperature=0.5)) == pytest.approx(
        float(eq5(common, view, temperature=0.5))
    )
    assert float(ntxent(common, 3 * view, temperature=0.5)) != pytest.approx(
        float(ntxent(common, view, temperature=0.5)), rel=1e-3
    )


def test_model_contrast_equals_its_definition_record_by_record():
    z, near, far, t = rows(5, 1), rows(5, 2), rows(5, 3), 0.5
    expected = []
    for i in range(5):
        g, p = (math.exp(float(torch.cosine_similarity(z[i], one[i], dim=0)) / t) for one in (near, far))
        expected.append(-math.log(g / (g + p)))
    assert model_contrast(z, near, far, temperature=t).tolist() == pytest.approx(expected)


def test_model_contrast_at_its_ends():
    common = rows(4, 1)
    best = model_contrast(common, common, -common, temperature=0.5)
    assert best.tolist() == pytest.approx([math.log1p(math.exp(-4))] * 4)
    even = model_contrast(common, rows(4, 2), rows(4, 2), temperature=0.5)
    assert even.tolist() == pytest.approx([math.log(2)] * 4)


def test_model_contrast_sends_no_gradient_to_the_global_model():
    common, reference, low = (rows(4, seed).requires_grad_() for seed in (1, 2, 3))
    model_contrast(common, reference, low, temperature=0.5).sum().backward()
    assert reference.grad is None
    assert common.grad is not None
    assert low.grad is not None
    assert low.grad.abs().max() > 0
