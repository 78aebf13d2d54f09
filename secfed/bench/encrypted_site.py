"""What one site does under encrypted protection, to stand beside what it does with closed sums."""

from __future__ import annotations

import time
from collections.abc import Callable

from secfed.attack.scene import SimulatedConsortium
from secfed.crypto.lanes import VectorSource
from secfed.errors import ConfigError


def encrypted_site_s(consortium: SimulatedConsortium, encoder: Callable[[], VectorSource]) -> float | None:
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
        upload = b"".join(cipher.encrypt(parameters, encoder()))
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
