"""Frames: a task, a step or a notice; and states as safetensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secfed.errors import MalformedMessage
from secfed.wire.frames import READY, Notice, Step, Task, decode, decode_state, encode_state, untied
from secfed.wire.layout import state_digest

NAMES = st.text(st.characters(codec="utf-8"), max_size=50)
ROUNDS, INDICES = st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)
FRAMES = st.one_of(
    st.builds(Task, NAMES, ROUNDS, INDICES, NAMES, st.binary(max_size=40)),
    st.builds(Step, ROUNDS, INDICES, ROUNDS, st.binary(max_size=40)),
    st.builds(Notice, st.binary(max_size=40)),
)


@given(frame=FRAMES)
def test_a_frame_survives_the_wire(frame: Task | Step | Notice) -> None:
    encoded = frame.encode()
    again = decode(encoded)
    assert again == frame
    assert again.encode() == encoded
    assert encoded != READY


@given(frame=FRAMES, data=st.data())
def test_a_frame_cut_in_its_header_is_malformed(frame: Task | Step | Notice, data: st.DataObject) -> None:
    payload = frame.state if isinstance(frame, Task) else frame.message
    encoded = frame.encode()
    cut = data.draw(st.integers(0, len(encoded) - len(payload) - 1))
    with pytest.raises(MalformedMessage):
        decode(encoded[:cut])


@pytest.mark.parametrize("kind", [0, 4, 255])
def test_an_unknown_kind_of_frame(kind: int) -> None:
    with pytest.raises(MalformedMessage, match=f"unknown frame kind {kind}"):
        decode(bytes([kind]) + bytes(100))


def test_a_name_in_a_frame_is_capped() -> None:
    with pytest.raises(MalformedMessage, match="cap of 200"):
        decode(Task("x" * 201, 1, 0, "update", b"").encode())


def test_a_step_hands_its_message_on_without_copying_it() -> None:
    encoded = bytearray(Step(1, 0, 0, b"message").encode())
    step = decode(encoded)
    encoded[-1:] = b"E"
    assert isinstance(step, Step)
    assert bytes(step.message) == b"messagE"


def test_states_and_messages_stay_out_of_reprs() -> None:
    for frame in (Task("study", 1, 0, "update", b"SECRET"), Step(1, 0, 0, b"SECRET"), Notice(b"SECRET")):
        assert "SECRET" not in repr(frame)


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_survives_the_wire(dtype: torch.dtype) -> None:
    state = {
        "layer.weight": torch.arange(6).reshape(2, 3).to(dtype),
        "layer.bias": torch.ones(3).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 4).to(dtype),
    }
    again = decode_state(encode_state(state))
    assert set(again) == set(state)
    for name, tensor in state.items():
        assert again[name].dtype == dtype
        assert torch.equal(again[name], tensor)


def test_equal_states_give_equal_bytes_whatever_their_order_and_memory() -> None:
    one = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2)}
    other = {"a": torch.ones(4)[::2], "b": torch.arange(6.0).reshape(3, 2).T.reshape(3, 2).T.contiguous()}
    other["b"] = torch.arange(6.0).reshape(2, 3).clone().T.T
    assert encode_state(one) == encode_state(other)
    assert state_digest(encode_state(one)) == state_digest(encode_state(other))
    one["b"][0, 0] = 1e-30
    assert encode_state(one) != encode_state(other)


def test_a_state_whose_tensors_share_memory_is_encoded_as_one_whose_do_not() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    shared = {
        "a": whole,
        "b": whole,
        "row": whole[1],
        "column": whole[:, 1],
        "none": whole[:0],
        "no": whole[:0],
    }
    apart = {name: tensor.clone() for name, tensor in shared.items()}
    assert encode_state(shared) == encode_state(apart)
    assert torch.equal(decode_state(encode_state(shared))["row"], whole[1])


def test_only_tensors_that_share_memory_are_copied_to_be_encoded() -> None:
    one, other = torch.ones(3), torch.ones(3)
    made = untied({"one": one, "other": other, "again": one})
    assert made["one"].data_ptr() == one.data_ptr()
    assert made["other"].data_ptr() == other.data_ptr()
    assert made["again"].data_ptr() not in (one.data_ptr(), other.data_ptr())
