"""A stage of a round of vision-language pre-training: one secure sum, and what a site does before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from secfed.wire.layout import Exchange

EVALUATE: Final = "evaluate"
EVERYONE: Final = "all"
JOINT: Final = "joint"  # what a stage that trains everything is called, in every algorithm
ALIGN: Final = "align"
LOSS: Final = "loss"

Measures = Literal["received", "trained"]


@dataclass(frozen=True)
class Stage:
    """One exchange and what happens in it.

    Equal names give batches in equal order; a name is also that of the work under ``[privacy]``. Robust
    weights are made from the loss of the "received" model, before any step, or of the site's own "trained"
    one.
    """

    name: str
    exchange: Exchange
    summed: tuple[str, ...] = ()  # parameters whose update is summed
    trained: tuple[str, ...] = ()  # parameters that move
    steps: int = 0
    weighted: bool = False  # whether a site's robust weight scales its steps
    measures: Measures | None = None

    @property
    def evaluates(self) -> bool:
        """Whether the received model is evaluated."""
        return any(field.name.startswith("eval/") for field in self.exchange.layout.fields)
