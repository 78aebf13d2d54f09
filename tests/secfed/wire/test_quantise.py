"""Quantising where the values are: the integers of the processor's own function, whatever the values."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.keystream import RoundingStream
from secfed.errors import RangeError
from secfed.wire import quantise
from secfed.wire.layout import Field, Layout
from tests import emulated_device
from tests.crypto.fixedpoint_reference import BOUNDS, RANDOM_WORD, WIDTH, WIDTHS, WORST, quantised, rule_for

EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.4e-45, 1e-38, -1e-38, 3.4e38, -3.4e38, 0.1, -0.1, 1 / 3]
DOUBLES = [5e-324, -5e-324, 2.0**-1074, 2.0**-1022, -(2.0**-1022), 1.7e308, -1.7e308, math.nextafter(1, 0)]
ANY_FLOAT = st.one_of(st.sampled_from(EXTREMES + DOUBLES), st.floats(allow_nan=False, allow_infinity=False))


def _agree(bits: int, bound: float, values: Any, words: Any, kind: Any = np.float64) -> None:
    rule = rule_for(bound, bits, 3)
    given_values = np.array(values, kind)
    used = np.array(words, np.uint32)
    lanes, clipped = quantise.on_device(rule, torch.from_numpy(given_values), used)
    assert lanes.dtype == rule.dtype
    assert lanes.tobytes() == quantised(rule, given_values, used).tobytes()
    expected = rule.quantise(given_values, used, np.zeros(len(used), rule.dtype))
    assert clipped == expected


@given(WIDTH, BOUNDS, st.lists(st.tuples(ANY_FLOAT, RANDOM_WORD), min_size=1, max_size=20))
def test_any_value_gives_the_same_integer(bits: int, bound: float, pairs: Any) -> None:
    values, words = zip(*pairs, strict=True)
    _agree(bits, bound, values, words)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_extremes_give_the_same_integers(bits: int, kind: Any) -> None:
    for bound in (1.0, 0.1, 3.0, 1e-30, 1e30, 2.0**31):
        chosen = [*EXTREMES, *(value * bound for value in EXTREMES if abs(value) < 10)]
        if kind is np.float64:
            chosen += [*DOUBLES, bound, -bound, math.nextafter(bound, math.inf)]
        pairs = [(kind(value), word) for value, word in product(chosen, WORST) if np.isfinite(kind(value))]
        _agree(bits, bound, *zip(*pairs, strict=True), kind)


LAYOUT = Layout(
    (
        Field("weight", (30, 4), bound=0.5, bits=20),
        Field("count", (), bound=1e6, bits=64),
        Field("head", (50,), bound=0.1, bits=32),
        Field("bias", (7,), bound=1.0, bits=20),
    ),
    sites=5,
)


def _read(summands: dict[str, Any], chunk: int) -> tuple[list[bytes], int]:
    encoder, runs = LAYOUT.encoder(summands, RoundingStream(bytes(32))), []
    for run in LAYOUT.shape.runs:
        out = np.empty(run.count, run.dtype)
        for start in range(0, run.count, chunk):
            encoder.fill(run, out[start : start + chunk])
        runs.append(out.tobytes())
    return runs, encoder.clipped


def _values() -> dict[str, torch.Tensor]:
    return {field.name: torch.randn(field.shape) for field in LAYOUT.fields}


def _there(device: torch.device, values: dict[str, torch.Tensor]) -> Any:
    quantise._BLOCK_ELEMENTS = 48  # type: ignore[misc]
    moved = {
        name: value.to(device) if name in ("weight", "bias") else value for name, value in values.items()
    }
    emulated_device.reads.clear()
    read = _read(moved, 8)
    reads = dict(emulated_device.reads)
    with pytest.raises(RangeError, match="field 'bias' contains NaN or Inf"):
        _read(moved | {"bias": moved["bias"] / 0.0}, 8)
    return read, reads


@pytest.mark.skipif(not emulated_device.THERE, reason="this torch has no Python backend for devices")
def test_an_encoder_reads_a_device_as_it_reads_the_processor() -> None:
    values = _values()
    found, reads = emulated_device.elsewhere(_there, values)
    assert found == _read(values, 64)
    # Once for all extrema; for each of four blocks the lanes, and how many were clipped.
    assert sum(reads.values()) == 1 + 2 * 4
