from __future__ import annotations

import pytest
import torch

from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetwork, MultiviewNetworks
from secfed.errors import ConfigError


@pytest.fixture
def network() -> MultiviewNetwork:
    torch.manual_seed(0)
    return MultiviewNetwork((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 7), features=4))


def parameters(module: torch.nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def test_parameter_counts_of_the_published_network():
    network = MultiviewNetworks((784, 784), MultiviewModelOptions(name="multiview")).shapes
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


def test_first_layer_weights_of_an_absent_view_get_exactly_no_gradient(network):
    network((torch.randn(9, 6), None))[:, 0].sum().backward()
    assert not network.enc[1][0].weight.grad.any()
    assert network.enc[1][0].bias.grad.any()
    assert network.enc[0][0].weight.grad.any()


def test_a_network_that_holds_parameters_computes_what_they_say(network):
    networks = MultiviewNetworks((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 7), features=4))
    view = torch.randn(3, 6)
    assert torch.equal(networks.holding(network.state_dict())((view, None)), network((view, None)))


def test_impossible_networks_are_refused():
    with pytest.raises(ConfigError, match=r"model\.hidden"):
        MultiviewNetworks((6, 5), MultiviewModelOptions(name="multiview", hidden=(8, 0)))
    with pytest.raises(ConfigError, match="has no two views"):
        MultiviewNetworks((6,), MultiviewModelOptions(name="multiview"))
