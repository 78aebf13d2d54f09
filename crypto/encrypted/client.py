"""A site's half of encrypted sums: encrypt a vector as it is read, decrypt the sum of many, tag and verify.

The work on one frame is in ``frames.py``, the processes that share it out in ``workers.py``: frames are
independent of each other, and of who works on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters
from secfed.crypto.encrypted.bfv_packing import lanes_from, slot_frames
from secfed.crypto.encrypted.frames import FrameCipher, Tagging, slots_of
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.encrypted.tags import Tag, decode_tag
from secfed.crypto.encrypted.workers import WorkerPool
from secfed.crypto.lanes import VectorSource
from secfed.crypto.refusals import Refusal


class SiteCipher:
    """Encrypts this site's vectors and decrypts sums, here or in worker processes, for a whole study.

    Use it as a context manager, or call :meth:`close`. With workers, one vector or sum is worked on at a
    time; every call raises :class:`RoundAborted` where a worker died. Security: workers get the secret key
    through a pipe, never through arguments, the environment or a file.
    """

    def __init__(self, keys: KeyPair, *, processes: int = 0) -> None:
        self._keys = keys
        self._pool = WorkerPool(keys, processes) if processes else FrameCipher(keys)

    def encrypt(self, parameters: Parameters, source: VectorSource) -> Iterator[bytes]:
        """Read a vector once and yield its upload, frame by frame; take all before other work is given."""
        form = FrameFormat(parameters, UPLOAD)
        slots = (frame.data.cast("B") for frame in slot_frames(source, parameters))
        for index, body in enumerate(self._pool.map("encrypt", parameters, slots)):
            yield b"".join((form.header(index), body))

    def decrypt(self, parameters: Parameters, frames: Iterable[Buffer]) -> tuple[NDArray[Any], ...]:
        """Decrypt all frames of a sum: one array of ring integers per run, [count] uint32 or uint64.

        ``MalformedMessage``: a frame is refused, missing or left over; ``RangeError``: the noise leaves no
        margin.
        """
        # A copy of each: the next result takes its place.
        slots = (slots_of(parameters, bytes(data)) for data in self._pool.map("decrypt", parameters, frames))
        return lanes_from(slots, parameters)

    def tag(self, parameters: Parameters, spec_digest: bytes, site: str, frames: Iterable[Buffer]) -> bytes:
        """What follows all the frames of this site's upload: nonce and tags (``tags.py``)."""
        tagging = Tagging(FrameFormat(parameters, UPLOAD), spec_digest)
        return tagging.key(self._keys).upload_tag(site, self._products(tagging, frames))

    def verify(self, parameters: Parameters, summed: Summed, frames: Iterable[Buffer]) -> None:
        """Refuse (45) frames that are not the survivors' uploads in sum; call it before :meth:`decrypt`."""
        tagging = Tagging(FrameFormat(parameters, SUM), summed.spec.digest)
        uploads = zip(summed.result.survivors, summed.each_nonce(), strict=True)
        if not tagging.key(self._keys).is_sum(summed.tag, uploads, self._products(tagging, frames)):
            raise Refusal.SUM_TAG.refuse(f"round {summed.spec.round}")

    def close(self) -> None:
        """Stop the workers."""
        self._pool.close()

    def __enter__(self) -> SiteCipher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _products(self, tagging: Tagging, frames: Iterable[Buffer]) -> Iterator[Tag]:
        return (decode_tag(data, tagging.modulus) for data in self._pool.map("tag", tagging, frames))
