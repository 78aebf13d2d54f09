"""What travels between aggregator and site: a task, one step of an attempt, or a notice.

A task carries the broadcast and starts local work; a step carries one message of the protection; a
notice carries a message outside any attempt (study keys and sums of encrypted protection). The reply to a
task is :data:`READY`; the reply to a step or notice is the protection's own message.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.crypto.identity import MAX_NAME_BYTES
from secfed.errors import MalformedMessage
from secfed.wire.layout import State

READY = b"ready"
_TASK, _STEP, _NOTICE = 1, 2, 3


@dataclass(frozen=True)
class Task:
    """Do the local work of one exchange, starting from this state (safetensors bytes)."""

    study: str
    round: int
    exchange_index: int
    exchange: str
    state: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """Header, then the state."""
        writer = Writer().uint(_TASK, 1).text(self.study).uint(self.round, 4)
        return writer.uint(self.exchange_index, 2).text(self.exchange).done() + bytes(self.state)


@dataclass(frozen=True)
class Step:
    """One message of one attempt."""

    round: int
    exchange_index: int
    attempt: int
    message: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """Header, then the message."""
        writer = Writer().uint(_STEP, 1).uint(self.round, 4).uint(self.exchange_index, 2)
        return writer.uint(self.attempt, 4).done() + bytes(self.message)


@dataclass(frozen=True)
class Notice:
    """One message outside any attempt."""

    message: Buffer = field(repr=False)

    def encode(self) -> bytes:
        """Header, then the message."""
        return Writer().uint(_NOTICE, 1).done() + bytes(self.message)


def decode(data: Buffer) -> Task | Step | Notice:
    """Read a frame; state and message are views into ``data``.

    Raises:
        MalformedMessage: not a frame.
    """
    reader = Reader(data)
    kind = reader.uint(1)
    if kind == _TASK:
        study, number = reader.text(MAX_NAME_BYTES), reader.uint(4)
        return Task(study, number, reader.uint(2), reader.text(MAX_NAME_BYTES), reader.rest())
    if kind == _STEP:
        return Step(reader.uint(4), reader.uint(2), reader.uint(4), reader.rest())
    if kind == _NOTICE:
        return Notice(reader.rest())
    raise MalformedMessage(f"unknown frame kind {kind}")


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
