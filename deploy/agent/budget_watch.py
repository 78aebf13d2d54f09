"""Budgets of a hospital's data sets of which little is left, for :mod:`secfed.deploy.agent.site_watch`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from secfed.deploy.agent.budgets import left_after
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.message import Event
from secfed.deploy.notification.outbox import Seen
from secfed.dp.ledger.ledger import SPENT
from secfed.runs.run_folder import ledger_file

_ENOUGH: Final = 1.25  # a budget that is this much above the mark is no longer low: it may waver at the mark
_TAIL_BYTES: Final = 1 << 16  # of a ledger; its newest payment is near the end


class BudgetWatch:
    """Looks at the ledgers of one hospital."""

    def __init__(self, site: SiteFolder, now: Callable[[], datetime]) -> None:
        self._site, self._now = site, now
        self._payments: dict[Path, tuple[tuple[int, int], Mapping[str, Any]]] = {}

    def look(self) -> Seen:
        """The policy's budgets as they are now, against what the newest payment says was spent of each."""
        holds, over, mark = {}, [], self._site.settings.notifications.low_budget
        policy = self._site.policy.load()  # that in force, as of the agent: an invalid file mutes nothing
        for data in policy.data:
            payment = self._payment(ledger_file(self._site.state, data.name))
            after, paid_s = payment.get("after", ()), payment.get("time_s")
            budgets = policy.budgets(data.name) if payment else ()
            for item in left_after(data.name, budgets, after, paid_s, self._now()):
                days = item.period_days
                key = f"budget/{item.data}/{item.protects}/{item.delta:g}/{days}/"  # also with another limit
                if item.left < mark * item.limit:
                    percent = math.floor(100 * item.left / item.limit)
                    span = "in all" if days is None else f"in {days} days"
                    holds[key] = Event(
                        "budget.low",
                        item.data,
                        f"{percent} % is left of a budget of data set {item.data}: "
                        f"epsilon {item.limit:g} for each {item.protects} {span}",
                        "secfed agent status shows it; studies that need more will be refused",
                        {
                            "data": item.data,
                            "left_percent": percent,
                            "epsilon": item.limit,
                            "period_days": days,
                        },
                    )
                elif item.left >= min(1.0, _ENOUGH * mark) * item.limit:
                    over.append(key)
        return Seen(holds, over)

    def _payment(self, path: Path) -> Mapping[str, Any]:
        """The newest payment in a ledger; read again when the file has changed.

        Not verified: the agent verifies it with each payment, and here nothing is decided by it.
        """
        try:
            found = path.stat()
        except FileNotFoundError:
            return {}
        version = (found.st_mtime_ns, found.st_size)
        known = self._payments.get(path)
        if known is None or known[0] != version:
            known = self._payments[path] = version, newest_payment(path)
        return known[1]


def newest_payment(path: Path) -> Mapping[str, Any]:
    """The newest payment in a ledger; empty before the first."""
    with path.open("rb") as stream:
        end = stream.seek(0, 2)
        size = _TAIL_BYTES
        while True:
            start = stream.seek(max(0, end - size))
            for line in reversed(stream.read(end - start).splitlines()):
                try:
                    entry = json.loads(line)
                    if entry["kind"] == SPENT and isinstance(entry["body"], dict):
                        return entry["body"]
                except (ValueError, KeyError, TypeError):
                    continue  # the first line of a part, or one that is half written
            if start == 0:
                return {}
            size *= 4
