"""What the tests of encrypted sums share: vectors, small exchanges under full-size rings, whole sums."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.encrypted.bfv import KeyMode, Parameters, Ring, Scheme, choose_ring, fit
from secfed.crypto.encrypted.bfv_tenseal import generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.encrypted.server import RunningSum
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.encrypted.tags import NONCE_BYTES, add_tags, decode_tag, encode_tag
from secfed.crypto.identity import Identity
from secfed.crypto.lanes import Run

Vector = list[list[int]]  # signed numbers, one list per run


class Lanes:
    """A vector as ring integers; ``read`` counts the lanes taken so far."""

    def __init__(self, runs: tuple[Run, ...], vector: Vector) -> None:
        self._arrays = {
            run: np.array([value % (1 << run.bits) for value in values], dtype=run.dtype)
            for run, values in zip(runs, vector, strict=True)
        }
        self._at = dict.fromkeys(runs, 0)

    @property
    def read(self) -> int:
        return sum(self._at.values())

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        at = self._at[run]
        out[:] = self._arrays[run][at : at + out.size]
        self._at[run] = at + out.size


def limit(run: Run, sites: int) -> int:
    """Largest magnitude of one site's lane; see secfed.crypto.fixedpoint."""
    return ((1 << (run.bits - 1)) - 1) // sites


def ring_sums(runs: tuple[Run, ...], vectors: list[Vector]) -> list[list[int]]:
    """The sums modulo 2^bits, in Python's integers."""
    return [
        [sum(column) % (1 << run.bits) for column in zip(*(vector[index] for vector in vectors), strict=True)]
        for index, run in enumerate(runs)
    ]


@lru_cache
def study_ring(bits: int, sites: int, key_mode: KeyMode, scheme: Scheme = "bfv") -> Ring:
    """The ring of a study with a million parameters of this width."""
    return choose_ring([(Run(bits, 10**6),)], sites, key_mode=key_mode, scheme=scheme)


@lru_cache
def keys_of(ring: Ring) -> KeyPair:
    """One key pair per ring: drawing one takes longer than a test's sum."""
    return generate_keys(ring)


def small(
    runs: tuple[Run, ...], sites: int, key_mode: KeyMode = "public", scheme: Scheme = "bfv"
) -> tuple[Parameters, SiteCipher]:
    """A small exchange under the ring of a large study, and a cipher that works in this process."""
    ring = study_ring(runs[0].bits, sites, key_mode, scheme)
    return fit(ring, runs, sites), SiteCipher(keys_of(ring))


def upload(cipher: SiteCipher, parameters: Parameters, vector: Vector) -> bytes:
    """One site's whole upload."""
    return b"".join(cipher.encrypt(parameters, Lanes(parameters.runs, vector)))


def summed(cipher: SiteCipher, parameters: Parameters, vectors: list[Vector]) -> list[list[int]]:
    """Encrypt, add and decrypt."""
    total = RunningSum(parameters)
    for index, vector in enumerate(vectors):
        total.add(f"site-{index}", upload(cipher, parameters, vector))
    return [run.tolist() for run in cipher.decrypt(parameters, total.frames())]


def added(parameters: Parameters, vectors: dict[str, bytes]) -> dict[str, bytes]:
    """The vectors of uploads (frames, nonce, tags) added as the aggregator adds them: fields of a sum."""
    total, modulus = RunningSum(parameters), parameters.ring.modulus
    nonces, tag = b"", (0,) * 4
    for site, vector in vectors.items():
        frames, rest = vector[:-48], vector[-48:]
        total.add(site, frames)
        nonces += rest[:NONCE_BYTES]
        tag = add_tags(modulus, tag, decode_tag(rest[NONCE_BYTES:], modulus))
    return {"nonces": nonces, "tag": encode_tag(tag), "ciphertext": b"".join(total.frames())}


def resigned(aggregator: Identity, summed: Summed, *, survivors: Any = None, **changes: Any) -> Summed:
    """A sum of which a malicious aggregator changed something; everything in it fits and is signed."""
    summed = replace(summed, **changes)
    spec = replace(summed.spec, signature=aggregator.sign(labels.SIGN_SPEC, summed.spec.body()))
    summed = replace(summed, spec=spec)
    survivors = summed.result.survivors if survivors is None else survivors
    result = replace(
        summed.result, spec_digest=spec.digest, survivors=survivors, totals_digest=summed.totals_digest
    )
    signature = aggregator.sign(labels.SIGN_RESULT, result.body())
    return replace(summed, result=replace(result, signature=signature))
