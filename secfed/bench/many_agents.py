"""One masked sum with many hospitals over the link: every message over mutual TLS, on one machine.

Every hospital has its own connection, certificate, identity and vector. What training would take is left
out: a summand is there from the start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from secfed.bench.loopback import Handler, TlsConsortium, served
from secfed.bench.masked import BenchConsortium
from secfed.bench.processes import PeakMemory
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.deploy.transport.client import LinkRequest
from secfed.server.round import drive

_MESSAGES_BYTES = 1 << 22  # what a message with something per peer may take beside a vector


def masked_round(
    *, parameters: int, sites: int, progress: Callable[[str], None] = lambda _text: None
) -> dict[str, Any]:
    """One masked sum over the link: seconds, survivors, and the aggregator's extra memory in vectors."""
    consortium = BenchConsortium(parameters, sites, 32)
    tls = TlsConsortium(consortium.names)
    session = MaskedServer(consortium.specification(), consortium.roster, consortium.shape)
    longest = consortium.shape.wire_bytes + _MESSAGES_BYTES
    # One large upload at a time: the aggregator's memory is then independent of the number of sites.
    with served(tls.aggregator, tls.sites, longest, _sessions, parameters, sites, room=1) as link:

        def ask(stage: str, requests: Any, on_reply: Any) -> None:
            progress(f"{sites} sites, {parameters:,} parameters: {stage}")
            link.ask(stage, requests, on_reply)

        start = time.perf_counter()
        with PeakMemory() as memory:
            drive(session, bytes, ask, list(consortium.names))
        seconds = time.perf_counter() - start
    return {
        "parameters": parameters,
        "sites": sites,
        "survivors": len(session.survivors),
        "seconds": seconds,
        "peak_extra_over_vector": memory.extra_bytes / (4 * parameters),
    }


def _sessions(parameters: int, sites: int) -> Mapping[str, Handler]:
    consortium = BenchConsortium(parameters, sites, 32)
    cpu = threading.Semaphore(2)  # as many masks at a time as there are hands; more only fight for the cache

    def handler(session: MaskedSite) -> Handler:
        def handle(request: LinkRequest) -> Buffer:
            with cpu:
                return session.handle(request.frame)

        return handle

    return {name: handler(consortium.session(name)) for name in consortium.names}
