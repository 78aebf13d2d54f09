"""A frame on its way: cut into parts, put together again, checked against its header. Sans-I/O.

Memory: cutting copies one part at a time, so one broadcast serves all sites from the same bytes. Putting
together allocates once, after the header's length was checked against the cap; the operating system makes
the pages as they are written, so a peer that announces much and sends little costs little.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.messages import PART_BYTES, Header, Part
from secfed.errors import MalformedMessage


@dataclass(frozen=True)
class ChunkedFrame:
    """One frame with its header."""

    header: Header
    frame: memoryview = field(repr=False)

    @classmethod
    def wrap(cls, study: str, request_id: bytes, frame: Buffer) -> ChunkedFrame:
        """Hash a frame and give it a header."""
        view = memoryview(frame).cast("B").toreadonly()
        return cls(Header(study, request_id, len(view), hashlib.sha256(view).digest()), view)

    def parts(self) -> Iterator[bytes]:
        """The messages that carry it."""
        yield Part(header=self.header).encode()
        for at in range(0, len(self.frame), PART_BYTES):
            yield Part(data=self.frame[at : at + PART_BYTES]).encode()


def wrap_all(study: str, request_id: bytes, frames: Mapping[str, Buffer]) -> dict[str, ChunkedFrame]:
    """A chunked frame per site; the same frame is hashed and held once, however many sites get it."""
    distinct = {id(frame): frame for frame in frames.values()}
    wrapped = {key: ChunkedFrame.wrap(study, request_id, frame) for key, frame in distinct.items()}
    return {site: wrapped[id(frame)] for site, frame in frames.items()}


class Reassembly:
    """Puts one frame together; ``MalformedMessage``, before anything is allocated, above the cap."""

    def __init__(self, header: Header, cap_bytes: int) -> None:
        if header.total_bytes > cap_bytes:
            raise MalformedMessage(
                f"a frame of {header.total_bytes} bytes exceeds the study's cap of {cap_bytes}"
            )
        self._header = header
        self._frame = np.empty(header.total_bytes, np.uint8).data
        self._hash = hashlib.sha256()
        self._at = 0

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are here."""
        return self._at == len(self._frame)

    def add(self, message: Buffer) -> None:
        """Take one part.

        A part that is not full, and not the last, is refused: a peer that sends byte by byte would
        otherwise keep every timeout per part, and a connection for months.
        """
        data = Part.decode(message).data
        if data is None or len(data) != min(PART_BYTES, len(self._frame) - self._at):
            raise MalformedMessage("a part is not data, not full, or beyond the announced length")
        self._frame[self._at : self._at + len(data)] = data
        self._hash.update(data)
        self._at += len(data)

    def finish(self) -> memoryview:
        """The frame."""
        if not self.complete:
            raise MalformedMessage("the stream ended before the announced length")
        if self._hash.digest() != self._header.sha256:
            raise MalformedMessage("the frame does not match its announced SHA-256")
        return self._frame.toreadonly()
