"""Layouts and vectors: what goes into a sum comes out of it, and nothing else fits through."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secfed.crypto.keystream import RoundingStream
from secfed.crypto.lanes import Run
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Encoder, Field, Layout, Totals, state_digest

LAYOUT = Layout(
    (
        Field("weight", (3, 4), bound=2.0, bits=20),
        Field("loss", (), bound=100.0, bits=64),
        Field("bias", (4,), bound=1.0, bits=20),
        Field("embedding", (2, 0, 3), bound=1.0, bits=32),
        Field("count", (), bound=1e6, bits=64),
        Field("head", (5,), bound=0.1, bits=32),
    ),
    sites=5,
)


def _summands(seed: int, layout: Layout = LAYOUT, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        field.name: (torch.rand(field.shape, generator=generator, dtype=dtype) * 2 - 1) * field.bound
        for field in layout.fields
    }


def _read(encoder: Encoder, chunk: int = 1 << 16) -> tuple[NDArray[Any], ...]:
    """Every run, front to back, ``chunk`` lanes at a time."""
    runs = []
    for run in encoder.layout.shape.runs:
        out = np.empty(run.count, run.dtype)
        for start in range(0, run.count, chunk):
            encoder.fill(run, out[start : start + chunk])
        runs.append(out)
    return tuple(runs)


def _encode(layout: Layout, summands: dict[str, Any], key: bytes = bytes(32), chunk: int = 1 << 16) -> Any:
    return _read(layout.encoder(summands, RoundingStream(key)), chunk)


def _sum(layout: Layout, sites: list[dict[str, Any]]) -> Totals:
    sums = tuple(np.zeros(run.count, run.dtype) for run in layout.shape.runs)
    for number, summands in enumerate(sites):
        for total, run in zip(sums, _encode(layout, summands, number.to_bytes(32, "big")), strict=True):
            total += run
    return layout.decode(sums, tuple(f"site-{number}" for number in range(len(sites))))


# --- the layout ---------------------------------------------------------------------------------


def test_fields_of_one_width_stand_together_in_order_of_appearance() -> None:
    assert [field.name for field in LAYOUT.ordered] == [
        "weight", "bias", "loss", "count", "embedding", "head",
    ]  # fmt: skip
    assert LAYOUT.shape.runs == (Run(20, 16), Run(64, 2), Run(32, 5))
    assert LAYOUT.elements == LAYOUT.shape.elements == 23
    assert LAYOUT.shape.wire_bytes == 40 + 16 + 20
    assert LAYOUT.shape.digest == LAYOUT.digest


def _with(position: int, **changes: Any) -> Layout:
    fields = list(LAYOUT.fields)
    fields[position] = replace(fields[position], **changes)
    return replace(LAYOUT, fields=tuple(fields))


def test_the_digest_changes_with_every_attribute() -> None:
    layouts = [
        LAYOUT,
        replace(LAYOUT, sites=6),
        replace(LAYOUT, fields=LAYOUT.fields[:-1]),
        replace(LAYOUT, fields=(*LAYOUT.fields, Field("more", (), 1.0, 64))),
        replace(LAYOUT, fields=(LAYOUT.fields[2], LAYOUT.fields[1], LAYOUT.fields[0], *LAYOUT.fields[3:])),
        _with(0, name="weights"),
        _with(0, shape=(4, 3)),
        _with(0, shape=(12,)),
        _with(0, shape=(3, 4, 1)),
        _with(0, bound=math.nextafter(2.0, 3.0)),
        _with(0, bits=21),
        _with(1, bits=32),
        _with(1, shape=(1,)),
    ]
    assert len({layout.digest for layout in layouts}) == len(layouts)
    assert {len(layout.digest) for layout in layouts} == {32}


def test_the_digest_is_a_function_of_the_layout_alone() -> None:
    assert Layout(tuple(replace(field) for field in LAYOUT.fields), sites=5).digest == LAYOUT.digest
    # An integer bound is the same number as a float.
    assert _with(0, bound=2).digest == LAYOUT.digest


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ((), ConfigError, "at least one element"),
        ((Field("a", (0,), 1.0),), ConfigError, "at least one element"),
        ((Field("a", (2, 0), 1.0), Field("b", (0,), 1.0)), ConfigError, "at least one element"),
        ((Field("a", (), 1.0), Field("a", (2,), 1.0)), ConfigError, "two fields of the name 'a'"),
        ((Field("a", (-1,), 1.0),), ConfigError, "'a' has a negative size"),
        ((Field("a", (), 1.0), Field("b", (), 1.0, bits=40)), RangeError, "'b'.*bits = 40"),
        ((Field("a", (), 0.0),), RangeError, "'a'.*positive finite"),
        ((Field("a", (), math.nan),), RangeError, "'a'.*positive finite"),
        ((Field("a", (), 1e-300),), RangeError, "'a'.*too small or too large"),
        ((Field("w", (), 1.0, bits=8),), RangeError, "'w'.*no headroom for 70 sites.*raise"),
    ],
)
def test_an_impossible_layout_is_refused_naming_the_field(
    fields: tuple[Field, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Layout(fields, sites=70)


# --- there and back -----------------------------------------------------------------------------


@st.composite
def _layouts(draw: st.DrawFn) -> Layout:
    count = draw(st.integers(1, 5))
    fields = tuple(
        Field(
            f"field-{number}",
            tuple(draw(st.lists(st.integers(1, 4), max_size=2))),
            bound=draw(st.sampled_from([1.0, 0.37, 1e-6, 5e4])),
            bits=draw(st.sampled_from([12, 16, 20, 32, 64])),
        )
        for number in range(count)
    )
    return Layout(fields, sites=draw(st.integers(1, 20)))


@given(_layouts(), st.integers(0, 2**20), st.booleans(), st.data())
def test_a_decoded_sum_is_within_one_step_per_site_of_the_true_sum(
    layout: Layout, seed: int, single: bool, data: st.DataObject
) -> None:
    survivors = data.draw(st.integers(1, layout.sites))
    dtype = torch.float32 if single else torch.float64
    sites = [_summands(seed + number, layout, dtype) for number in range(survivors)]
    totals = _sum(layout, sites)
    assert set(totals) == {field.name for field in layout.fields}
    for field in layout.fields:
        true = sum(site[field.name].double() for site in sites)
        # The step of a field: the ring's half over the sites, the bound scaled to at least half of that.
        ring = min(2.0 ** (field.bits - 1) - 1, 2.0**53)
        step = 2 * field.bound / (ring // layout.sites)
        assert totals[field.name].dtype == torch.float64
        assert totals[field.name].shape == field.shape
        # Beside the steps, the rounding of the float64 reference sum itself.
        slack = survivors * step + 1e-14 * survivors * field.bound
        assert bool(((totals[field.name] - true).abs() <= slack).all())


def test_sums_at_the_extremes_are_exact() -> None:
    layout = Layout((Field("w", (3,), 1.0, 16), Field("s", (), 4.0, 64)), sites=7)
    sites = [{"w": torch.tensor([1.0, -1.0, 9.0]), "s": -4.0}] * 7
    totals = _sum(layout, sites)
    assert totals["w"].tolist() == [7.0, -7.0, 7.0]
    assert totals.scalar("s") == -28.0


def test_rounding_is_unbiased_over_independent_streams() -> None:
    layout = Layout((Field("w", (4096,), 1.0, 16),), sites=4)
    for value in (0.1234567, -0.1234567):
        encoded = _encode(layout, {"w": torch.full((4096,), value)})
        step = 2.0**-12  # (2^15 - 1) // 4 = 8191 steps for a bound of 1, so 2^12 is the largest power below
        mean = layout.decode(encoded, ("a",))["w"].mean().item()
        assert abs(mean - value) < 6 * step / 2 / math.sqrt(4096)


@given(st.integers(1, 30))
def test_the_integers_do_not_depend_on_chunks_precision_or_the_order_of_names(chunk: int) -> None:
    summands = _summands(1)
    double = {name: tensor.double() for name, tensor in reversed(summands.items())}
    for one, other in zip(_encode(LAYOUT, summands), _encode(LAYOUT, double, chunk=chunk), strict=True):
        np.testing.assert_array_equal(one, other)


def test_clipped_elements_are_counted_over_all_fields() -> None:
    layout = Layout((Field("w", (4,), 1.0), Field("s", (), 1.0, 64)), sites=2)
    encoder = layout.encoder({"w": torch.tensor([2.0, -3.0, 1.0, 0.0]), "s": 7.0}, RoundingStream(bytes(32)))
    assert encoder.clipped == 0
    _read(encoder, chunk=3)
    assert encoder.clipped == 3


# --- scalars and tensors of every kind ----------------------------------------------------------


@pytest.mark.parametrize(
    "value", [3, 3.0, np.float32(3), np.float64(3), torch.tensor(3.0), torch.tensor(3)], ids=repr
)
def test_a_scalar_field_takes_numbers_and_scalar_tensors(value: Any) -> None:
    layout = Layout((Field("n", (), 8.0, 64),), sites=2)
    totals = _sum(layout, [{"n": value}, {"n": 0.5}])
    assert totals.scalar("n") == 3.5
    assert totals["n"].shape == ()


def test_a_python_float_is_not_cut_to_single_precision() -> None:
    layout = Layout((Field("n", (), 1.0, 64),), sites=1)
    assert abs(_sum(layout, [{"n": 1 / 3}]).scalar("n") - 1 / 3) < 2.0**-50


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool],
)
def test_tensors_of_every_number_type_are_summed(dtype: torch.dtype) -> None:
    layout = Layout((Field("w", (2, 2), 8.0),), sites=2)
    value = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    assert _sum(layout, [{"w": value}, {"w": value}])["w"].tolist() == [[0, 2], [2, 0]]


def test_strided_tensors_and_parameters_are_read_in_logical_order() -> None:
    layout = Layout((Field("w", (2, 3), 8.0),), sites=2)
    value = torch.arange(6.0).reshape(3, 2).t()
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    assert _sum(layout, [{"w": value}])["w"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert _sum(layout, [{"w": parameter}])["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_summands_are_left_as_they_were() -> None:
    layout = Layout((Field("w", (3,), 1.0), Field("v", (3,), 0.1, 16)), sites=2)
    summands = {"w": torch.tensor([5.0, -5.0, 0.3]), "v": torch.tensor([0.5, -0.5, 0.01]).double()}
    before = {name: tensor.clone() for name, tensor in summands.items()}
    _encode(layout, summands)
    assert all(torch.equal(summands[name], before[name]) for name in summands)


# --- refusals -----------------------------------------------------------------------------------


def test_missing_and_unknown_fields_are_refused_by_name() -> None:
    summands = _summands(1)
    for wrong, names in [
        ({k: v for k, v in summands.items() if k != "bias"}, "bias"),
        ({**summands, "extra": 1.0}, "extra"),
        ({("biases" if k == "bias" else k): v for k, v in summands.items()}, "bias, biases"),
        ({}, "bias, count, embedding, head, loss, weight"),
    ]:
        with pytest.raises(RangeError, match=f"do not match the layout: {names}$"):
            LAYOUT.encoder(wrong, RoundingStream())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", torch.zeros(4, 3)),
        ("weight", torch.zeros(12)),
        ("weight", torch.zeros(1, 3, 4)),
        ("weight", 0.0),
        ("loss", torch.zeros(1)),
    ],
)
def test_a_wrong_shape_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RangeError, match=f"field '{name}' has shape"):
        LAYOUT.encoder({**_summands(1), name: value}, RoundingStream())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nan_and_infinity_are_refused_by_name_before_anything_is_encoded(
    bad: float, dtype: torch.dtype
) -> None:
    for position in range(12):
        weight = torch.zeros(12, dtype=dtype)
        weight[position] = bad
        with pytest.raises(RangeError, match=r"field 'weight' contains NaN or Inf.*learning rate"):
            LAYOUT.encoder({**_summands(1), "weight": weight.reshape(3, 4)}, RoundingStream())
    with pytest.raises(RangeError, match="field 'loss' contains NaN or Inf"):
        LAYOUT.encoder({**_summands(1), "loss": bad}, RoundingStream())


def test_an_error_never_shows_a_value() -> None:
    summands = {**_summands(1), "weight": torch.full((3, 4), 1234.5)}
    summands["bias"] = torch.tensor([1234.5, math.nan, 1234.5, 1234.5])
    with pytest.raises(RangeError) as caught:
        LAYOUT.encoder(summands, RoundingStream())
    assert "1234" not in str(caught.value)


def test_reading_past_the_end_or_out_of_order_is_refused() -> None:
    first, second, third = LAYOUT.shape.runs
    for wrong in (second, third):
        with pytest.raises(RangeError, match="past its end or out of order"):
            LAYOUT.encoder(_summands(1), RoundingStream()).fill(wrong, np.empty(1, wrong.dtype))
    encoder = LAYOUT.encoder(_summands(1), RoundingStream())
    with pytest.raises(RangeError, match="past its end or out of order"):
        encoder.fill(first, np.empty(first.count + 1, first.dtype))
    encoder = LAYOUT.encoder(_summands(1), RoundingStream())
    _read(encoder)
    with pytest.raises(RangeError, match="past its end or out of order"):
        encoder.fill(third, np.empty(1, third.dtype))


def test_a_sum_that_was_not_unmasked_is_refused_naming_the_field() -> None:
    sums = [np.zeros(run.count, run.dtype) for run in LAYOUT.shape.runs]
    sums[0][13] = 1 << 19  # in "bias", the second field of the first run
    with pytest.raises(RangeError, match=r"field 'bias'.*not unmasked correctly"):
        LAYOUT.decode(tuple(sums), ("a", "b"))


# --- totals -------------------------------------------------------------------------------------


def test_totals_are_a_read_only_mapping_of_sums() -> None:
    totals = _sum(LAYOUT, [_summands(1), _summands(2)])
    assert totals.survivors == ("site-0", "site-1")
    assert len(totals) == len(LAYOUT.fields)
    assert list(totals) == [field.name for field in LAYOUT.ordered]
    assert totals.scalar("loss") == float(totals["loss"])
    assert totals["embedding"].shape == (2, 0, 3)
    with pytest.raises(TypeError, match="item assignment"):
        totals["loss"] = torch.tensor(0.0)  # type: ignore[index]
    with pytest.raises(AttributeError):
        totals.survivors = ()  # type: ignore[misc]


def test_a_broadcast_digest_depends_on_every_byte() -> None:
    assert state_digest(b"model") == state_digest(b"model") != state_digest(b"modem")
    assert len(state_digest(b"")) == 32
