"""BFV parameters for exact sums: ring, moduli, lanes to a coefficient. docs/protocol.md, 12.2.

Only additions are computed: the plaintext modulus is 2^slot_bits and lanes lie in the *coefficients* (a slot
is one), one prime q <= 2^60 is enough, and adding ciphertexts is adding words modulo q. A *ring* is what keys
depend on, chosen once for a study; *parameters* are a ring with the slots of one exchange. The search keeps
the fewest bytes on the wire. The special prime p exists during public-key encryption only, and divides its
noise.

Source: Fan, Vercauteren 2012 (ePrint 2012/144) for BFV; Albrecht et al., Homomorphic Encryption Security
Standard 2018, table 1 (ternary secret, classical attacks) for the sizes; modulus switching as in
Brakerski, Gentry, Vaikuntanathan 2012 (ePrint 2011/277), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Literal, get_args

from secfed.crypto.codec import Writer, digest
from secfed.crypto.lanes import Run
from secfed.errors import ConfigError, RangeError

KeyMode = Literal["public", "symmetric"]
Scheme = Literal["bfv", "ckks"]

# Largest total modulus in bits at 128, 192 and 256 bits of security, by ring size.
HE_STANDARD: dict[int, tuple[int, int, int]] = {2048: (54, 37, 29), 4096: (109, 75, 58)}
SECURITY_LEVELS = (128, 192, 256)

MAX_SITES = 100
FRAME_CIPHERTEXTS = 16  # 0.8 MB on the wire: large enough for arrays to pay, small enough to stream
SEED_BYTES = 64

_MODULUS_BITS = range(30, 61)  # 60 is the largest prime the library takes
_SPECIAL_BITS = 16  # the smallest size with a suitable prime; it is far above the noise it divides away
_MAX_SLOT_BITS = 59  # the library's largest plaintext modulus is below 2^60
_CKKS_LIMB_BITS = 28  # with carries: the noise of 100 sites is 0.04 of a unit, so rounding makes limbs exact
_SIGMA = 3.25  # a fresh error coefficient (centred binomial of variance 10.5), rounded up
_SECRET_VARIANCE = 2 / 3  # of a ternary coefficient
# q must hold noise of 16 standard deviations. A sum's largest coefficient lies near 5, so decryption sees
# a budget of one to two bits; 8 deviations, where the budget falls below one bit, have probability 2^-49.
_NOISE_DEVIATIONS = 16

_RING_DIGEST = b"secfed/v1 encryption ring digest"
_PARAMETERS_DIGEST = b"secfed/v1 encryption parameters digest"


@dataclass(frozen=True)
class Ring:
    """What a key belongs to.

    In mode ``public`` a ciphertext is two polynomials, made with the public key; in mode ``symmetric`` one
    polynomial and the seed of the other, made with the secret key.
    """

    scheme: Scheme  # ``bfv`` (exact) or ``ckks`` (approximate)
    key_mode: KeyMode
    size: int  # n, coefficients per polynomial
    modulus_bits: int  # size of the prime q that ciphertext words are reduced by
    special_bits: int  # size of the special prime, 0 for none

    def __post_init__(self) -> None:
        known = self.scheme in get_args(Scheme) and self.key_mode in get_args(KeyMode)
        sizes = self.modulus_bits in _MODULUS_BITS and self.special_bits in (0, _SPECIAL_BITS)
        if not (known and sizes and self.size in HE_STANDARD and self.security_bits):
            raise ConfigError(
                f"encryption ring {self} is not within the 128-bit table",
                remedy="let the parameter search choose the ring",
            )

    @property
    def modulus(self) -> int:
        """The prime q."""
        return ntt_prime(self.size, self.modulus_bits)

    @property
    def key_moduli(self) -> tuple[int, ...]:
        """The primes a key is stored under: q and the special prime."""
        special = (ntt_prime(self.size, self.special_bits),) if self.special_bits else ()
        return (self.modulus, *special)

    @property
    def security_bits(self) -> int:
        """The standard's security level that the total modulus stays within: 128, 192 or 256; 0 for none."""
        total = self.modulus_bits + self.special_bits
        reached = [s for s, cap in zip(SECURITY_LEVELS, HE_STANDARD[self.size], strict=True) if total <= cap]
        return max(reached, default=0)

    @property
    def slots_per_ciphertext(self) -> int:
        """Coefficients that carry lanes; CKKS packs n / 2 real numbers."""
        return self.size if self.scheme == "bfv" else self.size // 2

    @property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding: 32 bytes; every serialised key carries it."""
        writer = Writer().text(self.scheme).text(self.key_mode).uint(self.size, 4)
        return digest(_RING_DIGEST, writer.uint(self.modulus_bits, 1).uint(self.special_bits, 1).done())

    def max_slot_bits(self, sites: int) -> int:
        """Largest plaintext modulus, in bits, that decrypts after ``sites`` additions."""
        noise = _NOISE_DEVIATIONS * math.sqrt(sites * self._fresh_variance())
        return min(_MAX_SLOT_BITS, math.floor(math.log2(self.modulus) - 1 - math.log2(noise)))

    def _fresh_variance(self) -> float:
        """Variance of a noise coefficient of one fresh ciphertext.

        Symmetric: e. Public: e*u + e1 + e2*s with ternary u and s; a special prime p divides it by p, and
        rounding both polynomials adds a uniform r0 + r1*s. Rounding q*m/t adds one more uniform error.
        """
        rounding = 1 / 12
        if self.key_mode == "symmetric":
            return _SIGMA**2 + rounding
        variance = _SIGMA**2 * (2 * self.size * _SECRET_VARIANCE + 1)
        if self.special_bits:
            special = self.key_moduli[1]
            variance = variance / special**2 + rounding * (1 + self.size * _SECRET_VARIANCE)
        return variance + rounding


@dataclass(frozen=True)
class Parameters:
    """One exchange under a ring: how its lanes lie in slots, and every size that follows."""

    ring: Ring  # what the keys belong to
    slot_bits: int  # log2 of the plaintext modulus; under CKKS, where slots are real, of a wide lane's limbs
    sites: int  # roster size; at most so many uploads are added
    runs: tuple[Run, ...]  # lanes of the exchange, with headroom for ``sites`` sites in every lane

    def lanes_per_slot(self, run: Run) -> int:
        """Whole lanes that share a slot; 0 where one lane needs several slots."""
        if self.ring.scheme == "ckks":
            return int(run.bits <= _MAX_SLOT_BITS)
        return self.slot_bits // run.bits

    @property
    def limb_bits(self) -> int:
        """Bits of a wide lane's lower limbs: a slot less the carries of ``sites`` additions."""
        return self.slot_bits - (self.sites - 1).bit_length()

    def limbs(self, run: Run) -> int:
        """Slots that one wide lane is spread over."""
        return 1 + max(0, -(-(run.bits - self.slot_bits) // self.limb_bits))

    def slots_of(self, run: Run) -> int:
        """Slots that a run takes."""
        share = self.lanes_per_slot(run)
        return -(-run.count // share) if share else run.count * self.limbs(run)

    @property
    def slots(self) -> int:
        """Slots that the vector takes; runs follow each other without gaps."""
        return sum(self.slots_of(run) for run in self.runs)

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts of one upload."""
        return -(-self.slots // self.ring.slots_per_ciphertext)

    @property
    def frames(self) -> int:
        """Frames of one upload: ciphertexts travel in groups of :data:`FRAME_CIPHERTEXTS`."""
        return -(-self.ciphertexts // FRAME_CIPHERTEXTS)

    def frame_ciphertexts(self, index: int) -> int:
        """Ciphertexts in one frame; only the last frame has fewer than the others."""
        return min(FRAME_CIPHERTEXTS, self.ciphertexts - index * FRAME_CIPHERTEXTS)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding: 32 bytes; every frame carries it."""
        writer = Writer().fixed(self.ring.digest, 32).uint(self.slot_bits, 1).uint(self.sites, 4)
        writer.many(self.runs, lambda w, run: w.uint(run.bits, 1).uint(run.count, 8))
        return digest(_PARAMETERS_DIGEST, writer.done())


def choose_ring(
    exchanges: Sequence[Sequence[Run]], sites: int, *, key_mode: KeyMode = "public", scheme: Scheme = "bfv"
) -> Ring:
    """The ring that sends the fewest bytes for a study's exchanges; within 1 %, the most secure one.

    ``ConfigError``: unknown mode or scheme, or too many sites; ``RangeError``: no ring carries these lanes.
    """
    if key_mode not in get_args(KeyMode):
        raise ConfigError(f"protection.key_mode = {key_mode!r}", remedy="use 'public' or 'symmetric'")
    if scheme not in get_args(Scheme):
        raise ConfigError(f"protection.scheme = {scheme!r}", remedy="use 'bfv' or 'ckks'")
    if not 1 <= sites <= MAX_SITES:
        raise ConfigError(
            f"encrypted protection is for 1 to {MAX_SITES} sites, not {sites}",
            remedy="use protection.name = 'masked', or a smaller roster",
        )
    if scheme == "ckks":  # one fixed ring: about 30 bits of precision are left after 100 additions
        return Ring(scheme, key_mode, 4096, 54, 0)
    costs: dict[Ring, int] = {}
    for ring in _rings(key_mode):
        with suppress(RangeError):  # a ring too small for one of the exchanges
            costs[ring] = sum(upload_bytes(fit(ring, runs, sites)) for runs in exchanges)
    if not costs:
        raise _no_room(max((run.bits for runs in exchanges for run in runs), default=0), sites)
    limit = 1.01 * min(costs.values())
    return min(
        (ring for ring in costs if costs[ring] <= limit), key=lambda ring: (-ring.security_bits, costs[ring])
    )


def fit(ring: Ring, runs: Sequence[Run], sites: int) -> Parameters:
    """The slots of one exchange under a ring: the fewest slots, and of those the smallest modulus.

    ``ConfigError``: the exchange has no elements; ``RangeError``: a lane does not fit the ring's slots.
    """
    runs = tuple(runs)
    if not any(run.count for run in runs):
        raise ConfigError("an exchange without elements cannot be encrypted")
    if ring.scheme == "ckks":
        return Parameters(ring, _CKKS_LIMB_BITS, sites, runs)
    top = ring.max_slot_bits(sites)
    narrow = max((run.bits for run in runs if run.bits <= _MAX_SLOT_BITS), default=0)
    carries = (sites - 1).bit_length()
    smallest = max(narrow, carries + 8)  # limbs below a byte would be absurd
    if top < smallest:
        raise _no_room(max(run.bits for run in runs), sites)
    options = (Parameters(ring, bits, sites, runs) for bits in range(smallest, top + 1))
    return min(options, key=lambda option: (option.slots, option.slot_bits))


def choose(
    runs: Sequence[Run], sites: int, *, key_mode: KeyMode = "public", scheme: Scheme = "bfv"
) -> Parameters:
    """:func:`choose_ring` and :func:`fit` for a study of one exchange."""
    return fit(choose_ring([runs], sites, key_mode=key_mode, scheme=scheme), runs, sites)


def upload_bytes(parameters: Parameters) -> int:
    """Ciphertext bytes of one upload, without the frames' headers."""
    polynomial = parameters.ring.size * parameters.ring.modulus_bits // 8
    second = polynomial if parameters.ring.key_mode == "public" else SEED_BYTES
    return parameters.ciphertexts * (polynomial + second)


@lru_cache(maxsize=256)
def ntt_prime(size: int, bits: int) -> int:
    """The largest prime of ``bits`` bits that is 1 modulo 2 * ``size`` (so that a fast transform exists)."""
    step = 2 * size
    candidate = ((1 << bits) - 1) // step * step + 1
    while candidate.bit_length() == bits:
        if _is_prime(candidate):
            return candidate
        candidate -= step
    raise RangeError(f"no prime of {bits} bits for ring size {size}")


def _rings(key_mode: KeyMode) -> list[Ring]:
    """Every ring within the 128-bit rows; symmetric encryption has no use for a special prime."""
    specials = (0, _SPECIAL_BITS) if key_mode == "public" else (0,)
    return [
        Ring("bfv", key_mode, size, modulus_bits, special_bits)
        for size, special_bits, modulus_bits in product(HE_STANDARD, specials, _MODULUS_BITS)
        if modulus_bits + special_bits <= HE_STANDARD[size][0]
    ]


def _no_room(bits: int, sites: int) -> RangeError:
    return RangeError(
        f"lanes of {bits} bits and the noise of {sites} sites do not fit any 128-bit encryption ring",
        remedy="lower protection.bits, or use protection.name = 'masked'",
    )


def _is_prime(value: int) -> bool:
    """Miller-Rabin with the first twelve primes as bases: exact below 3.3 * 10^24.

    Source: Sorenson, Webster 2015, "Strong pseudoprimes to twelve prime bases".
    """
    odd, twos = value - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        power = pow(base, odd, value)
        if power in (1, value - 1):
            continue
        for _ in range(twos - 1):
            power = pow(power, 2, value)
            if power == value - 1:
                break
        else:
            return False
    return True
