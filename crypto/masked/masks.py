"""Masks on a vector: derive the streams, add or subtract them chunk by chunk, in place.

Mask of one stream = ChaCha20 keystream under HKDF(stream secret, specification, layout, broadcast,
run). Two sites that were shown different broadcasts or layouts derive different streams for the same
pair, so their masks do not cancel and the sum is noise: this defeats a server that isolates a site by
sending it another model (Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in Federated
Learning via Model Inconsistency", CCS 2022).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels, lanes
from secfed.crypto.codec import digest
from secfed.crypto.keystream import Keystream, Workspace, derive
from secfed.crypto.lanes import Run, VectorShape, VectorSource
from secfed.errors import MalformedMessage

# 128 Ki lanes: large enough for two threads to take turns at the interpreter lock without waiting much.
_CHUNK_ELEMENTS = 2 * lanes.CHUNK_ELEMENTS


@dataclass(frozen=True)
class MaskContext:
    """What every stream of one attempt is bound to."""

    spec_digest: bytes
    broadcast_digest: bytes
    shape: VectorShape


@dataclass(frozen=True)
class MaskStream:
    """One mask over the whole vector: a secret, the label of its kind, and a sign."""

    secret: bytes = field(repr=False)
    label: bytes
    sign: int  # +1: add, -1: subtract

    def keystream(self, context: MaskContext, run_index: int) -> Keystream:
        """The stream over one run."""
        run = context.shape.runs[run_index]
        vector_name = f"run {run_index}: {run.count} lanes of {run.bits} bits".encode()
        return Keystream(
            derive(
                self.secret,
                self.label,
                context.spec_digest,
                context.shape.digest,
                context.broadcast_digest,
                vector_name,
            )
        )


def self_mask(seed: bytes, sign: int) -> MaskStream:
    """The mask that only its own site can make, from the 32-byte self-mask seed."""
    return MaskStream(seed, labels.DERIVE_SELF_MASK, sign)


def pair_mask(seed_from_lower: bytes, seed_from_higher: bytes, sign: int) -> MaskStream:
    """The mask two sites share: both contributed 32 bytes, so one bad generator is not enough."""
    return MaskStream(seed_from_lower + seed_from_higher, labels.DERIVE_PAIR_MASK, sign)


def processors() -> int:
    """Threads that may work at a time: ``SECFED_THREADS``, or the processors that this process may use."""
    asked = os.environ.get("SECFED_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Share:
    """Some of the streams over one run: what one thread adds up."""

    def __init__(
        self, streams: Sequence[tuple[Keystream, int]], dtype: np.dtype[Any], chunk_elements: int
    ) -> None:
        self._streams, self._dtype = streams, dtype
        self._workspace = Workspace(chunk_elements * dtype.itemsize)
        self._sum = np.empty(0, dtype)

    def add_to(self, chunk: NDArray[Any]) -> None:
        """Add or subtract the next ``len(chunk)`` words of every stream, modulo the lane's word size."""
        for stream, sign in self._streams:
            words = self._workspace.words(stream, chunk.size, self._dtype)
            (np.add if sign > 0 else np.subtract)(chunk, words, out=chunk)

    def sum(self, count: int) -> NDArray[Any]:
        """The sum of the next ``count`` words of every stream, valid until the next call."""
        if self._sum.size < count:
            self._sum = np.empty(count, self._dtype)
        self._sum[:count] = 0
        self.add_to(self._sum[:count])
        return self._sum[:count]


