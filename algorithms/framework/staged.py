"""What algorithms share whose rounds consist of planned stages, each one secure sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from secfed.algorithms.framework.base import (
    PARAMETERS,
    Algorithm,
    PlannedExchange,
    SiteId,
    check_round,
    planned_for,
)
from secfed.algorithms.framework.kinds import KindOptions, Parts
from secfed.config.sections import ProtectionSection
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field, Layout

StageT = TypeVar("StageT", bound=PlannedExchange)


class Staged(Algorithm, Generic[StageT]):
    """The exchanges of an algorithm, as those of its stages."""

    @abstractmethod
    def stages(self, round_number: int) -> Sequence[StageT]:
        """The exchanges of one round, and what each is for; WrongState if the study has no such round."""

    def stage(self, round_number: int, exchange: Exchange) -> StageT:
        """What an exchange is for; WrongState if the round has no such exchange."""
        return planned_for(exchange, round_number, self.stages(round_number))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """The sums of one round, in order."""
        return tuple(stage.exchange for stage in self.stages(round_number))

    def field_words(self) -> Mapping[str, str]:
        """Of what algorithms of stages sum."""
        scores = "metrics over held-out records"
        words = {"update": PARAMETERS, "weight": "the weight", "loss": "the training loss"}
        return {**words, "eval": scores, "score": scores}


@dataclass(frozen=True, kw_only=True)
class RoundPlan(ABC, Generic[StageT]):
    """A study computed from public facts alone: which sums, and who takes part in each."""

    protection: ProtectionSection
    rounds: int
    seed: int  # here it only samples sites
    privacy: PrivacySection | None = None

    @property
    @abstractmethod
    def sites(self) -> tuple[SiteId, ...]:
        """All sites."""

    @property
    @abstractmethod
    def scoring(self) -> tuple[StageT, ...]:
        """The stages that measure the model, by sums without noise."""

    @abstractmethod
    def round_stages(self, round_number: int) -> Sequence[StageT]:
        """The exchanges of one round that the study has, in order."""

    @abstractmethod
    def members(self, stage: StageT, round_number: int) -> Sequence[SiteId]:
        """The sites that are asked for one exchange."""

    def left_out(self) -> Sequence[SiteId]:
        """See :meth:`Algorithm.left_out`."""
        return ()

    def builds_on(self, stage: StageT, round_number: int) -> Sequence[str]:
        """See :meth:`Algorithm.builds_on`."""
        del stage, round_number
        return ()

    def contributors(self, stage: StageT, round_number: int) -> Parts:
        """See :meth:`Algorithm.contributors`."""
        del stage, round_number
        return ()

    def stages(self, round_number: int) -> Sequence[StageT]:
        """The exchanges of one round, in order; :class:`WrongState` if the study has no such round."""
        check_round(round_number, self.rounds)
        return self.round_stages(round_number)

    def stage(self, round_number: int, exchange: Exchange) -> StageT:
        """What an exchange is for; :class:`WrongState` if the round has no such exchange."""
        return planned_for(exchange, round_number, self.stages(round_number))

    def least_sites(self, min_group: int) -> int:
        """The smallest cohort that a sum is planned for, the same under every protection.

        A masked site refuses a cohort in which the tolerated colluders could leave it alone, and no sum comes
        about among fewer sites than must answer; under site-level privacy their noise is what was paid for.
        """
        rules = self.protection
        colluders = rules.colluders_for(len(self.sites))
        return max(min_group, rules.min_cohort, colluders + 2, rules.threshold or 0)

    def fewest_sites(self, min_group: int) -> int:
        """Fewest sites that may add more than zeros to a part of a sum: two honest ones, whoever colludes.

        A zero hides nothing, so :meth:`least_sites` of a cohort are not enough where some members add zeros.
        """
        return max(min_group, self.protection.colluders_for(len(self.sites)) + 2)

    def fewest_of_a_kind(self, options: KindOptions, min_group: int) -> int:
        """Fewest sites of a kind in a sum with others; see :mod:`secfed.algorithms.framework.kinds`.

        Raises:
            ConfigError: small kinds are to be summed, and something would be hidden.
        """
        if options.small_kinds == "left-out":
            return self.fewest_sites(min_group)
        if self.protection.name != "plain":
            raise ConfigError(
                f'algorithm.small_kinds: "summed" hides nobody of a small kind, and protection.name is '
                f'"{self.protection.name}"',
                remedy='leave it out, or set protection.name = "plain" for research without protection',
            )
        return 1

    @property
    def scores(self) -> bool:
        """Whether the model is measured, by sums without noise."""
        return self.privacy is None or self.privacy.metrics == "unprotected"

    def sums_losses(self, *, drawn: bool) -> bool:
        """Whether training losses are summed; ``drawn``: over sites that are drawn anew in every round.

        Security: losses change slowly, so that sums over changing samples are as many equations as rounds
        for as many numbers as sites, and can be solved (docs/adr/031).
        """
        return self.privacy is None and (not drawn or self.protection.name == "plain")

    def unprotected(self, exchange: Exchange) -> tuple[str, ...]:
        """Fields that leave without noise under ``[privacy]``: those of scoring."""
        leaves = self.privacy is not None and self.scores
        if not leaves or exchange not in {stage.exchange for stage in self.scoring}:
            return ()
        return tuple(field.name for field in exchange.layout.fields)

    def exchange(self, name: str, cohort: str, fields: Sequence[Field]) -> Exchange:
        """A sum with room for all sites of the study."""
        return Exchange(name, cohort, Layout(tuple(fields), sites=len(self.sites)))

    def updates(self, shapes: Mapping[str, tuple[int, ...]], names: Sequence[str]) -> list[Field]:
        """A field ``update/parameter`` for each of these, with the study's bound and bits."""
        bound, bits = self.protection.bound, self.protection.bits
        return [Field(f"update/{name}", shapes[name], bound, bits) for name in names]


class PlannedStages(Staged[StageT]):
    """Stages and cohorts as :attr:`plan` has them, which subclasses set."""

    plan: RoundPlan[StageT]

    def stages(self, round_number: int) -> Sequence[StageT]:
        """As the plan has them."""
        return self.plan.stages(round_number)

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[SiteId]) -> Sequence[SiteId]:
        """Who is asked: whom the plan names, as far as they are enrolled."""
        wanted = set(self.plan.members(self.stage(round_number, exchange), round_number))
        return tuple(site for site in sites if site in wanted)

    def contributors(self, round_number: int, exchange: Exchange) -> Parts:
        """As the plan has them."""
        return self.plan.contributors(self.stage(round_number, exchange), round_number)

    def left_out(self) -> Sequence[SiteId]:
        """As the plan has them."""
        return self.plan.left_out()

    def builds_on(self, round_number: int, exchange: Exchange) -> Sequence[str]:
        """As the plan has it."""
        return self.plan.builds_on(self.stage(round_number, exchange), round_number)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields of scoring, under ``[privacy]``."""
        return self.plan.unprotected(exchange)
