"""What one secure sum of DRO numbers tells everybody, and how it travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

import torch

from secfed.errors import MalformedMessage
from secfed.wire.layout import State

_SUMS: Final = "dro/sums"
_MEMBERS: Final = "dro/members"
_ROUND: Final = "dro/round"


@dataclass(frozen=True)
class DroAnswer:
    """What one secure sum tells everybody."""

    round: int  # of the losses it is about
    sums: tuple[float, ...]  # (sum a, sum a^2) for chi2; the power sums for kl
    members: tuple[bool, ...]  # for each site, in the order of sorted ids, whether its summand is in the sums

    NAMES: ClassVar[tuple[str, ...]] = (_SUMS, _MEMBERS, _ROUND)  # of its tensors in a broadcast

    @property
    def n(self) -> int:
        """How many sites are in the sums."""
        return sum(self.members)

    def to_state(self) -> State:
        """As float64 tensors, to travel in a broadcast or a checkpoint."""
        return {
            _SUMS: torch.tensor(self.sums, dtype=torch.float64),
            _MEMBERS: torch.tensor(self.members, dtype=torch.float64),
            _ROUND: torch.tensor(float(self.round), dtype=torch.float64),
        }

    @classmethod
    def from_state(cls, state: State) -> Self | None:
        """Read it back from a state that may hold other things; None if there is no answer in it."""
        parts = [state.get(name) for name in cls.NAMES]
        if all(part is None for part in parts):
            return None
        sums, members, number = (None if part is None else part.to(torch.float64) for part in parts)
        if sums is None or members is None or number is None or (sums.ndim, members.ndim) != (1, 1):
            raise malformed("is incomplete")
        if not bool(torch.isfinite(sums).all()) or number.ndim or not float(number).is_integer():
            raise malformed("holds numbers that no sum has")
        if not bool(((members == 0.0) | (members == 1.0)).all()) or not bool(members.any()):
            raise malformed("has a member list of other values than 0 and 1, or an empty one")
        return cls(int(number), tuple(sums.tolist()), tuple(bool(one) for one in members.tolist()))


def malformed(what: str) -> MalformedMessage:
    """The error for an answer that no honest aggregator of this study gives."""
    return MalformedMessage(f"the DRO answer {what}", remedy="aggregator and sites must run one version")
