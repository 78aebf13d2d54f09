"""Cases of ``functions.json`` about streams, sparse graphs, and keys of studies whose sums the sites open."""

from __future__ import annotations

from typing import Final

from secfed.crypto.keystream import SEGMENT_BYTES, StreamCipher
from tests.vectors.functions import outcome
from tests.vectors.primitives import Json, pattern
from tests.vectors.record_cases import Cases

MODULUS: Final = 2**36 - 5  # of 36 bits, as that of a ring


def holders() -> Cases:
    """By (roster, threshold, colluders, advertised, dropout rate); section 10.7 has more."""
    sizes = (
        (100, 67, 33, 100, 0.1),
        (100, 67, 33, 100, 0.05),
        (100, 67, 10, 90, 0.1),
        (200, 134, 66, 180, 0.1),
        (500, 334, 50, 500, 0.05),
        (8, 4, 0, 7, 0.1),
        (7, 3, 0, 5, 0.1),
        (7, 3, 0, 5, 0.3),
        (7, 5, 2, 7, 0.1),
        (10, 7, 3, 10, 0.1),
        (40, 27, 13, 40, 0.1),
        (40, 27, 13, 30, 0.1),
        (40, 27, 13, 40, 0.0),
    )
    names = "roster", "threshold", "colluders", "advertised", "dropout_rate"
    return {f"{given}": dict(zip(names, given, strict=True)) for given in sizes}


def streams() -> Cases:
    """Across blocks and segments; only the AES stream has segments."""
    key = pattern("stream key").hex()
    made: Cases = {}
    for cipher, places in {
        StreamCipher.CHACHA20: (0, 60, SEGMENT_BYTES - 64),
        StreamCipher.AES_256_CTR: (0, 10, SEGMENT_BYTES - 80, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 16),
    }.items():
        for at in places:
            made[f"{cipher.value} from byte {at}"] = {
                "cipher": cipher.value,
                "key": key,
                "at": at,
                "size": 64,
            }
    return made


def tags() -> Cases:
    """Of closed sums (section 13.2)."""
    names = "group key", "specification digest", "advertised set digest"
    keys = {name.replace(" ", "_"): pattern(name).hex() for name in names}

    def case(*runs: tuple[int, list[int]]) -> Json:
        return {**keys, "runs": [list(run) for run in runs]}

    return {
        "of nothing": case((8, [0, 0, 0])),
        "of the smallest lanes": case((12, [2**11] * 5), (32, [2**31] * 3), (64, [2**63])),
        "of the largest lanes": case((12, [2**11 - 1] * 5), (32, [2**31 - 1] * 3), (64, [2**63 - 1])),
        "of minus one": case((12, [2**12 - 1]), (64, [2**64 - 1, 2**64 - 1])),
        "over two rows": case((9, [at % 512 for at in range(1030)])),
        "of runs in another order": case((64, [2**50, 1]), (12, [1, 2])),
    }


def study_keys() -> Cases:
    """What all that have a study key compute of it."""
    state = pattern("state", 40).hex()
    return {
        "of a closed study": {"study_key": pattern("group key").hex(), "state": state},
        "another": {"study_key": pattern("another").hex(), "state": ""},
    }


def frame_tags() -> Cases:
    """Of encrypted sums (section 12.4): words of two frames, and who uploaded them."""
    frames = [[at * 123_456_789 % MODULUS for at in range(64)], [MODULUS - 1, 0, 1, 2**29]]
    given = {
        "study_key": pattern("study key", 100).hex(),
        "specification_digest": pattern("specification digest").hex(),
        "modulus": MODULUS,
        "frames": frames,
        "uploads": [
            ["hospital-1", pattern("nonce", 16).hex()],
            ["klinikum-s\u00fcd", pattern("n", 16).hex()],
        ],
    }
    whole = {**given, "tag": outcome("tag of frames", given)["output"]["tag"]}
    one, other = whole["uploads"]
    altered = [[frames[0][0] + 1, *frames[0][1:]], frames[1]]
    return {
        "of two uploads": given,
        "it is the sum": whole,
        "!with another word": {**whole, "frames": altered},
        "!with frames exchanged": {**whole, "frames": frames[::-1]},
        "!with nonces exchanged": {**whole, "uploads": [[one[0], other[1]], [other[0], one[1]]]},
        "!without a survivor": {**whole, "uploads": [one]},
        "!under another specification": {**whole, "specification_digest": pattern("x").hex()},
        "!under another key": {**whole, "study_key": pattern("x").hex()},
    }
