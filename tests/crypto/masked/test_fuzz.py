"""A short, deterministic part of ``benchmarks/fuzz_decoders.py`` in every test run."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch

from secfed.crypto.encrypted import messages as opened_messages
from secfed.crypto.masked import graph_messages
from secfed.crypto.messages import ALL, Survivors
from secfed.errors import MalformedMessage
from secfed.wire import frames
from tests.conftest import ROOT


@cache
def _fuzzer() -> ModuleType:
    """The script, by its path: installed packages bring a ``benchmarks`` of their own."""
    spec = importlib.util.spec_from_file_location(
        "secfed_fuzz_decoders", ROOT / "benchmarks" / "fuzz_decoders.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MESSAGES = (*ALL, *graph_messages.ALL, *opened_messages.ALL)
TYPES = (*(kind.__name__ for kind in MESSAGES), "Roster", "frame", "state")


@cache
def _targets() -> dict[str, Any]:
    found: dict[str, Any] = _fuzzer().targets()
    return found


def test_every_decoder_is_fuzzed() -> None:
    assert tuple(_targets()) == TYPES


@pytest.mark.parametrize("name", TYPES)
def test_mutated_messages_raise_our_errors_only(name: str) -> None:
    fuzzer, everything = _fuzzer(), _targets()
    pool = tuple(sample for target in everything.values() for sample in target.samples)
    report = fuzzer.fuzz(everything[name], pool, count=1500, seed=20, measure_every=25)
    for number, data in enumerate(fuzzer.hostile(everything[name])):
        if number % 5 == 0 or data[:10] == data[10:20]:
            fuzzer.try_one(everything[name], data, report, measure=True)
    assert report.failures == []
    assert report.tried > 1500
    assert 24 <= report.accepted < report.tried  # every sample, and not everything


def test_a_run_can_be_repeated() -> None:
    fuzzer, target = _fuzzer(), _targets()["View"]
    first, second = (fuzzer.fuzz(target, target.samples, count=300, seed=3) for _ in range(2))
    assert (first.tried, first.accepted) == (second.tried, second.accepted)


def _raise(_: bytes) -> None:
    raise IndexError("not ours")


def _allocate(data: bytes) -> bytes:
    bytearray(1 << 20)
    return data


@pytest.mark.parametrize(
    ("decode", "encode", "complaint"),
    [
        (_raise, None, "IndexError: not ours"),
        (_allocate, bytes, "allocated"),
        (lambda data: data, lambda data: data + b"!", "encodes differently"),
    ],
    ids=["another error", "a large allocation", "not canonical"],
)
def test_the_fuzzer_notices(decode: Any, encode: Any, complaint: str) -> None:
    fuzzer = _fuzzer()
    target = fuzzer.Target("broken", decode, (b"sample",), encode)
    report = fuzzer.fuzz(target, target.samples, count=3, measure_every=1)
    assert complaint in report.failures[0]


def test_the_command_line_reports_and_exits_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fuzzer().main(["--count", "50", "--type", "Survivors", "--seconds-per-type", "5"]) == 0
    assert "Survivors" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        _fuzzer().main(["--type", "Postcard"])


def test_a_list_is_capped_before_it_is_read() -> None:
    header = Survivors(()).encode()[:10]
    assert len(Survivors.decode(header + struct.pack(">I", 1000) + bytes(4000)).survivors) == 1000
    with pytest.raises(MalformedMessage, match="cap of 1000"):
        Survivors.decode(header + struct.pack(">I", 1001) + bytes(4004))


def _safetensors(tensors: object, data: bytes = b"") -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


def _tensor(shape: list[int], size: int = 0, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 0),
        struct.pack("<Q", 1 << 40) + b"{}",
        _safetensors([]),
        _safetensors({"a": _tensor([0, 1 << 62, 1 << 62])}),
        _safetensors({"a": _tensor([0, 1 << 63])}),
        _safetensors({"a": _tensor([1 << 63, 0])}),
        _safetensors({"a": _tensor([2], 4)}, b"1234"),
        _safetensors({"a": _tensor([1], 4, "F4")}, b"1234"),
        _safetensors({"a": _tensor([1], 4, "FANCY")}, b"1234"),
        _safetensors({"a": _tensor([1], 4)}, b"123"),
        _safetensors({"a": _tensor([1], 4)}, b"12345"),
        _safetensors({"a": _tensor([1], 4), "b": _tensor([1], 4)}, b"1234"),
        _safetensors({"a": _tensor([-1], 4)}, b"1234"),
    ],
)
def test_a_state_with_an_impossible_header(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a safetensors state"):
        frames.decode_state(data)


def test_an_empty_state_and_an_empty_tensor_are_states() -> None:
    assert frames.decode_state(frames.encode_state({})) == {}
    empty = frames.decode_state(frames.encode_state({"w": torch.zeros(0, 3)}))
    assert empty["w"].shape == (0, 3)
