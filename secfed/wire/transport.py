"""The Transport interface: how bytes travel between the aggregator and the sites; and the in-process link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from secfed.crypto.codec import Buffer
from secfed.errors import SecfedError

SiteId = str
OnReply = Callable[[SiteId, Buffer], None]


class Transport(Protocol):
    """Carries requests to sites and replies back."""

    def ask(self, requests: Mapping[SiteId, Buffer], deadline_s: float, on_reply: OnReply) -> None:
        """Send every request and hand over each reply as it arrives.

        A site that does not answer in ``deadline_s`` seconds is simply not handed over: missing means
        dropped. Replies are handed over one at a time, in this thread.
        """
        ...


class InProcessTransport:
    """Calls the sites directly, one after another. No ports, no copies.

    Args:
        sites: site id -> frame handler.
        refused: told which site refused with which error; a refusing site counts as dropped.

    Attributes:
        bytes_up, bytes_down: bytes per site since they were last cleared.
        site_seconds: seconds spent inside sites during the last :meth:`ask`.
    """

    def __init__(
        self,
        sites: Mapping[SiteId, Callable[[Buffer], Buffer]],
        refused: Callable[[SiteId, SecfedError], None],
    ) -> None:
        self._sites = sites
        self._refused = refused
        self.bytes_up: dict[SiteId, int] = {}
        self.bytes_down: dict[SiteId, int] = {}
        self.site_seconds = 0.0

    def ask(self, requests: Mapping[SiteId, Buffer], deadline_s: float, on_reply: OnReply) -> None:  # noqa: ARG002
        """See :class:`Transport`; nothing can be late in one process."""
        self.site_seconds = 0.0
        for site, request in requests.items():
            self.bytes_down[site] = self.bytes_down.get(site, 0) + len(request)
            start = time.perf_counter()
            try:
                reply = self._sites[site](request)
            except SecfedError as error:
                self._refused(site, error)
                continue
            finally:
                self.site_seconds += time.perf_counter() - start
            self.bytes_up[site] = self.bytes_up.get(site, 0) + len(reply)
            on_reply(site, reply)
            del reply  # at most one upload is alive at a time
