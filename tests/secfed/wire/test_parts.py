"""What counts as finite: every dtype and shape that a state may have."""

from __future__ import annotations

import math

import pytest
import torch

from secfed.wire.parts import is_finite, is_finite_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_one_bad_number_is_seen_wherever_it_stands(dtype: torch.dtype, bad: float, size: int) -> None:
    values = torch.arange(size).to(dtype)
    assert is_finite_tensor(values)
    for place in (0, size // 2, size - 1):
        spoiled = values.clone()
        spoiled[place] = bad
        assert not is_finite_tensor(spoiled)
        assert not is_finite({"good": values, "spoiled": spoiled})


@pytest.mark.parametrize(
    "value", [torch.empty(0, 3), torch.tensor(2.0), torch.tensor([True]), torch.tensor(7)]
)
def test_nothing_scalars_and_whole_numbers_are_finite(value: torch.Tensor) -> None:
    assert is_finite_tensor(value)
    assert is_finite({"value": value})


def test_the_largest_numbers_are_finite() -> None:
    assert is_finite_tensor(torch.full((5,), torch.finfo(torch.float32).max))
