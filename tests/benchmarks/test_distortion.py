import distortion
import pytest
import torch

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.framework.parameters import read_parameters
from secfed.errors import ConfigError, DataError
from tests.algorithms.toy_pairs import ToyDual, toy_pairs

CPU = torch.device("cpu")


def trained(model, pairs, steps=30):
    """The model after some steps at one site, as parameters; the model itself stays."""
    before = read_parameters(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        model.objective(model(pairs.images, pairs.tokens)).total.backward()
        optimiser.step()
    after = read_parameters(model)
    model.load_state_dict(before)
    return after


def test_mean_cosine_is_the_mean_over_pairs_and_not_over_batches(monkeypatch):
    model, pairs = ToyDual(), toy_pairs(11)
    with torch.no_grad():
        aligned = model(pairs.images, pairs.tokens)
    wanted = sum(float(a @ b) for a, b in zip(aligned.image, aligned.text, strict=True)) / 11
    monkeypatch.setattr(distortion, "_BATCH", 4)
    assert distortion.mean_cosine(model, pairs, CPU) == pytest.approx(wanted, abs=1e-6)


def test_a_matrix_has_a_row_per_retrained_site_and_a_column_per_tested_one():
    model = ToyDual()
    server = read_parameters(model)
    sites = {f"site-{k}": toy_pairs(24, k) for k in range(3)}
    retrained = {"site-0": server, "site-1": trained(model, sites["site-1"])}
    found = distortion.distortion_matrix(model, server, retrained, sites, CPU)
    assert tuple(found.shape) == (2, 3)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    assert float(found[1, 1]) < 0  # training there pulls its own pairs together
    model.load_state_dict(retrained["site-1"])
    after = distortion.mean_cosine(model, sites["site-2"], CPU)
    model.load_state_dict(server)
    before = distortion.mean_cosine(model, sites["site-2"], CPU)
    assert float(found[1, 2]) == pytest.approx(before - after)


def test_what_is_missing_is_refused():
    model, pairs = ToyDual(), toy_pairs(4)
    state = read_parameters(model)
    empty = Pairs(pairs.images[:0], pairs.tokens[:0], pairs.findings[:0])
    with pytest.raises(DataError):
        distortion.mean_cosine(model, empty, CPU)
    with pytest.raises(ConfigError):
        distortion.distortion_matrix(model, state, {}, {"a": pairs}, CPU)
