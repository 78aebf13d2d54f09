"""How much of the updates fixed point clipped, for a simulation to say: ``protection.bound`` is set by hand.

A bound that is too small changes every mean without a word. In a simulation the values of all sites are
there, so it can be counted; in a study the share of one hospital's clipped values is its own business.
"""

from __future__ import annotations

import torch

from secfed.algorithms.framework.base import ForwardingProgram, SiteProgram
from secfed.wire.layout import Exchange, State, Summands


class Clipping:
    """The largest share of one contribution's numbers that were beyond the bound, over a whole run.

    Args:
        bound: ``protection.bound``; fields with another one (counts, losses) are not looked at.

    Attributes:
        share: from 0 to 1.
        round: when that was; 0 while nothing was clipped.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self.share, self.round = 0.0, 0

    def watch(self, program: SiteProgram) -> SiteProgram:
        """The same program, watched; simulation only."""
        return _Watched(program, self)

    def count(self, round_number: int, exchange: Exchange, summands: Summands) -> None:
        """Look at one contribution."""
        beyond = elements = 0
        for field in exchange.layout.fields:
            if field.bound == self._bound and field.name in summands:
                beyond += int((torch.as_tensor(summands[field.name]).abs() > field.bound).sum())
                elements += field.elements
        if elements and beyond / elements > self.share:
            self.share, self.round = beyond / elements, round_number


class _Watched(ForwardingProgram):
    """A site program of a simulation; all but ``contribute`` is the program's own."""

    def __init__(self, program: SiteProgram, clipping: Clipping) -> None:
        super().__init__(program)
        self._clipping = clipping

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """What the program contributes, after a look at it."""
        summands = super().contribute(round_number, exchange, broadcast)
        self._clipping.count(round_number, exchange, summands)
        return summands
