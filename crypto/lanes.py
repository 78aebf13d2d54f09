"""What the protections know of a vector: runs of equal ring width, and how they lie on the wire.

A lane of ``bits`` <= 32 is computed in uint32, a 64-bit lane in uint64. Because 2^bits divides 2^32,
arithmetic modulo 2^32 followed by keeping the low ``bits`` bits is arithmetic modulo 2^bits: narrow
lanes cost nothing but the packing. On the wire a run is its lanes' low bits, little-endian, packed
without gaps and padded with zero bits to a whole byte: bit b of lane k is bit k * bits + b of the run.

Eight lanes of any width are exactly ``bits`` bytes. That octet is the unit of everything here: a chunk
starts at a multiple of eight lanes, hence at a whole byte, and one octet is put together in a few
64-bit words, column by column over many octets at once. Work space is a fixed 768 KiB at most, however long
the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secfed.crypto.codec import Buffer
from secfed.errors import MalformedMessage, RangeError

# 64 Ki lanes = 256 KiB of uint32: the chunk, its keystream and the float64 workspace stay in the L2 cache.
CHUNK_ELEMENTS = 1 << 16

OCTET = 8  # lanes; a chunk of a run starts at a multiple of this
# Octets packed per step: a chunk. Smaller steps spend their time on calls: a third of all at 1 << 11.
_BLOCK_OCTETS = 1 << 13
_WORD = np.dtype("<u8")
_HALF = np.dtype("<u4")


@dataclass(frozen=True)
class Run:
    """Consecutive lanes of one width: 8..32 bits, or 64."""

    bits: int
    count: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian integer type the lanes are computed in."""
        return _HALF if self.bits <= 32 else _WORD

    @property
    def wire_bytes(self) -> int:
        """Size on the wire."""
        return (self.bits * self.count + 7) // 8

    @property
    def whole(self) -> bool:
        """Whether a lane fills its integer type, so that memory and wire are the same bytes."""
        return self.bits == 8 * self.dtype.itemsize


class VectorSource(Protocol):
    """A vector that can be read once, front to back, as ring integers."""

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """Write the run's next ``len(out)`` lanes to ``out``."""
        ...


@dataclass(frozen=True)
class VectorShape:
    """The runs of a vector and the digest of the layout they come from."""

    runs: tuple[Run, ...]
    digest: bytes

    @property
    def wire_bytes(self) -> int:
        """Size on the wire."""
        return sum(run.wire_bytes for run in self.runs)

    @property
    def elements(self) -> int:
        """Number of lanes."""
        return sum(run.count for run in self.runs)


