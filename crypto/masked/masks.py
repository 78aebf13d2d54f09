"""Masks on a vector: derive the streams, add or subtract them part by part, in place.

Mask of one stream = keystream of the study's cipher under HKDF(stream secret, specification, layout,
broadcast, run). Two sites that were shown different broadcasts or layouts derive different streams for the
same pair, so their masks do not cancel and the sum is noise: this defeats a server that isolates a site by
sending it another model (Pasquini, Francati, Ateniese, "Eluding Secure Aggregation in Federated
Learning via Model Inconsistency", CCS 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels, lanes
from secfed.crypto.codec import digest
from secfed.crypto.keystream import SEGMENT_BYTES, StreamCipher, StreamKey, Workspace, derive
from secfed.crypto.lanes import Run, VectorShape, VectorSource
from secfed.crypto.masked.threads import in_threads
from secfed.errors import MalformedMessage

_AES_LABELS: Final = {
    labels.DERIVE_PAIR_MASK: labels.DERIVE_PAIR_MASK_AES,
    labels.DERIVE_SELF_MASK: labels.DERIVE_SELF_MASK_AES,
    labels.DERIVE_CLOSING: labels.DERIVE_CLOSING_AES,
}


@dataclass(frozen=True)
class MaskContext:
    """What every stream of one attempt is bound to."""

    spec_digest: bytes
    broadcast_digest: bytes
    shape: VectorShape
    cipher: StreamCipher = StreamCipher.CHACHA20


@dataclass(frozen=True)
class MaskStream:
    """One mask over the whole vector: a secret, the label of its kind, and a sign."""

    secret: bytes = field(repr=False)
    label: bytes
    sign: int  # +1: add, -1: subtract

    def key(self, context: MaskContext, run_index: int) -> StreamKey:
        """The key of the stream over one run."""
        run = context.shape.runs[run_index]
        vector_name = f"run {run_index}: {run.count} lanes of {run.bits} bits".encode()
        label = self.label if context.cipher is StreamCipher.CHACHA20 else _AES_LABELS[self.label]
        return StreamKey(
            derive(
                self.secret,
                label,
                context.spec_digest,
                context.shape.digest,
                context.broadcast_digest,
                vector_name,
            ),
            context.cipher,
        )


def self_mask(seed: bytes, sign: int) -> MaskStream:
    """The mask that only its own site can make, from the 32-byte self-mask seed."""
    return MaskStream(seed, labels.DERIVE_SELF_MASK, sign)


def pair_mask(seed_from_lower: bytes, seed_from_higher: bytes, sign: int) -> MaskStream:
    """The mask two sites share: both contributed 32 bytes, so one bad generator is not enough."""
    return MaskStream(seed_from_lower + seed_from_higher, labels.DERIVE_PAIR_MASK, sign)


def part_lanes(run: Run) -> int:
    """Lanes of one part: those under one segment of a stream."""
    return SEGMENT_BYTES // run.dtype.itemsize


def parts_of(run: Run, lanes_of_run: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """The parts of a run, each with its number."""
    size = part_lanes(run)
    return ((at // size, lanes_of_run[at : at + size]) for at in range(0, run.count, size))


def count_parts(run: Run) -> int:
    """How many parts a run has."""
    return -(-run.count // part_lanes(run))


class Masker:
    """Applies a set of streams to the parts of one run, in any order; several threads may share it."""

    def __init__(self, streams: Sequence[MaskStream], context: MaskContext, run_index: int) -> None:
        self._dtype = context.shape.runs[run_index].dtype
        self._keys = [(stream.key(context, run_index), stream.sign) for stream in streams]
        self._spare: list[Workspace] = []  # of threads that are done with them

    def apply(self, index: int, part: NDArray[Any]) -> None:
        """Add or subtract every stream's words for the part of this number; once for each part."""
        try:
            workspace = self._spare.pop()  # without a look first: another thread may take the last one
        except IndexError:
            workspace = Workspace(lanes.CHUNK_ELEMENTS * self._dtype.itemsize)
        streams = [(key.segment(index), sign) for key, sign in self._keys]
        for start in range(0, part.size, lanes.CHUNK_ELEMENTS):
            chunk = part[start : start + lanes.CHUNK_ELEMENTS]
            for stream, sign in streams:
                words = workspace.words(stream, chunk.size, self._dtype)
                (np.add if sign > 0 else np.subtract)(chunk, words, out=chunk)
        self._spare.append(workspace)


