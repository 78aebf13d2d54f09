"""A site's half of encrypted sums: encrypt a vector as it is read, decrypt the sum of many, tag and verify.

The work on one frame is in :mod:`secfed.crypto.encrypted.frames`, worker processes that share it out are in
:mod:`secfed.crypto.encrypted.workers`. Frames are independent of each other: who works on one changes
neither its integers nor its place in the upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters
from secfed.crypto.encrypted.bfv_packing import Slots, lanes_from, slot_frames
from secfed.crypto.encrypted.bfv_tenseal import KeyPair
from secfed.crypto.encrypted.frames import FrameCipher, Tagging, slots_of
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat
from secfed.crypto.encrypted.tags import Tag, decode_tag
from secfed.crypto.encrypted.workers import WorkerPool
from secfed.crypto.lanes import VectorSource
from secfed.crypto.refusals import Refusal
from secfed.errors import MalformedMessage


class SiteCipher:
    """Encrypts this site's vectors and decrypts sums, in this process or in worker processes.

    One object serves a whole study: any number of exchanges under the ring of its keys. Use it as a context
    manager, or call :meth:`close`. With workers, one vector or sum is worked on at a time.

    Args:
        keys: the study's keys.
        processes: worker processes, started when they are first needed; 0 works in this process.

    Security: workers hold the secret key. It reaches them through a pipe, never through arguments, the
    environment or a file.
    """

    def __init__(self, keys: KeyPair, *, processes: int = 0) -> None:
        self._keys = keys
        self._cipher = FrameCipher(keys)
        self._pool = WorkerPool(keys, processes) if processes else None

    def encrypt(self, parameters: Parameters, source: VectorSource) -> Iterator[bytes]:
        """Read a vector once and yield its upload, frame by frame.

        Raises:
            MalformedMessage: the keys are for another ring.
            RoundAborted: a worker process died.
            WrongState: workers were given other work before the last frame was taken.
        """
        form = FrameFormat(parameters, UPLOAD)
        for index, body in enumerate(self._encrypted(parameters, slot_frames(source, parameters))):
            yield b"".join((form.header(index), body))

    def decrypt(self, parameters: Parameters, frames: Iterable[Buffer]) -> tuple[NDArray[Any], ...]:
        """Decrypt a sum: one array of ring integers per run, [count] uint32 or uint64.

        Args:
            parameters: of the exchange.
            frames: all frames of the sum, in order.

        Raises:
            MalformedMessage: a frame is refused, missing or left over.
            RangeError: the noise leaves no margin; the sum is not one of honest uploads.
            RoundAborted: a worker process died.
        """

        def counted() -> Iterator[Buffer]:
            count = 0
            for frame in frames:
                if count == parameters.frames:
                    raise MalformedMessage("an encrypted sum has more frames than its parameters")
                yield frame
                count += 1
            if count < parameters.frames:
                raise MalformedMessage(f"an encrypted sum ends after {count} of {parameters.frames} frames")

        return lanes_from(self._decrypted(parameters, counted()), parameters)

    def tag(self, parameters: Parameters, spec_digest: bytes, site: str, frames: Iterable[Buffer]) -> bytes:
        """What follows the frames of this site's upload: nonce and tags (``tags.py``).

        Args:
            parameters: of the exchange.
            spec_digest: of the specification that the upload answers.
            site: this site.
            frames: all frames of the upload, in order.

        Raises:
            RoundAborted: a worker process died.
        """
        tagging = Tagging(FrameFormat(parameters, UPLOAD), spec_digest)
        return tagging.key(self._keys).upload_tag(site, self._products(tagging, frames))

    def verify(self, parameters: Parameters, summed: Summed, frames: Iterable[Buffer]) -> None:
        """Check that a sum is that of the survivors' uploads; to be called before :meth:`decrypt`.

        Args:
            parameters: of the exchange.
            summed: the sum.
            frames: all of its frames, in order.

        Raises:
            InconsistentView: refusal 45.
            MalformedMessage: a frame is refused.
            RoundAborted: a worker process died.
        """
        tagging = Tagging(FrameFormat(parameters, SUM), summed.spec.digest)
        uploads = zip(summed.result.survivors, summed.each_nonce(), strict=True)
        if not tagging.key(self._keys).is_sum(summed.tag, uploads, self._products(tagging, frames)):
            raise Refusal.SUM_TAG.refuse(f"round {summed.spec.round}")

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> SiteCipher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encrypted(self, parameters: Parameters, frames: Iterable[Slots]) -> Iterator[Buffer]:
        if self._pool is None:
            return (self._cipher.encrypt(parameters, slots) for slots in frames)
        return self._pool.map("encrypt", parameters, (slots.data.cast("B") for slots in frames))

    def _decrypted(self, parameters: Parameters, frames: Iterable[Buffer]) -> Iterator[Slots]:
        if self._pool is None:
            for index, frame in enumerate(frames):
                yield self._cipher.decrypt(parameters, index, frame)
        else:
            for data in self._pool.map("decrypt", parameters, frames):
                yield slots_of(parameters, bytes(data))  # a copy: the next result takes its place

    def _products(self, tagging: Tagging, frames: Iterable[Buffer]) -> Iterator[Tag]:
        if self._pool is None:
            return (self._cipher.products(tagging, index, frame) for index, frame in enumerate(frames))
        return (decode_tag(data, tagging.modulus) for data in self._pool.map("tag", tagging, frames))
