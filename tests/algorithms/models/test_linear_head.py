"""A linear layer on fixed features: what enters it, whatever a record holds, and who has a say in it."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.framework.parameters import trainable
from secfed.algorithms.models.linear_head import LinearHeadOptions, linear_head

RECORDS = torch.stack([
    torch.arange(16.0).reshape(1, 4, 4),
    torch.full((1, 4, 4), 3e38),
    torch.full((1, 4, 4), -1e-30),
    torch.zeros(1, 4, 4),
])  # fmt: skip


@pytest.mark.parametrize("features", ["l2", "sqrt-l2", "hog", "projection:5", "sqrt-l2+projection:5"])
def test_what_enters_the_layer_has_a_norm_of_at_most_one(features):
    model = linear_head((1, 4, 4), 3, LinearHeadOptions(name="linear-head", features=features))
    found = model[0](RECORDS)
    assert found.dtype == torch.float32
    assert found.shape[1] == model[1].in_features
    assert (found.norm(dim=1) <= 1 + 1e-6).all()
    assert found[0].norm() == pytest.approx(1.0)


def test_only_the_layer_is_trained_and_it_has_no_bias():
    model = linear_head((1, 4, 4), 3, LinearHeadOptions(name="linear-head"))
    assert trainable(model) == ("1.weight",)
    assert set(model.state_dict()) == {"1.weight"}


def test_the_projection_is_the_same_for_every_seed():
    options = LinearHeadOptions(name="linear-head", features="projection:5")
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(linear_head((1, 4, 4), 3, options)[0](RECORDS))
    assert torch.equal(*found)
