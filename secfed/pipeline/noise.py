"""Noise in the sum: every site adds its integer share in the ring, and totals are tested for it."""

from __future__ import annotations

from dataclasses import replace

from secfed.crypto.lanes import VectorSource
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.pipeline.stage import RingStage
from secfed.wire.layout import Exchange, Totals


class NoiseShare(RingStage):
    """One site's share of the noise; :meth:`SiteNoise.event` says what a sum with it spends."""

    def __init__(self, noise: SiteNoise) -> None:
        self._noise = noise

    def at_site(self, exchange: Exchange, source: VectorSource, noise_key: bytes) -> VectorSource:  # noqa: ARG002
        """The same integers with noise from this key."""
        return self._noise.noised(source, noise_key)

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:  # noqa: ARG002
        """The norm test (:meth:`SiteNoise.check_totals`), and how much noise there is."""
        self._noise.check_totals(totals)
        return replace(totals, noise=self._noise.deviation(len(totals.survivors)))
