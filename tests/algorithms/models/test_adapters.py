"""Low-rank adapters: what moves, what does not, and that every record's part of them is clipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secfed.algorithms.framework.parameters import trainable
from secfed.algorithms.models.adapters import add_adapters
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.config.schema import checked
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.algorithms.dual_encoder_case import model, pairs
from tests.dp.toys import CROSS_ENTROPY, mechanism, mlp, parameters, sgd, table


def adapted() -> nn.Module:
    network = mlp()
    assert add_adapters(network, ["*"], rank=2) == ["0", "3"]
    return network


def test_adapters_change_nothing_at_first_and_then_only_themselves() -> None:
    inputs, labels = table()
    before, network = mlp(), adapted()
    assert torch.equal(network(inputs), before(inputs))
    optimiser = sgd(network, 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimiser.step()
    assert not torch.equal(network(inputs), before(inputs))
    after = dict(network.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.named_parameters())
    assert trainable(network) == ("0.down.weight", "0.up.weight", "3.down.weight", "3.up.weight")


def test_records_are_clipped_by_their_adapters_with_the_fast_engine() -> None:
    found = {}
    for engine in ("auto", "loop"):
        network = adapted()
        with torch.no_grad():
            network.get_parameter("0.up.weight").fill_(0.1)  # or the matrices A get no gradient
        private = PrivateTraining(mechanism(clip=0.05, sigma=0.0, rate=1.0), engine=engine)  # type: ignore[arg-type]
        private.run(network, sgd(network), CROSS_ENTROPY, table(12), steps=1)
        found[private.used] = parameters(network)
    assert torch.allclose(found["ghost"], found["loop"], atol=1e-6)


def test_a_pattern_that_no_layer_has_is_named() -> None:
    with pytest.raises(ConfigError, match="'block'"):
        add_adapters(mlp(), ["0", "block"], rank=1)


def test_of_the_encoders_only_adapters_train() -> None:
    network = model(adapters="lora", adapter_rank=3)
    names = trainable(network)
    encoders = [name for name in names if name in network.encoder_names]
    assert encoders
    assert all(name.endswith((".down.weight", ".up.weight")) for name in encoders)
    assert set(network.align_names) <= set(names)
    images, tokens = pairs(3)
    assert bool(torch.isfinite(network(images, tokens).image).all())


def test_a_rank_without_adapters_is_refused() -> None:
    with pytest.raises(ConfigError, match="adapter_rank"):
        checked(VisionLanguageOptions, {"name": "vision-language", "adapter_rank": 2}, "model")
