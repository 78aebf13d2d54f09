"""The aggregator's half of the link: a server in a thread of its own, with its own event loop.

The round's thread posts requests and takes replies from a queue; everything else happens in the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from secfed.deploy.transport.grpc.peer import PeerAuthenticator, TlsFiles, grpc, server_credentials
from secfed.deploy.transport.grpc.service import Calls
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.messages import MAX_SETTINGS_BYTES, MAX_STUDY_BYTES
from secfed.deploy.transport.study_server import Offer, StudyServer
from secfed.errors import ConfigError, LinkError

_FAREWELL_S: Final = 2.0


class LinkServer(StudyServer):
    """Serves one study to the sites of one roster, at ``port`` once started.

    Args:
        address: where to listen, such as ``0.0.0.0:7443`` or ``[::]:7443``; port 0 takes any.
        tls: the aggregator's certificate and key, and the CA of the sites.
        removed: sites that were in the roster; they are told so.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        sites: Collection[str],
        offer: Offer,
        limits: ServerLimits | None = None,
        *,
        removed: Collection[str] = (),
    ) -> None:
        if len(offer.settings) > MAX_SETTINGS_BYTES or not 0 < len(offer.study.encode()) <= MAX_STUDY_BYTES:
            raise ConfigError("the study's name or settings are too long", remedy="shorten the study file")
        super().__init__(offer.study)
        self.address, self._tls = address, tls
        self._limits = limits or ServerLimits()
        callers = PeerAuthenticator(sites, removed=removed)
        self.requests: Calls = Calls(offer, callers, sites, self._limits, self.arrivals.put)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: asyncio.Event | None = None
        self.port = 0

    def start(self) -> int:
        """Listen; the port."""
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="secfed-link", daemon=True
        )
        self._thread.start()
        try:
            self.port = started.result()
            self.address = f"{self.address.rpartition(':')[0]}:{self.port}"
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

    def sending(self) -> frozenset[str]:
        """Sites that are fetching a request at this moment."""
        return frozenset(name for name, site in self.requests.sites.items() if site.sending)

    def run(self, change: Callable[[], None]) -> None:
        """Change what sites are asked, in the event loop."""
        if self._loop is None or self._thread is None or self._loop.is_closed():
            raise LinkError(
                "the link is not running", remedy="start it, and look into the log why it stopped"
            )
        self._loop.call_soon_threadsafe(change)

    async def _serve(self, started: Future[int]) -> None:
        self._loop, self._halt = asyncio.get_running_loop(), asyncio.Event()
        sites = len(self.requests.sites)
        server = grpc.aio.server(
            options=self._limits.options(sites),
            maximum_concurrent_rpcs=32 + self._limits.calls_per_site * sites,
        )
        server.add_generic_rpc_handlers((self.requests.handlers(),))
        try:
            port = server.add_secure_port(self.address, server_credentials(self._tls))
            await server.start()
        except (RuntimeError, ValueError):
            remedy = "check that the port is free and that certificate and key belong together"
            started.set_exception(LinkError(f"cannot listen on {self.address}", remedy=remedy))
            return
        started.set_result(port)
        await self._halt.wait()
        # Answers that say "finished" are on their way: give them a moment.
        await server.stop(_FAREWELL_S if self.requests.finished else None)
