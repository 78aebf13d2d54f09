"""Where the budgets of a hospital stand, as the newest payment in each ledger says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.ledger.ledger import LEDGER, SPENT
from secfed.records.chain_file import verify_whole_lines
from secfed.runs.run_folder import ledger_file

if TYPE_CHECKING:
    from secfed.dp.accounting.budget import Budget


@dataclass(frozen=True)
class BudgetLeft:
    """What is left of one budget with a limit."""

    data: str  # the data set's name in the policy
    protects: str  # record or site
    period_days: int | None  # None for ever
    limit: float  # epsilon
    left: float  # epsilon, 0 and more
    delta: float


def ledger_standings(site: SiteFolder) -> list[dict[str, Any]]:
    """Every ledger's budgets after its newest payment; the chain is verified."""
    found = []
    for data in site.policy.load().data:
        path = ledger_file(site.state, data.name)
        if not path.is_file():
            continue
        entries = verify_whole_lines(path, site.request().identity_key, LEDGER, owner=site.name)
        payments = [entry for entry in entries if entry.kind == SPENT]
        newest = payments[-1].body if payments else {}
        found.append(
            {
                "data": data.name,
                "payments": len(payments),
                "standings": newest.get("after", []),
                "newest_s": newest.get("time_s"),
            }
        )
    return found


def budgets_left(site: SiteFolder, now: datetime) -> list[BudgetLeft]:
    """What is left of every budget of the policy that has a limit.

    What was spent counts until its period has passed since the newest payment: never less than was spent.
    """
    standings = {item["data"]: item for item in ledger_standings(site)}
    policy = site.policy.load()
    found: list[BudgetLeft] = []
    for data in policy.data:
        ledger = standings.get(data.name, {})
        after, newest_s = ledger.get("standings", ()), ledger.get("newest_s")
        found += left_after(data.name, policy.budgets(data.name), after, newest_s, now)
    return found


def left_after(
    data: str,
    budgets: Iterable[Budget],
    standings: Iterable[Mapping[str, Any]],
    newest_s: float | None,
    now: datetime,
) -> Iterator[BudgetLeft]:
    """What is left of those of a data set's budgets that have a limit, by the standings after a payment."""
    recorded = list(standings)
    for budget in budgets:
        if budget.epsilon is None:
            continue
        same = (str(budget.protects), budget.period_days, budget.delta)
        spent = 0.0
        for one in recorded:
            if (one.get("protects"), one.get("period_days"), one.get("delta")) == same:
                spent = max(spent, (one.get("spent") or {}).get("epsilon", 0.0))
        if budget.period_days is not None and newest_s is not None:
            age = timedelta(seconds=now.timestamp() - newest_s)
            spent = 0.0 if age > timedelta(days=budget.period_days) else spent
        left = max(0.0, budget.epsilon - spent)
        yield BudgetLeft(data, str(budget.protects), budget.period_days, budget.epsilon, left, budget.delta)
