"""Stages: composable steps of a contribution, each with two hooks, at the site and on the total.

    summands -> [Stage, ...] -> FixedPoint -> [RingStage, ...] -> protection -> sum -> decoded -> totals

Stages before the fixed-point encoding see values (tensors and numbers), those after it ring integers, where
noise is added exactly. :meth:`Pipeline.on_total` visits them in the opposite order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from secfed.crypto.lanes import VectorSource
from secfed.pipeline.encode import FixedPoint
from secfed.wire.layout import Exchange, Summands, Totals
from secfed.wire.quantise import Rounding


class Stage:
    """Changes or measures values; override the hooks that it needs.

    Security: ``at_site`` must not make it visible outside the site whether it did anything.
    """

    def at_site(self, exchange: Exchange, summands: Summands) -> Summands:  # noqa: ARG002
        """What goes on, of what this site contributes; called once for an exchange."""
        return summands

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:  # noqa: ARG002
        """What the server program gets, of a decoded total.

        Raises:
            RangeError: a total that honest sites cannot have made.
        """
        return totals


class RingStage:
    """Changes encoded integers; called for every attempt, with the same key for one exchange."""

    def at_site(self, exchange: Exchange, source: VectorSource, noise_key: bytes) -> VectorSource:  # noqa: ARG002
        """What goes on, of this site's ring integers."""
        return source

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:  # noqa: ARG002
        """As :meth:`Stage.on_total`."""
        return totals


@dataclass(frozen=True)
class Pipeline:
    """The stages of one exchange, in order."""

    before: tuple[Stage, ...] = ()  # on values
    encode: FixedPoint = field(default_factory=FixedPoint)  # values to ring integers
    after: tuple[RingStage, ...] = ()  # in the ring

    def at_site(self, exchange: Exchange, summands: Summands) -> Summands:
        """The stages on values: once for an exchange, for what they return is kept on the disk."""
        for stage in self.before:
            summands = stage.at_site(exchange, summands)
        return summands

    def source(
        self, exchange: Exchange, summands: Summands, rounding: Rounding, noise_key: bytes | None
    ) -> VectorSource:
        """The rest, as one attempt reads it: equal rounding and key give every attempt equal integers.

        Args:
            exchange: whose layout the integers have.
            noise_key: 32 secret bytes; None without stages in the ring.
        """
        source: VectorSource = self.encode.at_site(exchange, summands, rounding)
        if noise_key is not None:
            for stage in self.after:
                source = stage.at_site(exchange, source, noise_key)
        return source

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:
        """All stages on a decoded total, the last one first."""
        stages: list[Stage | RingStage] = [*self.before, *self.after]
        for stage in reversed(stages):
            totals = stage.on_total(exchange, totals)
        return totals

    def watched(self, stage: Stage) -> Pipeline:
        """The same with one more stage, before all others."""
        return replace(self, before=(stage, *self.before))
