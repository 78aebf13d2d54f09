from __future__ import annotations

import pytest
import torch

from secfed.algorithms.models.multiview import (
    MultiviewModelOptions,
    MultiviewNetwork,
    shapes_only,
    with_storage,
)
from secfed.errors import ConfigError


@pytest.fixture
def network() -> MultiviewNetwork:
    torch.manual_seed(0)
    return MultiviewNetwork((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 7), features=4))


def parameters(module: torch.nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def test_parameter_counts_of_the_published_network():
    network = shapes_only((784, 784), MultiviewModelOptions(name="multiview"))
    assert [parameters(part) for part in network.enc] == [1_685_020] * 2
    assert [parameters(part) for part in network.dec] == [1_685_784] * 2
    assert [parameters(part) for part in network.view_head] == [10_516] * 2
    assert parameters(network.fuse_head) == 15_636
    assert parameters(network) == 6_778_276


def test_common_semantics_are_unit_vectors(network):
    h = network((torch.randn(9, 6), torch.randn(9, 5)))
    assert h.shape == (9, 4)
    assert torch.allclose(h.norm(dim=1), torch.ones(9))


def test_a_missing_view_has_one_low_level_feature_for_all_records(network):
    low = network.encode((torch.randn(9, 6), None))
    assert low[1].shape == (9, 4)
    assert torch.equal(low[1], low[1][:1].expand(9, -1))
    assert torch.allclose(low[1][0], network.enc[1](torch.zeros(1, 5))[0])


def test_one_row_for_a_missing_view_gives_the_values_and_gradients_of_a_row_per_record(network):
    view = torch.randn(9, 6)
    found = []
    for each_row in (False, True):
        network.zero_grad()
        low = network.encode((view, None), each_row=each_row)
        value = (network.common(low) * torch.arange(4)).sum() + network.reconstruct(1, low[1]).square().sum()
        value.backward()
        found.append((value, [p.grad for p in network.parameters() if p.grad is not None]))
    assert torch.allclose(found[0][0], found[1][0])
    assert len(found[0][1]) == len(found[1][1])
    for one, each in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(one, each, atol=1e-5)


def test_first_layer_weights_of_an_absent_view_get_exactly_no_gradient(network):
    network((torch.randn(9, 6), None))[:, 0].sum().backward()
    assert not network.enc[1][0].weight.grad.any()
    assert network.enc[1][0].bias.grad.any()
    assert network.enc[0][0].weight.grad.any()


def test_storage_without_values_has_the_same_names_and_shapes(network):
    made = with_storage(
        shapes_only((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 7), features=4))
    )
    made.load_state_dict(network.state_dict())
    view = torch.randn(3, 6)
    assert torch.equal(made((view, None)), network((view, None)))


def test_impossible_networks_are_refused():
    with pytest.raises(ConfigError, match=r"model\.hidden"):
        shapes_only((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 0)))
    with pytest.raises(ConfigError, match="fewer than two views"):
        shapes_only((6,), MultiviewModelOptions(name="multiview"))
