"""Planned dropouts of a simulation: which hospital goes silent at which stage of which round."""

from __future__ import annotations

from dataclasses import dataclass

from secfed.errors import ConfigError
from secfed.wire.stages import STAGES

_FORM = "SITE@STAGE or SITE@STAGE:ROUND, for example hospital-2@mask:3"


@dataclass(frozen=True)
class Dropout:
    """One planned dropout: from this stage on, the site no longer answers in this round."""

    site: str  # the site that goes silent; whether it is enrolled is checked where the sites are known
    stage: str  # one of :data:`STAGES`; ``train`` means before it contributes anything
    round: int | None = None  # the round, counted from 1; ``None`` means every round

    def __post_init__(self) -> None:
        if not self.site:
            raise ConfigError("--drop names no site.", remedy=f"write {_FORM}")
        if self.stage not in STAGES:
            raise ConfigError(
                f"--drop: unknown stage {self.stage!r} for site {self.site!r}.",
                remedy=f"use one of: {', '.join(STAGES)}",
            )
        if self.round is not None and self.round < 1:
            raise ConfigError(f"--drop: round {self.round} does not exist.", remedy="rounds count from 1")

    @classmethod
    def parse(cls, text: str) -> Dropout:
        """Read ``SITE@STAGE`` or ``SITE@STAGE:ROUND``; a site id may itself contain ``@`` or ``:``.

        Raises:
            ConfigError: another form, an unknown stage, or a round that is not a number from 1.
        """
        site, at, where = text.rpartition("@")
        if not at:
            raise ConfigError(f"--drop {text!r} is not of the form SITE@STAGE.", remedy=f"write {_FORM}")
        stage, colon, number = where.partition(":")
        if not colon:
            return cls(site, stage)
        if not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise ConfigError(f"--drop {text!r}: {number!r} is not a round number.", remedy=f"write {_FORM}")
        return cls(site, stage, int(number))

    def __str__(self) -> str:
        return f"{self.site}@{self.stage}" + ("" if self.round is None else f":{self.round}")