def pack_into(lanes: NDArray[Any], run: Run, out: bytearray | memoryview, start_lane: int = 0) -> None:
    """Write the low bits of one chunk's lanes, or of all, to their place in the whole run's bytes.

    ``lanes`` is [k] of ``run.dtype``, of which bits above ``run.bits`` are ignored; k and ``start_lane`` are
    multiples of 8, but for a k that ends the run.

    Raises:
        RangeError: the chunk does not lie in the run, or not on octets.
        MalformedMessage: ``out`` is not ``run.wire_bytes`` long.
    """
    _check_size(out, run)
    octets, tail = _check_chunk(run, start_lane, lanes.size)
    lanes = np.ascontiguousarray(lanes, dtype=run.dtype)
    at = start_lane // OCTET * run.bits
    if run.whole:
        np.frombuffer(out, dtype=run.dtype, count=lanes.size, offset=at)[:] = lanes
        return
    wire = np.frombuffer(out, dtype=np.uint8)
    for first in range(0, octets, _BLOCK_OCTETS):
        count = min(_BLOCK_OCTETS, octets - first)
        block = lanes[first * OCTET : (first + count) * OCTET]
        _octets(wire, run.bits, at + first * run.bits, count)[:] = _join(block, run.bits)
    if tail:
        last = np.zeros(OCTET, run.dtype)
        last[:tail] = lanes[octets * OCTET :]
        packed = _join(last, run.bits).tobytes()[: (tail * run.bits + 7) // 8]
        wire[at + octets * run.bits :] = np.frombuffer(packed, dtype=np.uint8)


def unpack_chunk(data: Buffer, run: Run, start_lane: int, count: int) -> NDArray[Any]:
    """One chunk of a run from the whole run's wire bytes; as for :func:`pack_into`.

    Returns:
        [count] uint32 or uint64. A read-only view of ``data`` for 32-bit and 64-bit lanes, so that
        nobody alters a received message by adding to it; a fresh array for other widths.

    Raises:
        RangeError: the chunk does not lie in the run, or not on octets.
        MalformedMessage: ``data`` is not ``run.wire_bytes`` long, or its padding bits are not zero.
    """
    _check_size(data, run)
    octets, tail = _check_chunk(run, start_lane, count)
    at = start_lane // OCTET * run.bits
    if run.whole:
        return np.frombuffer(memoryview(data).toreadonly(), dtype=run.dtype, count=count, offset=at)
    wire = np.frombuffer(data, dtype=np.uint8)
    lanes = np.empty(count, run.dtype)
    for first in range(0, octets, _BLOCK_OCTETS):
        block = min(_BLOCK_OCTETS, octets - first)
        packed = _octets(wire, run.bits, at + first * run.bits, block)
        _split(packed, run.bits, lanes[first * OCTET : (first + block) * OCTET])
    if tail:
        packed = np.zeros(run.bits, dtype=np.uint8)
        rest = wire[at + octets * run.bits :]
        packed[: rest.size] = rest
        last = np.empty(OCTET, run.dtype)
        _split(_octets(packed, run.bits, 0, 1), run.bits, last)
        # A lane has at least 8 bits and padding fewer than 8, so all of it shows in the lanes after the end.
        if last[tail:].any():
            raise MalformedMessage("padding bits after the last lane are not zero")
        lanes[octets * OCTET :] = last[:tail]
    return lanes


def _check_size(data: Buffer, run: Run) -> None:
    size = memoryview(data).nbytes
    if size != run.wire_bytes:
        raise MalformedMessage(f"vector run of {size} bytes, expected {run.wire_bytes}")


def _check_chunk(run: Run, start_lane: int, count: int) -> tuple[int, int]:
    """Whole octets of a chunk, and lanes after them."""
    if start_lane < 0 or start_lane % OCTET or count < 0 or start_lane + count > run.count:
        raise RangeError(f"chunk {start_lane}+{count} does not lie on octets of a run of {run.count} lanes")
    octets, tail = divmod(count, OCTET)
    if tail and start_lane + count != run.count:
        raise RangeError("only the last chunk of a run may end inside an octet")
    return octets, tail


def _octets(wire: NDArray[np.uint8], bits: int, at: int, count: int) -> NDArray[Any]:
    """``count`` octets starting at byte ``at``, each seen as one opaque item of ``bits`` bytes."""
    return wire[at : at + count * bits].view(np.dtype((np.void, bits)))


def _words(bits: int) -> int:
    """64-bit words that hold one octet."""
    return (bits * OCTET + 63) // 64


def _join(lanes: NDArray[Any], bits: int) -> NDArray[Any]:
    """Octets of lanes to octets of wire bytes: [8 n] uint32 to [n] items of ``bits`` bytes."""
    # Two neighbouring lanes are one little-endian word; closing the gap between them gives 2 * bits bits.
    wide = lanes.view(_WORD)
    pairs = wide & ((1 << bits) - 1)
    high = wide >> (32 - bits)
    high &= ((1 << bits) - 1) << bits
    pairs |= high
    pairs = pairs.reshape(-1, 4)
    rows = np.empty((pairs.shape[0], _words(bits)), _WORD)
    started = -1
    for column in range(4):
        word, shift = divmod(2 * bits * column, 64)
        if word > started:
            np.left_shift(pairs[:, column], shift, out=rows[:, word])
            started = word
        else:
            rows[:, word] |= pairs[:, column] << shift
        if shift + 2 * bits > 64:
            np.right_shift(pairs[:, column], 64 - shift, out=rows[:, word + 1])
            started = word + 1
    return _first_bytes(rows, bits)


def _split(packed: NDArray[Any], bits: int, lanes: NDArray[Any]) -> None:
    """Octets of wire bytes to octets of lanes: the inverse of :func:`_join`, into ``lanes``."""
    rows = np.zeros((packed.size, _words(bits)), _WORD)
    _first_bytes(rows, bits)[:] = packed
    wide = lanes.view(_WORD)
    pairs = np.empty((packed.size, 4), _WORD)
    for column in range(4):
        word, shift = divmod(2 * bits * column, 64)
        np.right_shift(rows[:, word], shift, out=pairs[:, column])
        if shift + 2 * bits > 64:
            pairs[:, column] |= rows[:, word + 1] << (64 - shift)
    flat = pairs.reshape(-1)
    np.left_shift(flat, 32 - bits, out=wide)
    wide &= ((1 << bits) - 1) << 32
    flat &= (1 << bits) - 1
    wide |= flat


def _first_bytes(rows: NDArray[Any], bits: int) -> NDArray[Any]:
    """The first ``bits`` bytes of every row of words, each as one opaque item, without a copy."""
    octet = np.dtype({"names": ["wire"], "formats": [(np.void, bits)], "itemsize": 8 * rows.shape[1]})
    return rows.view(octet)["wire"].reshape(-1)
