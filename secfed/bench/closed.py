"""What closed sums add to a masked attempt, and encrypted protection of the same vector beside them."""

from __future__ import annotations

import time
from typing import Final

from secfed.bench.masked import BenchConsortium
from secfed.crypto.lanes import VectorShape, pack_into
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.closing import Closing, closed_shape
from secfed.errors import ConfigError

_GROUP_KEY: Final = bytes(32)


class ClosedConsortium(BenchConsortium):
    """Sites that close their vectors, and open the sum."""

    @property
    def uploaded_shape(self) -> VectorShape:
        """Lanes and tags."""
        return closed_shape(self.shape)

    def session(self, name: str) -> MaskedSite:
        """One site's half."""
        return MaskedSite(self.contribution(name, source=self.encoder(), group_key=_GROUP_KEY))

    def open_s(self) -> float:
        """Seconds in which a site opens the sum of the newest attempt: streams off, tags checked."""
        server, spec, at = self.server, self.specification(), 0
        vector = memoryview(bytearray(self.uploaded_shape.wire_bytes))
        for run, lanes in zip(self.uploaded_shape.runs, server.sums, strict=True):
            pack_into(lanes, run, vector[at : at + run.wire_bytes])
            at += run.wire_bytes
        start = time.perf_counter()
        closing = Closing(_GROUP_KEY, spec.digest, server.adverts_digest)
        closing.opened(vector, server.survivors, spec.broadcast_digest, self.shape)
        return time.perf_counter() - start


def encrypted_site_s(consortium: BenchConsortium) -> float | None:
    """Seconds of one site under encrypted protection with symmetric keys: encrypt, tag, verify and decrypt.

    None without the extra ``he``.
    """
    try:
        from secfed.crypto.encrypted.bfv_tenseal import generate_keys
        from secfed.crypto.encrypted.client import SiteCipher
    except ConfigError:
        return None
    from secfed.crypto.encrypted.bfv import choose
    from secfed.crypto.encrypted.messages import Summed
    from secfed.crypto.encrypted.server import UPLOAD, FrameFormat, RunningSum
    from secfed.crypto.encrypted.tags import NONCE_BYTES
    from secfed.crypto.messages import Result

    spec, name = consortium.specification(), consortium.names[0]
    parameters = choose(consortium.shape.runs, len(consortium.names), key_mode="symmetric")
    with SiteCipher(generate_keys(parameters.ring)) as cipher:
        start = time.perf_counter()
        upload = b"".join(cipher.encrypt(parameters, consortium.encoder()))
        tagged = cipher.tag(parameters, spec.digest, name, FrameFormat(parameters, UPLOAD).split(upload))
        seconds = time.perf_counter() - start
        total = RunningSum(parameters)
        total.add(name, upload)
        frames = list(total.frames())
        parts = tagged[:NONCE_BYTES], tagged[NONCE_BYTES:], b""
        summed = Summed(spec, Result(spec.digest, (name,), bytes(32)), *parts)
        start = time.perf_counter()
        cipher.verify(parameters, summed, frames)
        cipher.decrypt(parameters, frames)
        return seconds + time.perf_counter() - start
