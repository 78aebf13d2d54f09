from __future__ import annotations

import pytest
import torch
from torch import nn

from secfed.algorithms.framework.parameters import read_parameters, trainable
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import add_in_ring, simulate

STUDY = """
study = { name = "models", rounds = 1, seed = 3 }
algorithm = { name = "fedavg", learning_rate = 0.05 }
model = MODEL
data = { name = "DATA", sites = 3 }
protection = { name = "plain" }
"""

MODELS = [
    '{ name = "linear-head", features = "hog" }',
    '{ name = "linear-head", features = "sqrt-l2+projection:20" }',
    '{ name = "logistic-regression" }',
    '{ name = "mlp", hidden = [8, 4] }',
    '{ name = "small-cnn", channels = [4, 8], hidden = 8 }',
    '{ name = "small-cnn", channels = [3, 5], hidden = 8, norm = "none" }',
    '{ name = "small-cnn", channels = [4], hidden = 0 }',
]


def study(model: str, data: str = "digits") -> Study:
    return Study.parse(STUDY.replace("MODEL", model).replace("DATA", data))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_gives_one_score_per_class_and_trains_through_the_ring(model):
    algorithm = build(study(model))
    network = algorithm.setting.model()
    assert network(torch.zeros(5, 1, 8, 8)).shape == (5, 10)
    assert not any(isinstance(m, nn.Dropout | nn.BatchNorm1d | nn.BatchNorm2d) for m in network.modules())
    metrics = simulate(study(model), algorithm=algorithm, adder=add_in_ring).metrics()
    assert metrics[1]["loss"] < metrics[0]["loss"]


@pytest.mark.parametrize("model", MODELS)
def test_initial_parameters_depend_on_the_study_seed_and_not_on_global_state(model):
    states = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        states.append(build(study(model)).initial)
    other = build(study(model).replace("study.seed", 4)).initial
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("model", "data", "key"),
    [
        ('{ name = "small-cnn" }', "breast-cancer", r"model\.name: small-cnn needs images"),
        ('{ name = "small-cnn", channels = [0, 4] }', "digits", r"model\.channels"),
        ('{ name = "small-cnn", channels = [4, 4, 4] }', "digits", r"model\.channels"),
        ('{ name = "mlp", hidden = [8, 0] }', "digits", r"model\.hidden"),
        ('{ name = "mlp", hidden = 8 }', "digits", r"model\.hidden"),
        ('{ name = "logistic-regression", hidden = 8 }', "digits", r"model\.hidden: unknown key"),
        ('{ name = "linear-head", features = "gabor" }', "digits", r"model\.features.*no map 'gabor'"),
        ('{ name = "linear-head", features = "hog" }', "breast-cancer", r"model\.features.*square images"),
        ('{ name = "linear-head", features = "l2+standard" }', "digits", r"model\.features: in 'l2"),
        ('{ name = "linear-head", features = "standard" }', "digits", r"model\.features.*over all hospitals"),
    ],
)
def test_a_model_that_does_not_fit_is_an_error_that_names_the_key(model, data, key):
    with pytest.raises(ConfigError, match=key) as caught:
        build(study(model, data))
    assert caught.value.remedy


def test_frozen_parameters_are_broadcast_and_not_summed():
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    network[0].requires_grad_(False)
    assert trainable(network) == ("1.weight", "1.bias")
    assert set(read_parameters(network)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "layer '1' is batch normalisation.*GroupNorm"),
        (nn.Sequential(nn.Flatten()), "no trainable parameters"),
    ],
)
def test_a_model_that_cannot_be_summed_is_an_error(network, what):
    with pytest.raises(ConfigError, match=what):
        trainable(network)
