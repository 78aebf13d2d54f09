"""When to stop a study whose rounds cannot come to a sum any more: every one of them costs hospitals budget.

A hospital pays before it works. If so many of those that were asked refuse for one and the same reason that
the rest is too few, the next round will end alike, so the run is stopped after the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from secfed.errors import BudgetExceeded, PolicyRefused, RosterError, SecfedError, StudyStopped
from secfed.protection.interface import SiteId

BEGINNINGS: Final = ("keys", "train")  # stages in which an exchange begins

_REMEDIES: Final = {
    RosterError.__name__: "the hospitals have pinned another roster: begin the study anew, under another "
    "name, once each of them has run: secfed site trust ROSTER",
    BudgetExceeded.__name__: "the hospitals' budgets are used up; end the study with --end",
}
_REMEDY: Final = (
    "when the reason is gone, run the same command again to go on; or end the study with what it has: --end"
)


@dataclass(frozen=True)
class Refusal:
    """One hospital's refusal: the stage, and what it said."""

    stage: str
    kind: str
    reason: str


def standstill(
    number: int,
    asked: Collection[SiteId],
    needed: int,
    refusals: Mapping[SiteId, Refusal],
    failed: Callable[[Collection[SiteId]], Collection[SiteId]] = lambda _sites: (),
) -> StudyStopped | None:
    """Why to go no further after a round without a sum; None if the next one may come to a sum.

    ``failed`` says which of some hospitals take no part until something there is put right, a full disk for
    example. No exchange begins without a hospital that it needs, so they are waited for, like those that take
    no part now.
    """
    alike = Counter(
        (said.kind, said.reason)
        for site, said in refusals.items()
        # Who does not take part *now* is waited for: no exchange begins until enough of them do.
        if site in asked and not (said.stage in BEGINNINGS and said.kind == PolicyRefused.__name__)
    )
    for (kind, reason), count in alike.most_common(1):
        if len(asked) - count < needed:
            those = {site for site in asked if (said := refusals.get(site)) and said.reason == reason}
            if kind == SecfedError.__name__ and those <= set(failed(those)):
                return None
            return StudyStopped(
                f"round {number}: {count} of {len(asked)} hospitals refused alike, and a sum needs {needed}: "
                f"{reason or kind}; further rounds would only cost their budgets",
                remedy=_REMEDIES.get(kind, _REMEDY),
            )
    return None
