"""A site's DRO weight over the rounds: one summand per round, and every answer used once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Self

import torch

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.rule import DroRule
from secfed.errors import MalformedMessage, Replay
from secfed.wire.layout import State, Summands

_NAME: Final = "dro/site_weight"


@dataclass(frozen=True, repr=False)
class SiteWeight:
    """What a site keeps, and nobody else may see.

    Security: single-site values. Save it with the site's private state only.
    """

    weight: float  # l_i
    count: int  # n of the last answer seen, a member of it or not
    loss: float = 0.0  # of the summand that waits for its answer
    round: int = 0  # of the last summand; 0 before the first
    waiting: bool = False  # whether that summand's answer has not been used yet

    @classmethod
    def start(cls, rule: DroRule) -> Self:
        """Before the first round: equal weights."""
        return cls(weight=rule.initial, count=len(rule.sites))

    def offer(self, rule: DroRule, round_number: int, loss: float) -> tuple[Self, Summands]:
        """The summand of a round, and the state that waits for its answer; a weight without answer stays.

        Raises:
            Replay: this round or a later one has had its summand. A second one, with another weight or
                over other survivors, would let the difference out.
        """
        if round_number <= self.round:
            message = f"round {round_number} has had its DRO numbers already"
            raise Replay(message, remedy="an exchange is repeated with the same summand, or not at all")
        summand = rule.summand(self.weight, loss)
        return replace(self, loss=loss, round=round_number, waiting=True), summand

    def apply(self, rule: DroRule, site: str, answer: DroAnswer | None) -> Self:
        """Use an answer, whenever it comes; the same answer again changes nothing."""
        if answer is None:
            return self
        # Whether this site waits follows from whether its loss could be measured, so it decides no refusal.
        rule.check(answer)
        if not self.waiting or answer.round != self.round:
            return self
        weight = rule.weight(site, self.weight, self.loss, answer)
        return replace(self, weight=weight, count=answer.n, loss=0.0, waiting=False)

    def scale(self, rule: DroRule) -> float:
        """The site's step scale now."""
        return rule.step_scale(self.weight, self.count)

    def save(self) -> State:
        """As one float64 tensor."""
        numbers = [self.weight, float(self.count), self.loss, float(self.round), float(self.waiting)]
        return {_NAME: torch.tensor(numbers, dtype=torch.float64)}

    @classmethod
    def load(cls, state: State) -> Self:
        """From :meth:`save`, in a state that may hold other things; a KeyError if it holds no weight."""
        numbers = state[_NAME].flatten().tolist()
        if len(numbers) != 5 or not all(map(math.isfinite, numbers)):
            raise MalformedMessage(
                "the robust weight that a site kept is damaged",
                remedy="restore the site's state folder from a backup, or start the study with an empty one",
            )
        weight, count, loss, number, waiting = numbers
        return cls(weight, int(count), loss, int(number), bool(waiting))
