"""What travels between aggregator and site: a task, one step of an attempt, or a notice.

A task carries the broadcast and starts local work; a step carries one message of the protection; a
notice carries a message outside any attempt (study keys and sums of encrypted protection). The reply to a
task is :data:`READY`; the reply to a step or notice is the protection's own message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from secfed.crypto.codec import Buffer, Reader
from secfed.crypto.message_base import U16, U32, Name
from secfed.crypto.record import Record, rest
from secfed.errors import MalformedMessage
from secfed.wire.layout import State

READY = b"ready"

_Rest = Annotated[Buffer, rest()]


@dataclass(frozen=True)
class Task(Record):
    """Do the local work of one exchange, starting from this state (safetensors bytes)."""

    HEADER: ClassVar[bytes] = b"\x01"
    study: Name
    round: U32
    exchange_index: U16
    exchange: Name
    state: _Rest = field(repr=False)


@dataclass(frozen=True)
class Step(Record):
    """One message of one attempt."""

    HEADER: ClassVar[bytes] = b"\x02"
    round: U32
    exchange_index: U16
    attempt: U32
    message: _Rest = field(repr=False)


@dataclass(frozen=True)
class Notice(Record):
    """One message outside any attempt."""

    HEADER: ClassVar[bytes] = b"\x03"
    message: _Rest = field(repr=False)


def decode(data: Buffer) -> Task | Step | Notice:
    """Read a frame; state and message are views into ``data``.

    Raises:
        MalformedMessage: not a frame.
    """
    kind = Reader(data).fixed(1)
    for frame in (Task, Step, Notice):
        if kind == frame.HEADER:
            return frame.decode(data)
    raise MalformedMessage(f"unknown frame kind {kind[0]}")


def encode_state(state: State) -> bytes:
    """A state as safetensors bytes; equal states give equal bytes."""
    return save(untied(dict(sorted(state.items()))))


def untied(state: State) -> dict[str, torch.Tensor]:
    """A state as safetensors takes it: contiguous, on the CPU, no two tensors in one memory.

    Layers may share a tensor, and a state its parts; only those are copied.
    """
    taken: set[int] = set()
    made = {}
    for name, tensor in state.items():
        value = tensor.detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        made[name] = value.clone() if memory in taken else value
        taken.add(memory)
    return made


def decode_state(data: Buffer) -> dict[str, torch.Tensor]:
    """A state from safetensors bytes.

    Raises:
        MalformedMessage: not safetensors.
    """
    try:
        return load(bytes(data))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
        # The last two come out of torch: a header may declare an empty tensor with absurd other sizes.
        raise MalformedMessage("the broadcast is not a safetensors state") from None
