"""What the files of a hospital say, as metrics: approvals, pause, certificate and budgets.

Read again for every request, whether or not a study is served. A file that cannot be read takes its metrics
away, so that an alarm on their absence notices it; the agent's log says why, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.agent import control
from secfed.deploy.agent.budgets import BudgetLeft, budgets_left
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import SecfedError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("secfed.agent")

_Stamp = tuple[tuple[str, int, int], ...]  # of ledgers and policy: name, time of the last change, size


class SiteMetrics:
    """A collector of ``prometheus_client`` over one hospital's folder."""

    def __init__(self, site: SiteFolder, now: Callable[[], datetime] = utc_now) -> None:
        self._site, self._now = site, now
        self._told = ""  # what was logged last
        self._read: tuple[_Stamp, list[BudgetLeft]] | None = None  # to verify a ledger takes a while

    def collect(self) -> Iterator[Metric]:
        """The metrics as the files are now."""
        from prometheus_client.core import GaugeMetricFamily

        paused = control.is_paused(self._site.state)
        yield GaugeMetricFamily("secfed_agent_paused", "Whether the agent takes no new work.", value=paused)
        trouble = ""
        for read in (self._approvals, self._certificate, self._budgets):
            try:
                yield from read()
            except (SecfedError, OSError) as error:
                trouble = str(error)
        if trouble and trouble != self._told:
            log.warning("some metrics are missing: %s", trouble)
        self._told = trouble

    def _approvals(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        known = Approvals(self._site.approvals_path).all()
        held = sum(item.state is ApprovalState.HELD for item in known)
        text = "Studies that wait for a person of this hospital."
        yield GaugeMetricFamily("secfed_agent_held_studies", text, value=held)

    def _certificate(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        certificate = self._site.tls.certificate()
        if certificate is not None:
            days = (certificate.not_valid_after_utc - self._now()) / timedelta(days=1)
            text = "Days until this hospital's certificate ends; negative after that."
            yield GaugeMetricFamily("secfed_agent_certificate_days", text, value=days)

    def _budgets(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ("data", "protects", "period_days")
        left = GaugeMetricFamily("secfed_agent_budget_left", "Epsilon that is left.", labels=labels)
        limit = GaugeMetricFamily("secfed_agent_budget_limit", "Epsilon of the policy.", labels=labels)
        for item in self._budgets_left():
            period = "" if item.period_days is None else str(item.period_days)
            left.add_metric((item.data, item.protects, period), item.left)
            limit.add_metric((item.data, item.protects, period), item.limit)
        yield left
        yield limit

    def _budgets_left(self) -> list[BudgetLeft]:
        paths = [self._site.policy_path, *sorted(self._site.state.glob("ledger-*.jsonl"))]
        found = [(path.name, path.stat()) for path in paths]
        hour = int(self._now().timestamp()) // 3600  # a period may have ended
        stamp = (("", hour, 0), *((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, budgets_left(self._site, self._now())
        return self._read[1]
