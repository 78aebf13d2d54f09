"""Lanes to slots and back, and ciphertext words to bytes and back: numpy only. docs/protocol.md, 12.2 f.

Narrow lanes share a slot in *balanced digits*, signed numbers times 2^(bits * j) modulo 2^slot_bits: sums of
slots are sums of lanes within their headroom, and the decoder need not know how many sites took part. A wider
lane is cut into limbs. A word of ``bits`` bits takes so many on the wire: 64 words are ``bits`` words of 64
bits, taken from 64 equal blocks, so that every step works on long contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.crypto.encrypted.bfv import FRAME_CIPHERTEXTS, Parameters
from secfed.crypto.lanes import Run, VectorSource
from secfed.errors import MalformedMessage

_CHUNK_LANES = 1 << 14  # as 64-bit numbers, with every intermediate, they stay in the second-level cache

Words = NDArray[np.uint64]
Slots = NDArray[Any]  # uint64 coefficients, or float64 under CKKS


def slot_frames(source: VectorSource, parameters: Parameters) -> Iterator[Slots]:
    """Read a vector once: [ciphertexts, slots per ciphertext], one per frame; unused slots are zero."""
    width = parameters.ring.slots_per_ciphertext
    dtype = "<u8" if parameters.ring.scheme == "bfv" else "<f8"
    frame, at = np.zeros(FRAME_CIPHERTEXTS * width, dtype), 0
    for slots in _placed(source, parameters):
        while slots.size:
            part = slots[: frame.size - at]
            frame[at : at + part.size] = part
            at, slots = at + part.size, slots[part.size :]
            if at == frame.size:
                yield frame.reshape(-1, width)
                frame, at = np.zeros_like(frame), 0  # the full one may still be on its way to a worker
    if at:
        yield frame[: -(-at // width) * width].reshape(-1, width)


def lanes_from(frames: Iterable[Slots], parameters: Parameters) -> tuple[NDArray[Any], ...]:
    """Turn summed slots back into ring integers: one array per run, reduced to the lane's width.

    ``MalformedMessage``: there are more or fewer frames than the runs fill.
    """
    frames = iter(frames)
    left: Slots = np.empty(0)

    def take(count: int) -> Slots:
        """Exactly so many slots, across frames."""
        nonlocal left
        parts = []
        while count:
            if not left.size:
                frame = next(frames, None)
                if frame is None:
                    raise MalformedMessage("an encrypted sum has fewer frames than its parameters")
                left = frame.reshape(-1)
            part, left = left[:count], left[count:]
            parts.append(part)
            count -= part.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    sums = []
    for run in parameters.runs:
        out = np.empty(run.count, run.dtype)
        share = parameters.lanes_per_slot(run)
        per_lane = 1 if share else parameters.limbs(run)
        step = _whole_slots(share)
        for start in range(0, run.count, step):
            size = min(step, run.count - start)
            slots = take(-(-size // (share or 1)) * per_lane)
            _unplace(slots, out[start : start + size], run, parameters)
        sums.append(out)
    if next(frames, None) is not None:
        raise MalformedMessage("an encrypted sum has more frames than its parameters")
    return tuple(sums)


def pack_words(words: Words, bits: int) -> bytes:
    """``bits``-bit words without gaps: [k] uint64, k a multiple of 64, to k * bits / 8 bytes."""
    blocks = words.reshape(64, -1)
    out = np.zeros((bits, blocks.shape[1]), "<u8")
    for index in range(64):
        row, shift = divmod(index * bits, 64)
        out[row] |= blocks[index] << np.uint64(shift)
        if shift + bits > 64:
            out[row + 1] |= blocks[index] >> np.uint64(64 - shift)
    return out.tobytes()


def unpack_words(data: memoryview, bits: int) -> Words:
    """The inverse of :func:`pack_words`: [k] uint64, every word below 2^bits."""
    rows = np.frombuffer(data, "<u8").reshape(bits, -1)
    out = np.empty((64, rows.shape[1]), np.uint64)
    for index in range(64):
        row, shift = divmod(index * bits, 64)
        np.right_shift(rows[row], np.uint64(shift), out=out[index])
        if shift + bits > 64:
            out[index] |= rows[row + 1] << np.uint64(64 - shift)
    out &= _mask(bits)
    return out.reshape(-1)


def _placed(source: VectorSource, parameters: Parameters) -> Iterator[Slots]:
    """The slots of a vector, in pieces of about a chunk."""
    for run in parameters.runs:
        step = _whole_slots(parameters.lanes_per_slot(run))
        for start in range(0, run.count, step):
            lanes = np.empty(min(step, run.count - start), run.dtype)
            source.fill(run, lanes)
            yield _place(lanes, run, parameters)


def _place(lanes: NDArray[Any], run: Run, parameters: Parameters) -> Slots:
    """Slots of consecutive lanes; a last slot that is not full is filled up with zero lanes."""
    signed = _signed(lanes.astype(np.uint64), run.bits)
    digits = signed.view(np.uint64)
    mask = _mask(parameters.slot_bits)
    share = parameters.lanes_per_slot(run)
    real = parameters.ring.scheme == "ckks"  # normalised, so that one scale suits every width
    if share == 0:
        limb_bits, limbs = parameters.limb_bits, parameters.limbs(run)
        spread = np.empty((lanes.size, limbs), np.uint64)
        for limb in range(limbs):
            np.right_shift(digits, np.uint64(limb * limb_bits), out=spread[:, limb])
        spread[:, :-1] &= _mask(limb_bits)
        return np.ldexp(spread, -parameters.slot_bits).reshape(-1) if real else spread.reshape(-1)
    if real:
        return np.ldexp(signed, 1 - run.bits)
    if digits.size % share:
        digits = np.concatenate([digits, np.zeros(-digits.size % share, np.uint64)])
    columns = digits.reshape(-1, share)
    slots = columns[:, 0] & mask
    for column in range(1, share):
        slots += columns[:, column] << np.uint64(column * run.bits)
    slots &= mask
    return slots


def _unplace(slots: Slots, out: NDArray[Any], run: Run, parameters: Parameters) -> None:
    """Lanes of consecutive summed slots, written to ``out``."""
    share = parameters.lanes_per_slot(run)
    if parameters.ring.scheme == "ckks":
        slots = np.rint(np.ldexp(slots, run.bits - 1 if share else parameters.slot_bits))
        # The approximation may step over a lane's range: hold it there.
        top = np.nextafter(2.0 ** (run.bits - 1), 0)
        slots = np.clip(slots, -top, top).astype(np.int64).view(np.uint64)
        if share:
            np.copyto(out, slots & _mask(run.bits), casting="unsafe")
            return
    if share == 0:
        spread = slots.reshape(out.size, -1)
        out[:] = 0
        for limb in range(spread.shape[1]):
            out += spread[:, limb] << np.uint64(limb * parameters.limb_bits)
        return
    rest = slots.copy()
    for column in range(share):
        lanes = out[column::share]
        digit = _signed(rest, run.bits)
        np.copyto(lanes, (rest & _mask(run.bits))[: lanes.size], casting="unsafe")
        # Take the digit off, borrow included, and bring the next one down.
        rest -= digit.view(np.uint64)
        rest &= _mask(parameters.slot_bits)
        rest >>= np.uint64(run.bits)


def _whole_slots(share: int) -> int:
    """Lanes to take at a time: about a chunk, and no slot in two pieces."""
    share = max(share, 1)
    return _CHUNK_LANES // share * share


def _signed(lanes: Words, bits: int) -> NDArray[np.int64]:
    """The low ``bits`` bits as signed numbers."""
    up = np.uint64(64 - bits)
    return (lanes << up).view(np.int64) >> np.int64(64 - bits)


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)
