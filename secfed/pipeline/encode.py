"""Fixed point: values to ring integers, by each field's bound and bits."""

from __future__ import annotations

from secfed.crypto.lanes import VectorSource
from secfed.wire.layout import Exchange, Summands
from secfed.wire.quantise import Rounding


class FixedPoint:
    """Clips every element to its field's bound, scales it, and rounds it stochastically (unbiased)."""

    def at_site(self, exchange: Exchange, summands: Summands, rounding: Rounding) -> VectorSource:
        """A reader over the ring integers; :meth:`Layout.decode` reads their sum."""
        return exchange.layout.encoder(summands, rounding)
