"""All attacks, by protection, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secfed.attack.attack import Attack, Impossible, Protection, Setting
from secfed.attack.evidence import Evidence


def attacks_on(protection: Protection) -> tuple[Attack, ...]:
    """Every attack on a protection, in the order of the table.

    Raises:
        ConfigError: encrypted protection is not installed.
    """
    if protection == "plain":
        from secfed.attack.plain import PLAIN

        return PLAIN
    if protection == "masked":
        from secfed.attack.masked import MASKED

        return MASKED
    from secfed.attack.encrypted import ENCRYPTED  # needs an extra

    return ENCRYPTED


@dataclass(frozen=True)
class Outcome:
    """How an attack ended.

    Attributes:
        attack: which.
        evidence: what it brought; None where the consortium is too small for it.
    """

    attack: Attack
    evidence: Evidence | None

    @property
    def as_documented(self) -> bool:
        """Whether that is what the documents say."""
        return self.evidence is None or self.attack.as_documented(self.evidence)


def run_attacks(
    attacks: Sequence[Attack], setting: Setting, progress: Callable[[Attack], None] = lambda _: None
) -> list[Outcome]:
    """Run attacks one after the other, each on a consortium of its own.

    Args:
        attacks: which.
        setting: the consortium.
        progress: told of each attack before it begins.
    """
    outcomes = []
    for attack in attacks:
        progress(attack)
        try:
            evidence = attack.run(setting)
        except Impossible:
            evidence = None
        outcomes.append(Outcome(attack, evidence))
    return outcomes
