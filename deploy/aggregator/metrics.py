"""What a Prometheus of the study centre can watch: studies, hospitals by state, and when certificates end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.study_server import Presence

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_THERE, _AWAY = "there", "away"
_STATES: Final = (_THERE, _AWAY, *map(str, Absence))

Seen = Callable[[], tuple[int, Mapping[str, Presence]]]  # the round, and the hospitals that are asked


class CentreMetrics:
    """A collector of ``prometheus_client`` over one consortium, and over the study that is served now."""

    def __init__(
        self, consortium: Consortium, silent_s: float, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._consortium, self._silent_s, self._now = consortium, silent_s, now
        self._seen: Seen | None = None
        self._queued = 0

    def watch(self, seen: Seen | None) -> None:
        """From now on this is served; None for nothing."""
        self._seen = seen

    def tell(self, event: str, **facts: Any) -> None:
        """An event of the queue of studies."""
        if event == "turn":
            self._queued = len(facts["queued"])

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        from prometheus_client.core import GaugeMetricFamily

        seen = self._seen
        number, presence = (0, {}) if seen is None else seen()
        serving = "Whether a study is being served."
        yield GaugeMetricFamily("secfed_aggregator_serving", serving, value=seen is not None)
        yield GaugeMetricFamily("secfed_aggregator_round", "Round of the study.", value=number)
        for state, count in (("queued", self._queued), ("paused", len(self._consortium.paused()))):
            text = f"Studies that are {state}."
            yield GaugeMetricFamily(f"secfed_aggregator_{state}_studies", text, value=count)
        states = Counter(map(self._state, presence.values()))
        states[str(Absence.REMOVED)] += len(self._consortium.members().removed_sites)
        sites = GaugeMetricFamily(
            "secfed_aggregator_sites", "Hospitals by what they do about the study.", labels=("state",)
        )
        for state in _STATES:
            sites.add_metric((state,), states[state])
        yield sites
        days = GaugeMetricFamily(
            "secfed_aggregator_certificate_days", "Days until a certificate ends.", labels=("owner",)
        )
        for owner, end in self._ends():
            days.add_metric((owner,), (end - self._now()) / timedelta(days=1))
        yield days

    def _state(self, seen: Presence) -> str:
        if seen.absence is not None:
            return str(seen.absence)
        there = seen.calling or (seen.silent_s is not None and seen.silent_s <= self._silent_s)
        return _THERE if there else _AWAY

    def _ends(self) -> Iterator[tuple[str, datetime]]:
        yield "CA", self._consortium.ca().not_valid_after_utc
        own = self._consortium.tls.certificate()
        if own is not None:
            yield "aggregator", own.not_valid_after_utc
        for member in self._consortium.members().current.values():
            yield member.site, member.certificate.not_valid_after_utc