class Masker:
    """Applies a set of streams to one run, chunk after chunk, in ``threads`` threads.

    Each thread reads streams of its own from front to back, so that no stream is read twice, and the order of
    a sum modulo the word size does not matter.
    """

    def __init__(
        self,
        streams: Sequence[MaskStream],
        context: MaskContext,
        run_index: int,
        chunk_elements: int,
        threads: int = 1,
    ) -> None:
        run = context.shape.runs[run_index]
        made = [(stream.keystream(context, run_index), stream.sign) for stream in streams]
        # A short run is masked sooner than a thread starts.
        shares = max(1, min(threads, len(made))) if run.count > 4 * chunk_elements else 1
        self._own, *self._others = (
            _Share(made[first::shares], run.dtype, chunk_elements) for first in range(shares)
        )
        self._pool = ThreadPoolExecutor(shares - 1) if shares > 1 else None

    def apply(self, chunk: NDArray[Any]) -> None:
        """Add or subtract the next ``len(chunk)`` words of every stream."""
        sums = [self._pool.submit(share.sum, chunk.size) for share in self._others] if self._pool else []
        self._own.add_to(chunk)
        for words in sums:
            np.add(chunk, words.result(), out=chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown()


class PieceHasher:
    """SHA-256 of a vector, piece by piece, in helper threads: hashing runs beside the masking.

    The digest is SHA-256 over the SHA-256 digests of the vector's 1 MiB pieces (the last may be
    shorter), under a label and with the vector's size. ``hashlib`` lets go of the interpreter lock while
    it hashes, so a second core does this work where there is one.
    """

    PIECE_BYTES = 1 << 20

    def __init__(self, vector: memoryview, *, threads: int) -> None:
        self._vector = vector
        # A vector of a few pieces is hashed sooner than a thread starts.
        self._pool = ThreadPoolExecutor(threads) if len(vector) > 4 * self.PIECE_BYTES else None
        self._pieces: list[Future[bytes] | bytes] = []
        self._at = 0

    def ready(self, end: int) -> None:
        """Bytes up to ``end`` are final."""
        last = end == len(self._vector)
        while self._at < end and (last or end - self._at >= self.PIECE_BYTES):
            piece = self._vector[self._at : min(self._at + self.PIECE_BYTES, end)]
            self._pieces.append(self._pool.submit(_sha256, piece) if self._pool else _sha256(piece))
            self._at += len(piece)

    def digest(self) -> bytes:
        """The digest, once everything is ready."""
        size = len(self._vector).to_bytes(8, "big")
        pieces = [piece if isinstance(piece, bytes) else piece.result() for piece in self._pieces]
        return digest(labels.VECTOR_DIGEST, size, *pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown()


def _sha256(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def vector_digest(vector: memoryview) -> bytes:
    """Digest of a vector's wire bytes (see :class:`PieceHasher`): 32 bytes."""
    with PieceHasher(vector, threads=2) as hasher:
        hasher.ready(len(vector))
        return hasher.digest()


def write_masked(
    source: VectorSource, streams: Sequence[MaskStream], context: MaskContext, out: memoryview
) -> bytes:
    """Quantise, mask and lay out a whole vector in its outgoing buffer; return its digest.

    Each chunk is quantised and masked by every stream while it is in the cache; nothing but ``out`` is
    as large as the vector.
    """
    # Quantising and masking let go of the interpreter lock. A short vector needs no second thread.
    ahead = ThreadPoolExecutor(1) if context.shape.elements > 4 * _CHUNK_ELEMENTS else None
    with PieceHasher(out, threads=1) as hasher, ahead or nullcontext():
        at = 0
        for index, run in enumerate(context.shape.runs):
            room = out[at : at + run.wire_bytes]
            # One processor is left to quantising and hashing.
            with Masker(streams, context, index, _CHUNK_ELEMENTS, processors() - 1) as masker:
                for start, chunk in _filled(source, run, room, ahead):
                    masker.apply(chunk)
                    if run.bits < 32:
                        lanes.pack_into(chunk, run, room, start)
                    finished = start + chunk.size == run.count
                    hasher.ready(at + (run.wire_bytes if finished else (start + chunk.size) * run.bits // 8))
            at += run.wire_bytes
        return hasher.digest()


def _filled(
    source: VectorSource, run: Run, room: memoryview, ahead: ThreadPoolExecutor | None
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Every chunk of a run with its first lane, quantised, in order; in ``ahead`` one before it is needed."""
    begun: deque[tuple[int, NDArray[Any], Future[None]]] = deque()
    for start, chunk in _chunks(run, room):
        if ahead is None:
            source.fill(run, chunk)
            yield start, chunk
            continue
        begun.append((start, chunk, ahead.submit(source.fill, run, chunk)))
        if len(begun) > 1:
            yield _finished(*begun.popleft())
    if begun:
        yield _finished(*begun.popleft())


def _finished(start: int, chunk: NDArray[Any], filled: Future[None]) -> tuple[int, NDArray[Any]]:
    filled.result()
    return start, chunk


def _chunks(run: Run, room: memoryview) -> Iterator[tuple[int, NDArray[Any]]]:
    """Where each chunk of a run is computed: in the outgoing buffer, or in two buffers in turn."""
    whole = lanes.in_place(room, run)
    scratch = [np.empty(min(run.count, _CHUNK_ELEMENTS), run.dtype) for _ in range(3)]
    for turn, start in enumerate(range(0, run.count, _CHUNK_ELEMENTS)):
        size = min(_CHUNK_ELEMENTS, run.count - start)
        yield start, scratch[turn % 3][:size] if whole is None else whole[start : start + size]


class Accumulator:
    """The running sum of masked vectors, and later of nothing but their summands."""

    def __init__(self, shape: VectorShape) -> None:
        self._shape = shape
        self.runs = tuple(np.zeros(run.count, run.dtype) for run in shape.runs)

    def add(self, vector: memoryview) -> None:
        """Add one masked vector, chunk by chunk, or nothing of one that is malformed."""
        _check_size(vector, self._shape)
        at = 0
        for run, total in zip(self._shape.runs, self.runs, strict=True):
            data = vector[at : at + run.wire_bytes]
            at += run.wire_bytes
            for start in range(0, run.count, lanes.CHUNK_ELEMENTS):
                size = min(lanes.CHUNK_ELEMENTS, run.count - start)
                part = total[start : start + size]
                np.add(part, lanes.unpack_chunk(data, run, start, size), out=part)

    def apply(self, streams: Sequence[MaskStream], context: MaskContext) -> None:
        """Add or subtract whole streams."""
        for index, total in enumerate(self.runs):
            with Masker(streams, context, index, _CHUNK_ELEMENTS, processors()) as masker:
                for start in range(0, total.size, _CHUNK_ELEMENTS):
                    masker.apply(total[start : start + _CHUNK_ELEMENTS])

    def reduced(self) -> tuple[NDArray[Any], ...]:
        """The ring integers, reduced to their lane width."""
        for run, total in zip(self._shape.runs, self.runs, strict=True):
            if run.bits < 32:
                np.bitwise_and(total, np.uint32((1 << run.bits) - 1), out=total)
        return self.runs


def _check_size(vector: memoryview, shape: VectorShape) -> None:
    if len(vector) != shape.wire_bytes:
        raise MalformedMessage(f"vector of {len(vector)} bytes, expected {shape.wire_bytes}")
    end = 0
    for run in shape.runs:
        end += run.wire_bytes
        used = run.bits * run.count % 8  # bits used in the last byte; 0 means all
        if used and vector[end - 1] >> used:
            raise MalformedMessage("padding bits after a run of lanes are not zero")