def mask_run(masker: Masker, run: Run, lanes_of_run: NDArray[Any]) -> None:
    """Apply the streams to all parts of a run, in place."""
    in_threads(parts_of(run, lanes_of_run), lambda part: masker.apply(*part), at_most=count_parts(run))


class PieceHasher:
    """SHA-256 of a vector, piece by piece, each as soon as all of it is written.

    The digest is SHA-256 over the SHA-256 digests of the vector's 1 MiB pieces (the last may be
    shorter), under a label and with the vector's size. The thread that writes the last of a piece hashes it,
    so that every processor hashes, and most of a piece is still in its cache.
    """

    PIECE_BYTES = 1 << 20

    def __init__(self, vector: memoryview) -> None:
        self._vector = vector
        self._pieces = [vector[at : at + self.PIECE_BYTES] for at in range(0, len(vector), self.PIECE_BYTES)]
        self._missing = [len(piece) for piece in self._pieces]
        self._digests = [b""] * len(self._pieces)
        self._counting = Lock()

    def written(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` are final; each is said to be so once."""
        for index in range(start // self.PIECE_BYTES, -(-end // self.PIECE_BYTES)):
            at = index * self.PIECE_BYTES
            with self._counting:
                self._missing[index] -= min(end, at + self.PIECE_BYTES) - max(start, at)
                whole = not self._missing[index]
            if whole:
                self._digests[index] = hashlib.sha256(self._pieces[index]).digest()

    def digest(self) -> bytes:
        """The digest, once everything is written."""
        size, pieces = len(self._vector).to_bytes(8, "big"), self._digests
        return digest(labels.VECTOR_DIGEST, size, *pieces)


def vector_digest(vector: memoryview) -> bytes:
    """Digest of a vector's wire bytes (see :class:`PieceHasher`): 32 bytes."""
    hasher, size = PieceHasher(vector), PieceHasher.PIECE_BYTES
    pieces = range(0, len(vector), size)
    in_threads(pieces, lambda at: hasher.written(at, min(at + size, len(vector))), at_most=len(pieces))
    return hasher.digest()


def write_masked(
    source: VectorSource, streams: Sequence[MaskStream], context: MaskContext, out: memoryview
) -> bytes:
    """Quantise, mask and lay out a whole vector in its outgoing buffer; return its digest.

    Each part is quantised, masked by every stream, written to ``out`` and hashed by one thread; nothing but
    ``out`` is as large as the vector. ``source`` is read by one thread at a time, into memory that is warm:
    the fresh pages of ``out`` are first touched by all threads.
    """
    hasher, at = PieceHasher(out), 0
    for index, run in enumerate(context.shape.runs):
        _write_run(source, run, Masker(streams, context, index), out[at : at + run.wire_bytes], hasher, at)
        at += run.wire_bytes
    return hasher.digest()


def _write_run(
    source: VectorSource, run: Run, masker: Masker, room: memoryview, hasher: PieceHasher, at: int
) -> None:
    size = part_lanes(run)
    spare: list[NDArray[Any]] = []  # room for parts, of threads that are done with it

    def filled() -> Iterator[tuple[int, NDArray[Any]]]:
        for start in range(0, run.count, size):
            count = min(size, run.count - start)
            part = (spare.pop() if spare else np.empty(min(size, run.count), run.dtype))[:count]
            for first in range(0, count, lanes.CHUNK_ELEMENTS):
                source.fill(run, part[first : first + lanes.CHUNK_ELEMENTS])
            yield start, part

    def finish(filled_part: tuple[int, NDArray[Any]]) -> None:
        start, part = filled_part
        masker.apply(start // size, part)
        lanes.pack_into(part, run, room, start)
        spare.append(part)
        end = start + part.size
        last = run.wire_bytes if end == run.count else end * run.bits // 8
        hasher.written(at + start * run.bits // 8, at + last)

    in_threads(filled(), finish, at_most=count_parts(run))


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
                part = total[start : start + lanes.CHUNK_ELEMENTS]
                np.add(part, lanes.unpack_chunk(data, run, start, part.size), out=part)

    def apply(self, streams: Sequence[MaskStream], context: MaskContext) -> None:
        """Add or subtract whole streams."""
        for index, (run, total) in enumerate(zip(self._shape.runs, self.runs, strict=True)):
            mask_run(Masker(streams, context, index), run, total)

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
