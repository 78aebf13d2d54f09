"""The aggregator's half of the link: a server in a thread of its own, with its own event loop.

The round's thread posts requests and takes replies from a queue; everything else happens in the loop.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.chunking import wrap_all
from secfed.deploy.transport.grpc.mailbox import Mailbox
from secfed.deploy.transport.grpc.peer import PeerAuthenticator, TlsFiles, grpc
from secfed.deploy.transport.grpc.service import Calls
from secfed.deploy.transport.limits import Allowance, ServerLimits
from secfed.deploy.transport.link import Offer, Presence, Refused, SiteReply
from secfed.deploy.transport.messages import MAX_SETTINGS_BYTES, MAX_STUDY_BYTES, REQUEST_ID_BYTES
from secfed.deploy.transport.progress import Waits
from secfed.errors import ConfigError, LinkError, RosterError

_FAREWELL_S: Final = 2.0


class LinkServer:
    """Serves one study to the sites of one roster.

    Args:
        address: where to listen, such as ``0.0.0.0:7443`` or ``[::]:7443``; port 0 takes any.
        tls: the aggregator's certificate and key, and the CA of the sites.
        sites: the sites of the roster.
        offer: study, settings, and the longest reply that is accepted.
        limits: timeouts and counts.

    Attributes:
        port: where it listens, once started.
        arrivals: replies and refusals, for the round's thread. Each reply must be released.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        sites: Collection[str],
        offer: Offer,
        limits: ServerLimits | None = None,
    ) -> None:
        if len(offer.settings) > MAX_SETTINGS_BYTES or not 0 < len(offer.study.encode()) <= MAX_STUDY_BYTES:
            raise ConfigError("the study's name or settings are too long", remedy="shorten the study file")
        self._address, self._tls, self._offer = address, tls, offer
        self._limits = limits or ServerLimits()
        self._sites = tuple(sites)
        self._boxes = {
            site: Mailbox(Allowance(self._limits.burst, self._limits.calls_per_s)) for site in self._sites
        }
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: asyncio.Event | None = None
        self._calls: Calls | None = None
        self.arrivals: queue.SimpleQueue[SiteReply | Refused] = queue.SimpleQueue()
        self.port = 0

    def start(self) -> int:
        """Listen; the port.

        Raises:
            LinkError: the address cannot be had, or the TLS files are not usable.
        """
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="secfed-link", daemon=True
        )
        self._thread.start()
        try:
            self.port = started.result()
        except LinkError:
            self._thread.join()
            self._thread = None
            raise
        return self.port

    def stop(self) -> None:
        """Close every connection; what was not delivered is lost."""
        if self._thread is None or self._loop is None or self._halt is None:
            return
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._halt.set)
        self._thread.join()
        self._thread = None

    def post(self, requests: Mapping[str, Buffer]) -> bytes:
        """Ask sites; each request stays open until it is answered, refused or withdrawn.

        The same frame object for several sites is hashed and held once.

        Returns:
            The id that the replies bear.

        Raises:
            RosterError: a request to a site that is not in the roster.
        """
        for site in requests:
            if site not in self._boxes:
                raise RosterError(f"site {site!r} is not in the roster of this link")
        request_id = secrets.token_bytes(REQUEST_ID_BYTES)
        parcels = wrap_all(self._offer.study, request_id, requests)

        def post() -> None:
            for site, parcel in parcels.items():
                self._boxes[site].post(parcel)

        self._in_loop(post)
        return request_id

    def withdraw(self) -> None:
        """Wait for no reply any more; uploads under way end, and their memory is free."""

        def withdraw() -> None:
            for box in self._boxes.values():
                box.withdraw()

        self._in_loop(withdraw)

    def finish(self, last: Mapping[str, Buffer] | None = None) -> None:
        """The study is over: sites that call are told so, and nothing can be asked any more.

        Args:
            last: a last request per site, which it is to answer before it is told.
        """
        if self._calls is not None:
            parcels = wrap_all(self._offer.study, secrets.token_bytes(REQUEST_ID_BYTES), last or {})
            self._in_loop(partial(self._calls.finish, parcels))

    def sending(self) -> frozenset[str]:
        """Sites that are fetching a request at this moment."""
        return frozenset(site for site, box in self._boxes.items() if box.sending)

    def waits_for(self, waits: Waits) -> None:
        """What sites that say hello are told about what the aggregator waits for."""
        if self._calls is not None:
            self._calls.waits = waits

    def told(self) -> frozenset[str]:
        """Sites that were told that the study is over."""
        return frozenset() if self._calls is None else frozenset(self._calls.told)

    def presence(self) -> dict[str, Presence]:
        """Every site of the roster, as the link sees it now."""
        now = time.monotonic()
        seen = {}
        for site, box in self._boxes.items():
            silent = None if box.seen_s is None else max(0.0, now - box.seen_s)
            refused = None if self._calls is None else self._calls.declined.get(site)
            why = None if refused is None else f"{refused.kind}: {refused.reason}"
            seen[site] = Presence(silent, box.signs > 0, box.software, why)
        return seen

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Frame bytes up and down per site since this was last called; between two asks."""
        up = {site: box.bytes_up for site, box in self._boxes.items()}
        down = {site: box.bytes_down for site, box in self._boxes.items()}
        for box in self._boxes.values():
            box.bytes_up = box.bytes_down = 0
        return up, down

    def _in_loop(self, work: Callable[[], None]) -> None:
        if self._loop is None or self._thread is None or self._loop.is_closed():
            raise LinkError(
                "the link is not running", remedy="start it, and look into the log why it stopped"
            )
        self._loop.call_soon_threadsafe(work)

    async def _serve(self, started: Future[int]) -> None:
        self._loop, self._halt = asyncio.get_running_loop(), asyncio.Event()
        sites = len(self._sites)
        server = grpc.aio.server(
            options=self._limits.options(sites),
            maximum_concurrent_rpcs=32 + self._limits.calls_per_site * sites,
        )
        authenticator = PeerAuthenticator(self._sites)
        calls = Calls(self._offer, authenticator, self._boxes, self._limits, self.arrivals.put)
        self._calls = calls
        server.add_generic_rpc_handlers((calls.handlers(),))
        try:
            port = server.add_secure_port(self._address, self._tls.server_credentials())
            await server.start()
        except (RuntimeError, ValueError):
            remedy = "check that the port is free and that certificate and key belong together"
            started.set_exception(LinkError(f"cannot listen on {self._address}", remedy=remedy))
            return
        started.set_result(port)
        await self._halt.wait()
        # Answers that say "finished" are on their way: give them a moment.
        await server.stop(_FAREWELL_S if self._calls.finished else None)
