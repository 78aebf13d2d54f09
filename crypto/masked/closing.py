"""Closed sums: vectors under one more keystream, which sites can take off and the aggregator cannot.

    y_i = lanes_i ‖ tags_i  +  masks of the attempt  +  K_i        what site i uploads
    C   = sum over V of (lanes_i ‖ tags_i)  +  sum over V of K_i   what the aggregator unmasks, and relays
    C - sum over V of K_i                                          what sites read, once the tags fit

K_i is a stream like any mask, under a seed that follows from the study's group key, the specification, the
advertised set and the site. One stream per site: a common one times an even number of survivors would show
the low bit of every lane. The advertised set holds fresh keys of every member, so that a site whose memory
was rolled back draws another stream even for the same specification.

The tags are twelve 64-bit lanes behind the others, so that they are masked, summed and closed with them and
no single site's tags are ever visible. tag_j is a linear function of the lanes as signed integers:

    tag_j = sum over rows of s_j[row] * (sum over columns of c_j[column] * lane[row, column])   mod 2^64

with rows of 1024 lanes, and rows of one lane where lanes have 64 bits. Coefficients are 11 bits of a secret
stream. The inner sums stay below 2^53, so that float64 holds them exactly in whatever order they are added.

Source: masks as in :mod:`secfed.crypto.masked.masks`; Agrawal, Boneh, "Homomorphic MACs: MAC-based integrity
for network coding", ACNS 2009, with the coefficient of every survivor fixed at 1; K_i holds the pads.

Security: for whoever has no group key, a total other than the survivors' sum passes one tag with probability
2^-10 at most, all twelve with 2^-120 (docs/protocol.md 13.4). In lanes of 64 bits that holds for totals in
range only, so whoever opens a sum must check the range, too (``Layout.decode``). Every site has the key:
whoever holds it and sees an *unmasked* vector can read that one, and can make tags for anything. Masks are
what protects a site from the others.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.keystream import Keystream, StreamCipher, Workspace, derive
from secfed.crypto.lanes import Run, VectorShape, VectorSource
from secfed.crypto.masked.masks import (
    Accumulator,
    MaskContext,
    Masker,
    MaskStream,
    count_parts,
    parts_of,
)
from secfed.crypto.masked.threads import in_threads
from secfed.crypto.refusals import Refusal
from secfed.errors import RangeError

GROUP_KEY_BYTES: Final = 32
TAGS: Final = 12
TAG_RUN: Final = Run(64, TAGS)

_COLUMNS: Final = 1 << 10
# Small products, which the library for matrices computes in the calling thread: the others are busy.
_BATCH_ROWS: Final = 1 << 4
_ROOM_ROWS: Final = 1 << 6  # rows as float64 at a time: 512 KiB, which stays in the cache
_COEFFICIENT: Final = np.dtype("<u2")
_COEFFICIENT_MASK: Final = (1 << 11) - 1  # 2^31 * 2^11 * 2^10 < 2^53: exact in float64


def closed_shape(shape: VectorShape) -> VectorShape:
    """The shape of what is uploaded: the lanes, then the tags."""
    return VectorShape((*shape.runs, TAG_RUN), shape.digest)


def group_key_check(group_key: bytes) -> bytes:
    """What may be known of a group key, to tell it from others: 32 bytes."""
    return digest(labels.GROUP_KEY_CHECK, group_key)


@dataclass(frozen=True)
class Closing:
    """The group key, for one attempt."""

    group_key: bytes = field(repr=False)
    spec_digest: bytes
    adverts_digest: bytes
    cipher: StreamCipher = StreamCipher.CHACHA20

    def stream(self, site: str, sign: int) -> MaskStream:
        """The stream of one site over its whole closed vector."""
        context = self.spec_digest, self.adverts_digest, site.encode()
        return MaskStream(
            derive(self.group_key, labels.DERIVE_CLOSING_SEED, *context), labels.DERIVE_CLOSING, sign
        )

    def tags(self) -> VectorTags:
        """An empty vector's tags."""
        context = self.spec_digest, self.adverts_digest
        return VectorTags(Keystream(derive(self.group_key, labels.DERIVE_CLOSING_TAGS, *context)))

    def tagged(self, source: VectorSource, shape: VectorShape) -> VectorSource:
        """The same lanes, of this shape, then their tags."""
        return _TaggedSource(source, shape.elements, self.tags())

    def opened(
        self, closed: Buffer, survivors: Sequence[str], broadcast_digest: bytes, shape: VectorShape
    ) -> tuple[NDArray[Any], ...]:
        """The survivors' sum from a closed one: one array of ring integers per run of ``shape``.

        Security: the caller refuses what is out of range, or the tags prove less than is said above.

        Raises:
            MalformedMessage: its size or its padding is wrong.
            InconsistentView: refusal 45.
        """
        whole = closed_shape(shape)
        total = Accumulator(whole)
        total.add(memoryview(closed).cast("B"))
        context = MaskContext(self.spec_digest, broadcast_digest, whole, self.cipher)
        streams = [self.stream(site, -1) for site in survivors]
        tags = self.tags()
        for index, (run, summed) in enumerate(zip(whole.runs, total.runs, strict=True)):
            masker = Masker(streams, context, index)
            if index < len(shape.runs):
                _unmask_and_tag(masker, tags, run, summed)
            else:
                masker.apply(0, summed)
        *runs, found = total.reduced()
        if not hmac.compare_digest(tags.value.tobytes(), found.tobytes()):
            raise Refusal.SUM_TAG.refuse()
        return tuple(runs)


