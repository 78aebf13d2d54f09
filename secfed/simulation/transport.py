"""The link of a simulation: planned dropouts, byte counts, seconds by phase, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.errors import SecfedError
from secfed.protection.interface import SiteId
from secfed.records.transcript import REFUSED, Log
from secfed.runs.run_report import Observer, PerSite, RoundReport
from secfed.server.coordinator import RoundOutcome
from secfed.simulation.dropouts import Dropout
from secfed.wire.refusal_codes import outgoing
from secfed.wire.stages import STAGES
from secfed.wire.transport import InProcessTransport, OnReply

_WAITING: Final = 4  # sites per worker that are ready to train
_ORDER = {stage: index for index, stage in enumerate(("keys", *STAGES, "result"))}


class SimulatedTransport:
    """``ask`` of a simulation: an in-process link with planned dropouts that measures what it carries.

    Args:
        workers: sites that train at a time.
        protecting: sites that protect what they add at a time.

    Attributes:
        gave_up: the first site that refused or could not do its own work, and why; None so far. Only a
            simulation knows: there all sites belong to whoever runs it.
    """

    def __init__(
        self,
        drops: Sequence[Dropout],
        observer: Observer,
        log: Log,
        *,
        workers: int = 1,
        protecting: int = 1,
    ) -> None:
        self._workers, self._protecting = workers, protecting
        self._link = InProcessTransport({}, self._refused)
        self._drops, self._observer, self._log = drops, observer, log
        self.gave_up: tuple[SiteId, SecfedError] | None = None
        self.start_round(1)

    def connect(self, sites: Mapping[SiteId, Callable[[Buffer], Buffer]]) -> None:
        """Name the sites: site id -> frame handler."""
        self._link = InProcessTransport(sites, self._refused)

    def start_round(self, number: int) -> None:
        """Forget the last round's dropouts and measurements."""
        self.round = number
        self.gone: dict[SiteId, str] = {}
        self.asked: list[SiteId] = []
        self.seconds = dict.fromkeys(("train", "protect", "carry"), 0.0)
        self._stage = "train"
        self._why: str | None = None
        self._link.bytes_up.clear()
        self._link.bytes_down.clear()

    def ask(self, stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
        """Carry one step."""
        self._stage = stage
        if stage == "train":
            self.asked.extend(site for site in requests if site not in self.asked)
        for site in requests:
            for drop in self._drops:
                here = drop.site == site and drop.round in (None, self.round)
                if here and site not in self.gone and _ORDER[drop.stage] <= _ORDER[stage]:
                    self.gone[site] = drop.stage
        left = {site: message for site, message in requests.items() if site not in self.gone}
        inside = 0.0
        done = 0

        def timed(site: SiteId, reply: Buffer) -> None:
            nonlocal inside, done
            start = time.perf_counter()
            on_reply(site, reply)
            inside += time.perf_counter() - start
            done += 1
            self._observer.stage(self.round, "", stage, done, len(requests))

        self._observer.stage(self.round, "", stage, 0, len(requests))
        start = time.perf_counter()
        # What trains is elsewhere, and answers in a word; what protects is here, and its answers are large.
        # Some sites wait for a worker, so that each gets one that has its program.
        training = self._workers if self._workers == 1 else _WAITING * self._workers
        workers, ahead = (training, None) if stage == "train" else (self._protecting, self._protecting)
        self._link.ask(left, timed, workers=workers, ahead=ahead)
        wall = time.perf_counter() - start
        at_sites = self._link.site_seconds
        self.seconds["train" if stage == "train" else "protect"] += at_sites
        self.seconds["carry"] += max(0.0, wall - at_sites - inside)

    def _refused(self, site: SiteId, error: SecfedError) -> None:
        _, reason = outgoing(error)  # as between machines; the words of the error are for the report only
        self.gone.setdefault(site, self._stage)
        self.gave_up = self.gave_up or (site, error)
        self._why = self._why or f"{site} gave up: {error.message.rstrip('.')}"
        self._log.append(REFUSED, {"round": self.round, "site": site, "stage": self._stage, "reason": reason})

    def report(self, outcome: RoundOutcome, wall_s: float) -> RoundReport:
        """What the round that just ended came to, without metrics."""
        seconds = {**self.seconds, "server": max(0.0, wall_s - sum(self.seconds.values()))}
        return RoundReport(
            round=outcome.round,
            survivors=outcome.survivors,
            asked=tuple(self.asked),
            metrics=None,
            bytes_up_per_site=PerSite.over(self._link.bytes_up.values()),
            bytes_down_per_site=PerSite.over(self._link.bytes_down.values()),
            seconds=seconds,
            attempts=sum(summed.spec.attempt + 1 for summed in outcome.sums),
            aborted=outcome.aborted.message if outcome.aborted else None,
            drops=tuple(self.gone.items()),
            gave_up=self._why,
        )
