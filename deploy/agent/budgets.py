"""Where the budgets of a hospital stand, as the newest payment in each ledger says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.ledger.ledger import SPENT, verify
from secfed.runs.run_folder import ledger_file


@dataclass(frozen=True)
class BudgetLeft:
    """What is left of one budget with a limit."""

    data: str  # the data set's name in the policy
    protects: str  # record or site
    period_days: int | None  # None for ever
    limit: float  # epsilon
    left: float  # epsilon, 0 and more


def ledger_standings(site: SiteFolder) -> list[dict[str, Any]]:
    """Every ledger's budgets after its newest payment; the chain is verified."""
    found = []
    for data in site.policy.load().data:
        path = ledger_file(site.state, data.name)
        if not path.is_file():
            continue
        with path.open("rb") as lines:
            entries = verify(lines, site.request().identity_key, owner=site.name)
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
    policy, found = site.policy.load(), []
    for data in policy.data:
        ledger = standings.get(data.name, {})
        for budget in policy.budgets(data.name):
            if budget.epsilon is None:
                continue
            spent = 0.0
            for one in ledger.get("standings", ()):
                same = (one.get("protects"), one.get("period_days")) == (
                    str(budget.protects),
                    budget.period_days,
                )
                if same and one.get("delta") == budget.delta:
                    spent = max(spent, (one.get("spent") or {}).get("epsilon", 0.0))
            newest_s = ledger.get("newest_s")
            if budget.period_days is not None and newest_s is not None:
                age = timedelta(seconds=now.timestamp() - newest_s)
                spent = 0.0 if age > timedelta(days=budget.period_days) else spent
            left = max(0.0, budget.epsilon - spent)
            found.append(
                BudgetLeft(data.name, str(budget.protects), budget.period_days, budget.epsilon, left)
            )
    return found
