"""Operations of ``functions.json`` for section 12, and their cases: rings, slots and packed words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from secfed.crypto.encrypted.bfv import FRAME_CIPHERTEXTS, Parameters, Ring, choose_ring, fit
from secfed.crypto.encrypted.bfv_packing import lanes_from, pack_words, slot_frames, unpack_words
from secfed.crypto.lanes import Run
from tests.ring import Integers
from tests.vectors.primitives import Json, pattern

Cases = dict[str, Json]
_RING: Final = ("symmetric", 2048, 36, 0)


def _ring(given: Json) -> Json:
    exchanges = [[Run(*run) for run in runs] for runs in given["exchanges"]]
    ring = choose_ring(exchanges, given["sites"], key_mode=given["key_mode"])
    sizes = {"size": ring.size, "modulus_bits": ring.modulus_bits, "special_bits": ring.special_bits}
    fitted = [fit(ring, runs, given["sites"]) for runs in exchanges]
    exchanges_of = [
        {"slot_bits": one.slot_bits, "ciphertexts": one.ciphertexts, "digest": one.digest.hex()}
        for one in fitted
    ]
    return {**sizes, "moduli": list(ring.key_moduli), "digest": ring.digest.hex(), "exchanges": exchanges_of}


def _fitted(given: Json) -> Parameters:
    ring = Ring("bfv", *given["ring"])
    return fit(ring, [Run(bits, len(lanes)) for bits, lanes in given["runs"]], given["sites"])


def _slots(given: Json) -> Json:
    parameters = _fitted(given)
    lanes = tuple(np.array(values, Run(bits, len(values)).dtype) for bits, values in given["runs"])
    frames = slot_frames(Integers(lanes), parameters)
    made = [int(slot) for frame in frames for slot in frame.reshape(-1)]
    return {"slot_bits": parameters.slot_bits, "slots": made[: parameters.slots]}


def _lanes(given: Json) -> Json:
    runs = [[bits, [0] * count] for bits, count in given["shape"]]
    parameters = _fitted({**given, "runs": runs})
    width = parameters.ring.slots_per_ciphertext
    padded = np.zeros(parameters.ciphertexts * width, np.uint64)
    padded[: len(given["slots"])] = given["slots"]
    step = FRAME_CIPHERTEXTS * width
    frames = (padded[at : at + step].reshape(-1, width) for at in range(0, padded.size, step))
    found = lanes_from(frames, parameters)
    return {"lanes": [[int(lane) for lane in run] for run in found]}


def _packed(given: Json) -> Json:
    if "packed" in given:
        words = unpack_words(memoryview(bytes.fromhex(given["packed"])), given["bits"])
        return {"words": [int(word) for word in words]}
    return {"packed": pack_words(np.array(given["words"], np.uint64), given["bits"]).hex()}


OPERATIONS: Final[dict[str, Callable[[Json], Json]]] = {
    "ring": _ring,
    "slots": _slots,
    "lanes of slots": _lanes,
    "packed words": _packed,
}


def rings() -> Cases:
    """Chosen for a study, with the parameters of each exchange."""

    def case(sites: int, key_mode: str, *exchanges: list[list[int]]) -> Json:
        return {"sites": sites, "key_mode": key_mode, "exchanges": list(exchanges)}

    small, large = [[20, 1000], [64, 3]], [[32, 1_000_000]]
    return {
        "symmetric, small": case(3, "symmetric", small),
        "symmetric, large": case(10, "symmetric", large, small),
        "public, small": case(3, "public", small),
        "public, large": case(10, "public", large, small),
        "public, many sites": case(100, "public", [[12, 100_000]]),
        "symmetric, one lane": case(5, "symmetric", [[64, 1]]),
        "!another mode": case(3, "secret", small),
        "!too many sites": case(101, "public", small),
        "!no elements": case(3, "public", []),
    }


_LANES: Final = [
    [9, [0, 1, 255, 256, 511, 300, 7]],
    [20, [0, 2**20 - 1, 2**19, 2**19 - 1, 12345]],
    [64, [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]],
]


def slots() -> Cases:
    """Lanes on their way to plaintexts."""
    return {
        f"in the ring {ring}": {"ring": list(ring), "sites": sites, "runs": _LANES}
        for ring, sites in ((_RING, 3), (("public", 4096, 60, 0), 10), (("public", 4096, 54, 16), 4))
    }


def lanes() -> Cases:
    """Sums of slots, read back; sums carry."""
    made: Cases = {}
    shape = [[bits, len(values)] for bits, values in _LANES]
    for name, given in slots().items():
        found = _slots(given)
        for times in (1, 3):
            total = [slot * times % 2 ** found["slot_bits"] for slot in found["slots"]]
            own = {"ring": given["ring"], "sites": given["sites"], "shape": shape, "slots": total}
            made[f"{times} times, {name}"] = own
    return made


def packed_words() -> Cases:
    """Across words of 64 bits, and over two columns."""

    def words(bits: int, count: int) -> list[int]:
        return [int.from_bytes(pattern(f"word {at}", 8), "big") % 2**bits for at in range(count)]

    made: Cases = {}
    for bits, count in ((30, 64), (36, 128), (60, 64)):
        given = {"bits": bits, "words": words(bits, count)}
        made[f"{count} of {bits} bits"] = given
        packed = _packed(given)["packed"]
        made[f"{count} of {bits} bits, read back"] = {"bits": bits, "packed": packed}
    return made
