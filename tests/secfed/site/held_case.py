"""A study in which one site has not taken the newest sum yet, so that it can be given others instead."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import pytest

from secfed.crypto.encrypted.messages import ClosedSum, Summed
from secfed.errors import SecfedError, WrongState
from secfed.server.opened_rounds import OpenedRounds
from secfed.site.opening_session import OpeningSession
from secfed.wire.frames import Notice
from tests.secfed.site.closed_case import SITE

SumT = TypeVar("SumT", ClosedSum, Summed)


@dataclass
class HeldSum(Generic[SumT]):
    """The site, the aggregator, and the honest sums up to the one that the site waits for."""

    site: OpeningSession
    rounds: OpenedRounds
    sums: list[SumT]

    @property
    def last(self) -> SumT:
        return self.sums[-1]

    def with_a_copy(self) -> Self:
        """The same with a copy of the site, which a test may bring into another state."""
        site = copy.copy(self.site)
        site._local, site.replica = copy.copy(site._local), copy.deepcopy(site.replica)
        return replace(self, site=site)

    def give(self, summed: SumT) -> None:
        self.site.handle(Notice(summed.encode()).encode())

    def refused(self, summed: SumT, number: int) -> None:
        """Refused by this number, with the state as it was."""
        sums, tag = self.site.sums, self.site._state_tag()
        with pytest.raises(SecfedError, match=rf"^refusal {number}: "):
            self.give(summed)
        assert (self.site.sums, self.site._state_tag()) == (sums, tag)

    def is_stopped(self) -> bool:
        """Whether the site has stopped the study; if not, it takes the honest sum."""
        try:
            self.give(self.last)
        except WrongState as error:
            return "stopped the study" in error.message
        return False


def hold_back(patch: pytest.MonkeyPatch) -> None:
    """From round 2 on the site takes no sum."""
    take = OpeningSession._take

    def all_but_the_last(self: OpeningSession, one: ClosedSum | Summed) -> None:
        if self._identity.name != SITE or one.spec.round < 2:
            take(self, one)

    patch.setattr(OpeningSession, "_take", all_but_the_last)
