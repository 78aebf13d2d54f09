"""How bytes travel between the aggregator and sites in one process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from secfed.crypto.codec import Buffer
from secfed.errors import SecfedError

SiteId = str
OnReply = Callable[[SiteId, Buffer], None]
_Outcome = tuple[Buffer | SecfedError, float]  # what a site answered, and its seconds


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

    def ask(
        self,
        requests: Mapping[SiteId, Buffer],
        on_reply: OnReply,
        *,
        workers: int = 1,
        ahead: int | None = None,
    ) -> None:
        """See :class:`Transport`; nothing can be late in one process.

        With several ``workers`` so many sites are called at a time; replies are handed over in order. At most
        ``ahead`` replies wait for the one before them; None for any number.
        """
        self.site_seconds = 0.0
        if workers == 1:
            self._hand_over(requests, map(self._call, requests.items()), on_reply)
            return
        start = time.perf_counter()
        pool = ThreadPoolExecutor(workers)
        try:
            self._hand_over(requests, self._called(pool, requests, ahead), on_reply)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an error does not wait for what others do
        self.site_seconds = time.perf_counter() - start

    def _called(
        self, pool: ThreadPoolExecutor, requests: Mapping[SiteId, Buffer], ahead: int | None
    ) -> Iterator[_Outcome]:
        begun: deque[Future[_Outcome]] = deque()
        for request in requests.items():
            begun.append(pool.submit(self._call, request))
            if ahead is not None and len(begun) > ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

    def _hand_over(
        self, requests: Mapping[SiteId, Buffer], outcomes: Iterable[_Outcome], on_reply: OnReply
    ) -> None:
        for (site, request), (reply, seconds) in zip(requests.items(), outcomes, strict=True):
            self.bytes_down[site] = self.bytes_down.get(site, 0) + len(request)
            self.site_seconds += seconds
            if isinstance(reply, SecfedError):
                self._refused(site, reply)
                continue
            self.bytes_up[site] = self.bytes_up.get(site, 0) + len(reply)
            on_reply(site, reply)
            del reply  # an upload is as large as the model: few should be alive at a time

    def _call(self, asked: tuple[SiteId, Buffer]) -> _Outcome:
        site, request = asked
        start = time.perf_counter()
        reply: Buffer | SecfedError
        try:
            reply = self._sites[site](request)
        except SecfedError as error:
            reply = error
        return reply, time.perf_counter() - start
