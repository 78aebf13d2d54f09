"""What all parties derive from a study under encrypted protection: ring, parameters, key holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto.codec import Buffer, Reader, Writer
from secfed.crypto.encrypted.bfv import KeyMode, Parameters, Ring, Scheme, choose_ring, fit
from secfed.crypto.messages import DIGEST_BYTES
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Exchange


@dataclass(frozen=True)
class EncryptedPlan:
    """One study's encryption.

    Attributes:
        ring: what the study's keys are for.
        holder: the site that makes the keys.
    """

    ring: Ring
    holder: str

    @classmethod
    def derive(
        cls,
        algorithm: Algorithm,
        rounds: int,
        sites: Sequence[str],
        *,
        key_mode: KeyMode,
        scheme: Scheme,
        holder: str | None,
    ) -> EncryptedPlan:
        """The same at every party, because it depends on the study alone.

        Raises:
            ConfigError: no ring fits the study's lanes, or the key holder is not a site.
        """
        numbers = {1, rounds, rounds + 1} - {0}
        runs = [plan.layout.shape.runs for number in sorted(numbers) for plan in algorithm.exchanges(number)]
        try:
            ring = choose_ring(runs, len(sites), key_mode=key_mode, scheme=scheme)
        except RangeError as error:
            raise ConfigError(f"protection.bits: {error.message}", remedy=error.remedy) from None
        chosen = sorted(sites)[0] if holder is None else holder
        if chosen not in sites:
            raise ConfigError(
                f"protection.key_holder: {chosen!r} is not a site of the study",
                remedy=f"name one of {', '.join(sites)}",
            )
        return cls(ring, chosen)

    def parameters(self, exchange: Exchange) -> Parameters:
        """How one exchange lies in ciphertexts."""
        return fit(self.ring, exchange.layout.shape.runs, exchange.layout.sites)


def encode_expected(sums: int, state_digest: bytes) -> bytes:
    """What a task carries instead of a state: how many sums, and which state they lead to."""
    return Writer().uint(sums, 4).fixed(state_digest, DIGEST_BYTES).done()


def decode_expected(data: Buffer) -> tuple[int, bytes]:
    """The inverse of :func:`encode_expected`.

    Raises:
        MalformedMessage: not that.
    """
    reader = Reader(data)
    sums, digest = reader.uint(4), reader.fixed(DIGEST_BYTES)
    reader.end()
    return sums, digest
