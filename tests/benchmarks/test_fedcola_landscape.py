import fedcola_landscape as made
import pytest
import torch

from secfed.algorithms.fedcola.algorithm import FedCola
from tests.algorithms.fedcola_case import tiny


@pytest.fixture(scope="module")
def loss():
    algorithm: FedCola = tiny(model__depth=1, model__width=4, data__pairs=8)
    data = algorithm.site_data("pairs-1").train
    network = algorithm.plan.network("pairs", algorithm.initial["pairs"], torch.device("cpu"))
    return made.Loss(network, data.images[data.sources], data.tokens, temperature=0.5)


def test_the_loss_bends_along_an_eigenvector_as_its_eigenvalue_says(loss):
    values, vectors = loss.largest()
    assert values[0] > values[1] > 0
    assert torch.allclose(vectors.T @ vectors, torch.eye(2, dtype=torch.float64), atol=1e-6)
    step, here = 1e-3, loss(torch.zeros_like(loss.centre))
    for value, vector in zip(values, vectors.T, strict=True):
        bend = (loss(step * vector) - 2 * here + loss(-step * vector)) / step**2
        assert bend == pytest.approx(value, rel=0.02)


def test_the_grid_has_the_model_in_its_middle_and_equal_figures_equal_bytes(loss, tmp_path):
    found = made.landscape("one", loss, reach=0.5, steps=3)
    assert found.loss == loss(torch.zeros_like(loss.centre))
    assert found.rise == pytest.approx(found.losses.mean() - found.losses[1, 1])
    for name in ("1", "2"):
        made.draw([found, found], 0.5, tmp_path / f"{name}.svg")
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()
