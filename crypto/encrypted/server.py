"""Encrypted sums: sites encrypt, the aggregator adds, sites decrypt. docs/protocol.md, 12.4.

An upload is a row of *frames*, groups of ciphertexts behind a header of our own. Given the parameters,
headers and lengths are known in advance, so a frame is compared with the one expected before anything else
happens. The aggregator adds words with numpy, and holds no key; a site that drops out costs nothing.

Security: a ciphertext of another key or vector cannot be told from an honest one; the caller verifies the
site's signature over the whole upload before it is committed. Sites verify the sum by its tag. Whoever holds
the secret key *and* sees a single upload can read it: a site that colludes with the aggregator can read every
site.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.crypto.encrypted.bfv import FRAME_CIPHERTEXTS, SEED_BYTES, Parameters
from secfed.crypto.encrypted.bfv_packing import Words, pack_words, unpack_words
from secfed.errors import MalformedMessage, Replay, WrongState

if TYPE_CHECKING:
    from secfed.crypto.encrypted.bfv_tenseal import SeedExpander

UPLOAD: Final = 1
SUM: Final = 2

_MAGIC = b"SFBE\x01"
HEADER_BYTES = len(_MAGIC) + 1 + 32 + 4 + 2


@dataclass(frozen=True)
class FrameFormat:
    """The exact form of every frame of one kind (``UPLOAD`` or ``SUM``) under one set of parameters."""

    parameters: Parameters
    kind: int

    @property
    def seeded(self) -> bool:
        """Whether a seed stands for the second polynomial."""
        return self.kind == UPLOAD and self.parameters.ring.key_mode == "symmetric"

    def header(self, index: int) -> bytes:
        """The header of one frame."""
        writer = Writer().fixed(_MAGIC, len(_MAGIC)).uint(self.kind, 1).fixed(self.parameters.digest, 32)
        return writer.uint(index, 4).uint(self.parameters.frame_ciphertexts(index), 2).done()

    def frame_bytes(self, index: int) -> int:
        """The length of one frame, header included."""
        count = self.parameters.frame_ciphertexts(index)
        return HEADER_BYTES + self._word_bytes(count) + (SEED_BYTES * count if self.seeded else 0)

    @property
    def total_bytes(self) -> int:
        """The length of all frames."""
        last = self.parameters.frames - 1
        return self.frame_bytes(0) * last + self.frame_bytes(last)

    def split(self, data: Buffer) -> Iterator[memoryview]:
        """Cut a whole upload or sum, of the one length it can have, into its frames, without copying."""
        view = memoryview(data).cast("B")
        if len(view) != self.total_bytes:
            raise MalformedMessage(f"{len(view)} bytes of ciphertexts, expected {self.total_bytes}")
        at = 0
        for index in range(self.parameters.frames):
            size = self.frame_bytes(index)
            yield view[at : at + size]
            at += size

    def words(self, frame: Buffer, index: int) -> tuple[Words, memoryview]:
        """Check one frame: [k, 1 or 2, n] uint64 words below q, and the seeds.

        ``MalformedMessage``: wrong length, kind, parameters or place, or a word that is not reduced.
        """
        if index >= self.parameters.frames:
            raise MalformedMessage(f"there are more ciphertext frames than {self.parameters.frames}")
        view = memoryview(frame).cast("B")
        if len(view) != self.frame_bytes(index):
            raise MalformedMessage(
                f"ciphertext frame {index} has {len(view)} bytes, expected {self.frame_bytes(index)}"
            )
        if view[:HEADER_BYTES] != self.header(index):
            self._explain(view, index)
        ring = self.parameters.ring
        count = self.parameters.frame_ciphertexts(index)
        size = self._word_bytes(count)
        words = unpack_words(view[HEADER_BYTES : HEADER_BYTES + size], ring.modulus_bits)
        if int(words.max()) >= ring.modulus:
            raise MalformedMessage(f"ciphertext frame {index} has a word that is not reduced modulo q")
        return words.reshape(count, -1, ring.size), view[HEADER_BYTES + size :]

    def _word_bytes(self, count: int) -> int:
        ring = self.parameters.ring
        return count * (1 if self.seeded else 2) * ring.size * ring.modulus_bits // 8

    def _explain(self, view: memoryview, index: int) -> None:
        """Say which part of a header is wrong; the lengths were right."""
        found, right = Reader(view), Reader(self.header(index))
        for size, wrong in (
            (len(_MAGIC), "is not one of ciphertexts"),
            (1, "is of the wrong kind"),
            (32, "was made for other encryption parameters"),
            (4, "is out of order"),
            (2, "holds the wrong number of ciphertexts"),
        ):
            if found.fixed(size) != right.fixed(size):
                remedy = "every site must run the same study file and the same secfed version"
                raise MalformedMessage(f"frame {index} {wrong}", remedy=remedy)


class RunningSum:
    """The aggregator's half: one running sum.

    Memory: 16 bytes per plaintext slot; nothing grows with the number of sites.
    """

    def __init__(self, parameters: Parameters) -> None:
        ring = parameters.ring
        self.parameters = parameters
        self._format = FrameFormat(parameters, UPLOAD)
        self._modulus = np.uint64(ring.modulus)
        self._total: Words = np.zeros((parameters.ciphertexts, 2, ring.size), np.uint64)
        self._sites: list[str] = []
        self._expander = _expander(parameters) if self._format.seeded else None

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites whose upload is in the sum, in the order of their commit."""
        return tuple(self._sites)

    def add(self, site: str, upload: Buffer) -> None:
        """Check and add a whole upload; nothing is added if any part of it is refused.

        Raises:
            ProtocolError: it is malformed, the site's upload is in the sum, or the sum has as many as it can.

        Security: the caller has verified the site's signature over the upload.
        """
        if site in self._sites:
            raise Replay(f"site {site!r} already has an upload in this sum")
        if len(self._sites) >= self.parameters.sites:
            raise WrongState(f"the noise budget of this sum is for {self.parameters.sites} uploads")
        for index, frame in enumerate(self._format.split(upload)):
            self._format.words(frame, index)
        for index, frame in enumerate(self._format.split(upload)):
            self._add_frame(index, frame)
        self._sites.append(site)

    def frames(self) -> Iterator[bytes]:
        """The sum, frame by frame; there must be an upload in it."""
        if not self._sites:
            raise WrongState("there is no upload in the encrypted sum")
        form = FrameFormat(self.parameters, SUM)
        for index in range(self.parameters.frames):
            words = self._frame_total(index)
            yield form.header(index) + pack_words(words.reshape(-1), self.parameters.ring.modulus_bits)

    def _add_frame(self, index: int, frame: Buffer) -> None:
        words, seeds = self._format.words(frame, index)
        total = self._frame_total(index)
        self._add(total[:, 0], words[:, 0])
        if self._expander is None:
            self._add(total[:, 1], words[:, 1])
        else:
            for ciphertext, second in zip(total, expanded(seeds, self._expander), strict=True):
                self._add(ciphertext[1], second)

    def _add(self, total: Words, words: Words) -> None:
        """Add modulo q: both are below q < 2^60, and subtracting q from less than q wraps far above it."""
        total += words
        np.minimum(total, total - self._modulus, out=total)

    def _frame_total(self, index: int) -> Words:
        return self._total[index * FRAME_CIPHERTEXTS : (index + 1) * FRAME_CIPHERTEXTS]


def expanded(seeds: memoryview, expander: SeedExpander) -> Iterator[Words]:
    """The second polynomials that the seeds of one frame stand for: [n] uint64 below q each."""
    for at in range(0, len(seeds), SEED_BYTES):
        yield expander.words(seeds[at : at + SEED_BYTES])


def _expander(parameters: Parameters) -> SeedExpander:
    from secfed.crypto.encrypted.bfv_tenseal import SeedExpander

    return SeedExpander(parameters.ring)
