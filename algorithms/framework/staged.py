"""What algorithms share whose rounds consist of planned stages, each one secure sum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from secfed.algorithms.framework.base import Algorithm, PlannedExchange, SiteId, check_round, planned_for
from secfed.wire.layout import Exchange

StageT = TypeVar("StageT", bound=PlannedExchange)


class Staged(Algorithm, Generic[StageT]):
    """The exchanges of an algorithm, as those of its stages."""

    @abstractmethod
    def stages(self, round_number: int) -> Sequence[StageT]:
        """The exchanges of one round, and what each is for.

        Raises:
            WrongState: the study has no such round.
        """

    def stage(self, round_number: int, exchange: Exchange) -> StageT:
        """What an exchange is for.

        Raises:
            WrongState: the study has no such exchange in this round.
        """
        return planned_for(exchange, round_number, self.stages(round_number))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """The sums of one round, in order.

        Raises:
            WrongState: the study has no such round.
        """
        return tuple(stage.exchange for stage in self.stages(round_number))


class RoundPlan(Protocol[StageT]):
    """A study computed from public facts alone: which sums, and who takes part in each."""

    @property
    def rounds(self) -> int:
        """Training rounds."""
        ...

    def stages(self, round_number: int) -> Sequence[StageT]:
        """The exchanges of one round, in order."""
        ...

    def members(self, stage: StageT, round_number: int) -> Sequence[SiteId]:
        """The sites that are asked for one exchange."""
        ...

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise under ``[privacy]``."""
        ...


class PlannedStages(Staged[StageT]):
    """Stages and cohorts as a plan has them.

    Attributes:
        plan: of the study; subclasses set it.
    """

    plan: RoundPlan[StageT]

    def stages(self, round_number: int) -> Sequence[StageT]:
        """See :meth:`Staged.stages`."""
        check_round(round_number, self.plan.rounds)
        return self.plan.stages(round_number)

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """Who is asked: whom the plan names, as far as they are enrolled."""
        wanted = set(self.plan.members(self.stage(round_number, exchange), round_number))
        return tuple(site for site in sites if site in wanted)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields that leave without noise although the study has ``[privacy]``: those of scores."""
        return self.plan.unprotected(exchange)