def _unmask_and_tag(masker: Masker, tags: VectorTags, run: Run, summed: NDArray[Any]) -> None:
    """Take the streams off the parts and sum their rows in any order, and tag the rows front to back."""
    ready, tagging, tagged = dict[int, NDArray[np.uint64]](), Lock(), 0

    def unmask(numbered: tuple[int, NDArray[Any]]) -> None:
        nonlocal tagged
        index, part = numbered
        masker.apply(index, part)
        rows = tags.rows(run, part)
        with tagging:
            ready[index] = rows
            while tagged in ready:
                tags.add_rows(ready.pop(tagged))
                tagged += 1

    in_threads(parts_of(run, summed), unmask, at_most=count_parts(run))


class VectorTags:
    """The tags of the lanes that were added, front to back.

    Attributes:
        value: [12] uint64.
    """

    def __init__(self, stream: Keystream) -> None:
        self._stream = stream
        self._columns = self._coefficients(_COLUMNS).astype(np.float64)
        self._at = 0  # lanes of the running run
        self._spare: list[NDArray[np.float64]] = []  # room of threads that are done with it
        self.value: NDArray[np.uint64] = np.zeros(TAGS, TAG_RUN.dtype)

    def add(self, run: Run, chunk: NDArray[Any]) -> None:
        """The next lanes of a run: [k] uint32 or uint64, whole rows but for the last ones of the run.

        Raises:
            RangeError: the chunk ends inside a row.
        """
        self._at += chunk.size
        if chunk.size % _COLUMNS and self._at != run.count:
            raise RangeError("a chunk of lanes ends inside a row of tags")
        self._at %= run.count
        self.add_rows(self.rows(run, chunk))

    def add_rows(self, rows: NDArray[np.uint64]) -> None:
        """The next rows of :meth:`rows`."""
        self.value += (self._coefficients(len(rows)) * rows).sum(axis=0, dtype=np.uint64)

    def rows(self, run: Run, chunk: NDArray[Any]) -> NDArray[np.uint64]:
        """Sums over the columns of a run's rows, modulo 2^64: [rows, 12 or 1]. Threads may share it."""
        if run.bits == 64:
            return chunk.reshape(-1, 1)
        step = _ROOM_ROWS * _COLUMNS
        return np.concatenate([self._inner(run, chunk[at : at + step]) for at in range(0, chunk.size, step)])

    def _inner(self, run: Run, chunk: NDArray[Any]) -> NDArray[np.uint64]:
        shift = 32 - run.bits
        signed = (chunk << np.uint32(shift)).view(np.int32) >> shift if shift else chunk.view(np.int32)
        rows = -(-chunk.size // _COLUMNS)
        size = -(-rows // _BATCH_ROWS) * _BATCH_ROWS * _COLUMNS
        try:
            whole = self._spare.pop()  # without a look first: another thread may take the last one
        except IndexError:
            whole = np.empty(_ROOM_ROWS * _COLUMNS)
        room = whole[:size]
        room[: chunk.size], room[chunk.size :] = signed, 0
        sums = room.reshape(-1, _BATCH_ROWS, _COLUMNS) @ self._columns
        self._spare.append(whole)
        return sums.reshape(-1, TAGS)[:rows].astype(np.int64).view(np.uint64)

    def _coefficients(self, rows: int) -> NDArray[np.uint64]:
        """The next ones of the stream, below 2^11: [rows, 12]."""
        count = rows * TAGS
        words = Workspace(count * _COEFFICIENT.itemsize).words(self._stream, count, _COEFFICIENT)
        return (words & _COEFFICIENT_MASK).astype(np.uint64).reshape(rows, TAGS)


class _TaggedSource:
    """Reads a vector and appends its tags."""

    def __init__(self, source: VectorSource, elements: int, tags: VectorTags) -> None:
        self._source, self._left, self._tags = source, elements, tags

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """See :class:`~secfed.crypto.lanes.VectorSource`."""
        if not self._left:
            out[:] = self._tags.value
            return
        self._source.fill(run, out)
        self._tags.add(run, out)
        self._left -= out.size
