"""All attacks, by protection, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secfed.attack.attack import Attack, AttackSetting, Impossible, Protection, attack
from secfed.attack.evidence import Finding
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError


@attack(
    "ghost-survivors",
    "presents one upload as the sum of all, for the hospitals to decrypt",
    who="the aggregator, and a hospital that only looks",
    on="encrypted",
    refusals=(Refusal.SUM_TAG,),
)
def ghosts(setting: AttackSetting) -> Finding:
    """Played beside attacks on masked sums as well, where the extra that encryption needs may be missing."""
    try:
        from secfed.attack.encrypted import ghost_survivors
    except ConfigError:
        raise Impossible("needs the extra he") from None
    return ghost_survivors(setting)


def attacks_on(protection: Protection) -> tuple[Attack, ...]:
    """Every attack on a protection, in the table's order; ConfigError without the extra that it needs."""
    if protection == "plain":
        from secfed.attack.plain import PLAIN

        return PLAIN
    if protection == "masked":
        from secfed.attack.downgrade import downgrade
        from secfed.attack.few_records import FEW_RECORDS
        from secfed.attack.later_statistics import later_statistics
        from secfed.attack.liars import framing
        from secfed.attack.lone_work import LONE_WORK
        from secfed.attack.masked import MASKED
        from secfed.attack.silence import SILENCE
        from secfed.attack.small_cells import SMALL_CELLS
        from secfed.attack.twins import TWINS
        from secfed.attack.two_results import TWO_RESULTS

        # What leaks around a sum leaks under every protection, and is played once.
        return (
            *MASKED,
            *LONE_WORK,
            *SILENCE,
            *TWINS,
            *SMALL_CELLS,
            *FEW_RECORDS,
            *TWO_RESULTS,
            later_statistics,
            ghosts,
            framing,
            downgrade,
        )
    if protection == "closed":
        from secfed.attack.closed import CLOSED

        return CLOSED
    from secfed.attack.encrypted import ENCRYPTED  # needs an extra

    return (*ENCRYPTED, ghosts)


@dataclass(frozen=True)
class Outcome:
    """How an attack ended; ``evidence`` is None where it could not be played, for ``reason``."""

    attack: Attack
    evidence: Finding | None
    reason: str = ""

    @property
    def as_documented(self) -> bool:
        """Whether that is what the documents say."""
        return self.evidence is None or self.attack.as_documented(self.evidence)

    @property
    def ended(self) -> str:
        """The end, in words."""
        if self.evidence is None:
            return f"not played: {self.reason}"
        ending = f"{self.evidence.learned} learned"
        undefended = not self.as_documented and self.evidence.learned == self.attack.expected
        return f"{ending}, but what should stop it did not" if undefended else ending


def run_attacks(
    attacks: Sequence[Attack], setting: AttackSetting, progress: Callable[[Attack], None] = lambda _: None
) -> list[Outcome]:
    """Run attacks one after the other, each on a consortium of its own; ``progress`` hears of each first."""
    outcomes = []
    for one in attacks:
        progress(one)
        try:
            outcomes.append(Outcome(one, one.run(setting)))
        except Impossible as reason:
            outcomes.append(Outcome(one, None, str(reason)))
    return outcomes
