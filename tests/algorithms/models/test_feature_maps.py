"""Maps bound what a record can add, whatever it holds, and leave alone what does not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secfed.algorithms.models.feature_maps import FeatureMap, unit
from secfed.errors import ConfigError

TEXTS = ["l2", "sqrt-l2", "hog", "projection:7", "standard"]
TEXTS += ["sqrt-l2+projection:7", "standard+l2", "standard+hog"]
EXTREME = torch.tensor(
    [[0.0] * 16, [3e38] * 16, [-3e38] * 16, [1e-45] * 16, [0.0] * 15 + [3e38], [3e38, -3e38] * 8, [1.0] * 16],
    dtype=torch.float32,
)
SCALE = torch.tensor([[0.5] * 16, [1e6] * 16], dtype=torch.float64)


def mapped(text: str, records: torch.Tensor, seed: int = 1) -> torch.Tensor:
    return FeatureMap.parse(text)(records, seed, SCALE)


@pytest.mark.parametrize("text", TEXTS)
def test_no_extreme_record_comes_out_longer_than_one_or_not_finite(text: str) -> None:
    found = mapped(text, EXTREME)
    assert found.shape == (len(EXTREME), FeatureMap.parse(text).size(16, 1))
    assert found.dtype == torch.float64
    assert bool(torch.isfinite(found).all())
    assert float(found.norm(dim=1).max()) <= 1 + 1e-12


@pytest.mark.parametrize("text", TEXTS)
@given(
    records=arrays(np.float32, (3, 16), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)
def test_no_record_comes_out_longer_than_one(text: str, records: np.ndarray) -> None:
    found = mapped(text, torch.from_numpy(records))
    assert bool(torch.isfinite(found).all())
    assert float(found.norm(dim=1).max()) <= 1 + 1e-12


@pytest.mark.parametrize("text", ["l2", "sqrt-l2", "hog", "projection:7"])
def test_the_size_of_a_record_does_not_matter(text: str) -> None:
    records = torch.rand(5, 16)
    assert torch.allclose(mapped(text, records), mapped(text, records * 8), atol=1e-12)
    assert torch.allclose(mapped(text, records).norm(dim=1), torch.ones(5, dtype=torch.float64))


def test_records_are_mapped_one_by_one() -> None:
    records = torch.rand(6, 16)
    for text in TEXTS:
        assert torch.allclose(mapped(text, records)[2:3], mapped(text, records[2:3]), atol=1e-14)


def test_what_the_maps_are() -> None:
    records = torch.tensor([[9.0, 16.0, -4.0, 0.0]])
    assert torch.allclose(FeatureMap.parse("l2")(records, 1), records.double() / 353**0.5)
    assert torch.allclose(FeatureMap.parse("sqrt-l2")(records, 1), torch.tensor([[0.6, 0.8, 0, 0]]).double())
    scale = torch.tensor([[9.0, 15.0, 0.0, 0.0], [1.0, 2.0, 1.0, 100.0]], dtype=torch.float64)
    standard = FeatureMap.parse("standard")(records, 1, scale)
    assert torch.allclose(standard, torch.tensor([[0.0, 2.0, -4.0, 0.0]]).double() / 20)
    assert torch.equal(
        FeatureMap.parse("standard")(records * 1e9, 1, scale), torch.tensor([[0.5, 0.5, -0.5, 0]]).double()
    )


def test_projections_are_signs_that_the_seed_decides() -> None:
    one = FeatureMap.parse("projection:64")
    signs = one(torch.eye(16), 1) * 8
    assert torch.allclose(signs.abs(), torch.ones(16, 64, dtype=torch.float64))
    assert torch.equal(one(torch.eye(16), 1) * 8, signs)
    assert not torch.equal(one(torch.eye(16), 2) * 8, signs)
    assert abs(float(signs.mean())) < 0.15
    assert signs[0, :4].sign().tolist() == [1.0, 1.0, -1.0, 1.0]  # on every machine


def test_hog_sees_edges_and_their_direction_and_no_even_brightness() -> None:
    step = torch.zeros(16, 16)
    step[:, 8:] = 1.0
    found = FeatureMap.parse("hog")(torch.stack([step, 1 - step, step.T]).reshape(3, -1), 1)
    by_direction = found.reshape(3, 8, 5, 5)
    inside = by_direction[:, :, 1:4, 2].sum(dim=2)  # away from the frame
    assert [int(one.argmax()) for one in inside] == [4, 0, int(inside[2].argmax())]
    assert int(by_direction[2, :, 2, 1:4].sum(dim=1).argmax()) == 6
    assert float(by_direction[0, :, 2, 1].abs().max()) == 0.0


def test_unit_leaves_zeros() -> None:
    found = unit(torch.tensor([[0.0, 0.0], [3e-320, 0.0], [1e300, 1e300]], dtype=torch.float64))
    assert found[0].tolist() == [0.0, 0.0]
    assert float(found[1].norm()) <= 1.0
    assert torch.allclose(found[2], torch.full((2,), 0.5**0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    "text", ["", "l3", "projection", "projection:0", "projection:x", "l2+", "hog:3", "l2+l3"]
)
def test_an_unknown_map_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.maps: there is no map"):
        FeatureMap.parse(text)


def test_standard_comes_first_and_hog_needs_squares() -> None:
    with pytest.raises(ConfigError, match='"standard" is not the first step'):
        FeatureMap.parse("l2+standard")
    with pytest.raises(ConfigError, match="view 2 has 15 features"):
        FeatureMap.parse("hog").size(15, 2)
    assert FeatureMap.parse("hog").size(784, 1) == 200


@pytest.mark.parametrize("text", ["l2", "sqrt-l2", "hog", "projection:7"])
@pytest.mark.parametrize("side", [9, 14])
def test_no_record_depends_on_the_others_to_the_last_bit(text: str, side: int) -> None:
    records = torch.rand(23, side * side, generator=torch.Generator().manual_seed(side))
    chosen = FeatureMap.parse(text)
    alone = torch.cat([chosen(records[at : at + 1], 1) for at in range(len(records))])
    for count in range(1, len(records) + 1):
        assert torch.equal(chosen(records[:count], 1), alone[:count])
        assert torch.equal(chosen(records[-count:], 1), alone[-count:])
