"""The aggregator's link: ``ask`` over gRPC or Flower, with a deadline per stage."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.study_server import Refused, SiteReply, StudyServer
from secfed.wire.transport import OnReply, SiteId

_LOOK_S = 0.25  # how often an idle ask looks for silent sites; also how fast Ctrl-C is noticed
_DECLINED_S = 2.0  # a site that was just approved fetches its request within this


class Watcher:
    """Told, in the round's thread, how an ``ask`` goes; this one ignores everything."""

    def progress(self, stage: str, done: int, asked: int) -> None:
        """So many of the asked sites have answered."""

    def refused(self, stage: str, site: SiteId, kind: str, reason: str) -> None:
        """A site refused. Security: the words are the site's own."""

    def missing(self, stage: str, site: SiteId) -> None:
        """A site did not answer in time, or fell silent."""

    def idle(self, stage: str) -> None:
        """Nothing has come for a moment; called several times a second while that is so."""


class StageDispatcher:
    """Carries the steps of a round to the sites; its :meth:`ask` is what :mod:`secfed.server.round` is given.

    ``server`` is started, and used by nothing else; ``deadline_s`` gives the seconds of a stage. A site
    without a sign of life for ``silent_s`` counts as missing before (one at work shows one every 15 s); None:
    at the end.
    """

    def __init__(
        self,
        server: StudyServer,
        deadline_s: Callable[[str], float],
        *,
        silent_s: float | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._server, self._deadline_s, self._silent_s = server, deadline_s, silent_s
        self._watcher = watcher or Watcher()

    def ask(self, stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
        """Carry one step; each reply is handed over as it arrives, in this thread.

        A reply is valid only during ``on_reply``. A site that refuses, falls silent or misses the deadline is
        not handed over. When this returns or raises, nothing is waited for any more.
        """
        start = time.monotonic()
        end = start + self._deadline_s(stage)
        waiting = set(requests)
        self._watcher.progress(stage, 0, len(requests))
        if not requests:
            return
        request_id = self._server.post(requests)
        try:
            while waiting:
                left = end - time.monotonic()
                if left <= 0:
                    break
                try:
                    arrival = self._server.arrivals.get(timeout=min(left, _LOOK_S))
                except queue.Empty:
                    for site in self._away(waiting, time.monotonic() - start):
                        waiting.discard(site)
                        self._watcher.missing(stage, site)
                    self._watcher.idle(stage)
                    continue
                if arrival.request_id == request_id and arrival.site in waiting:
                    waiting.discard(arrival.site)
                    if isinstance(arrival, Refused):
                        self._watcher.refused(stage, arrival.site, arrival.kind, arrival.reason)
                    else:
                        try:
                            on_reply(arrival.site, arrival.frame)
                        finally:
                            arrival.release()
                    self._watcher.progress(stage, len(requests) - len(waiting), len(requests))
                elif isinstance(arrival, SiteReply):
                    arrival.release()
                del arrival  # or its memory would be held while the next reply comes in
        finally:
            self._server.withdraw()
            self._drop_late()
        for site in sorted(waiting):
            self._watcher.missing(stage, site)

    def wait_for(
        self, sites: Collection[SiteId], least: int, timeout_s: float, *, within_s: float = 60.0
    ) -> tuple[SiteId, ...]:
        """Wait until so many of these sites are there and have opened the study; whoever is, at the end."""
        end = time.monotonic() + timeout_s
        while True:
            there, seen = self.present(within_s), self._server.presence()
            found = tuple(site for site in sites if site in there and seen[site].serving)
            if len(found) >= least or time.monotonic() >= end:
                return found
            time.sleep(min(_LOOK_S, max(0.0, end - time.monotonic())))

    def present(self, within_s: float) -> tuple[SiteId, ...]:
        """Sites with a sign of life in the last seconds that do not decline the study."""
        return tuple(
            site
            for site, seen in self._server.presence().items()
            if seen.declined is None
            and (seen.calling or (seen.silent_s is not None and seen.silent_s <= within_s))
        )

    def _away(self, waiting: set[SiteId], asked_for_s: float) -> list[SiteId]:
        """Sites that decline, or have shown no sign of life for too long and since this ask began.

        A site that declines is asked again in the next exchange; waiting for it would make each one long.
        """
        away: set[SiteId] = set()
        if asked_for_s > _DECLINED_S:
            seen = self._server.presence()
            away = {site for site in waiting if seen[site].declined is not None}
        if self._silent_s is not None and asked_for_s > self._silent_s:
            away |= waiting - set(self.present(self._silent_s))
        return sorted(away)

    def _drop_late(self) -> None:
        """Free what came in too late; the next ask drops what comes in later still."""
        with suppress(queue.Empty):
            while True:
                arrival = self._server.arrivals.get_nowait()
                if isinstance(arrival, SiteReply):
                    arrival.release()
