"""Vectors of masks under AES-256 in counter mode: streams, keys, masked runs, and a closed sum."""

from __future__ import annotations

import hashlib
from typing import Final

from secfed.crypto.keystream import SEGMENT_BYTES, StreamCipher, StreamKey
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.refusals import Refusal
from tests.vectors.closed import SITES, SMALL, closed_vectors
from tests.vectors.primitives import Counting, Json, pattern, stream_bytes

AES: Final = StreamCipher.AES_256_CTR
SEGMENTS: Final = (0, 1, 2**32)


def aes_vectors() -> Json:
    """From stream keys to masked bytes across the boundary of two segments."""
    stream_key = pattern("stream key")
    return {
        "keystream": AES.value,
        "segment_bytes": SEGMENT_BYTES,
        "stream_key": stream_key.hex(),
        "segments": [
            {
                "segment": index,
                "first_counter_block": (index << 32 | 2).to_bytes(16, "big").hex(),
                "first_80_bytes": stream_bytes(StreamKey(stream_key, AES).segment(index), 80).hex(),
            }
            for index in SEGMENTS
        ],
        "masked": {
            "rule": "lane k is k mod 2^bits; plus the self mask; minus the pair mask",
            "self_seed": pattern("self-mask seed").hex(),
            "pair_seed_lower": pattern("one").hex(),
            "pair_seed_higher": pattern("two").hex(),
            "specification_digest": pattern("specification digest").hex(),
            "layout_digest": pattern("layout digest").hex(),
            "broadcast_digest": pattern("broadcast digest").hex(),
            "runs": [_masked(bits) for bits in (9, 32, 64)],
        },
        "closed": closed_vectors(SMALL, AES),
    }


def _masked(bits: int) -> Json:
    part = SEGMENT_BYTES // (8 if bits == 64 else 4)
    run = Run(bits, part + 5)
    shape = VectorShape((run,), pattern("layout digest"))
    context = masks.MaskContext(pattern("specification digest"), pattern("broadcast digest"), shape, AES)
    streams = [
        masks.self_mask(pattern("self-mask seed"), 1),
        masks.pair_mask(pattern("one"), pattern("two"), -1),
    ]
    wire = bytearray(run.wire_bytes)
    vector_digest = masks.write_masked(Counting(), streams, context, memoryview(wire))
    edge = part * bits // 8
    return {
        "bits": bits,
        "count": run.count,
        "stream_keys": [stream.key(context, 0).stream_key.hex() for stream in streams],
        "first_16_bytes": wire[:16].hex(),
        "bytes_around_the_second_segment": wire[edge - 16 : edge + 5].hex(),
        "sha256": hashlib.sha256(wire).hexdigest(),
        "vector_digest": vector_digest.hex(),
    }


def aes_cases() -> list[Json]:
    """Sums that were closed under one cipher and are opened under the other."""
    ciphers = list(StreamCipher)
    found = []
    for closed, opened in (ciphers, ciphers[::-1]):
        good = closed_vectors(SMALL, closed)
        keys = ("group_key", "specification_digest", "advertised_set_digest")
        honest = {key: good[key] for key in (*keys, "layout_digest", "broadcast_digest", "runs")}
        found.append(
            {
                "name": f"bad_closed_under_{closed}_opened_under_{opened}",
                "operation": "open a closed sum",
                "error": Refusal.SUM_TAG.error.__name__,
                "refusal": Refusal.SUM_TAG.number,
                **honest,
                "keystream": opened.value,
                "survivors": list(SITES),
                "input": good["closed_sum"],
            }
        )
    return found
