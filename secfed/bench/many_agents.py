"""One masked sum with many hospitals over the link: every message over mutual TLS, on one machine.

The aggregator is this process; the hospitals are threads of another, each with its own connection,
certificate, identity and vector. What training would take is left out: a summand is there from the start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from secfed.bench.masked import BenchConsortium
from secfed.bench.memory import PeakMemory
from secfed.bench.processes import HOST, other_process
from secfed.bench.tls_files import TlsConsortium
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.deploy.transport.carriers.dispatch import StageDispatcher
from secfed.deploy.transport.client import LinkRequest
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.grpc.peer import TlsFiles
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.link import Offer
from secfed.server.round import drive

_STUDY = "bench"
_WAIT_S = 1800.0
_MESSAGES_BYTES = 1 << 22  # what a message with something per peer may take beside a vector


def masked_round(
    *, parameters: int, sites: int, progress: Callable[[str], None] = lambda _text: None
) -> dict[str, Any]:
    """One masked sum over the link: its seconds and survivors, and the aggregator's memory.

    That is the peak above its start, as a multiple of one vector of 32-bit lanes.
    """
    consortium = BenchConsortium(parameters, sites, 32)
    tls = TlsConsortium(consortium.names)
    session = MaskedServer(consortium.specification(), consortium.roster, consortium.shape)
    longest = consortium.shape.wire_bytes + _MESSAGES_BYTES
    # One large upload at a time: the aggregator's memory is then independent of the number of sites.
    limits = ServerLimits(answers_bytes=1)
    server = LinkServer(f"{HOST}:0", tls.aggregator, tuple(tls.sites), Offer(_STUDY, b"", longest), limits)
    port = server.start()
    try:
        with other_process(_serve, f"{HOST}:{port}", tls.sites, parameters, longest):
            link = StageDispatcher(server, lambda _stage: _WAIT_S)
            alive = list(link.wait_for(consortium.roster.sites, sites, _WAIT_S))

            def ask(stage: str, requests: Any, on_reply: Any) -> None:
                progress(f"{sites} sites, {parameters:,} parameters: {stage}")
                link.ask(stage, requests, on_reply)

            start = time.perf_counter()
            with PeakMemory() as memory:
                drive(session, bytes, ask, alive)
            seconds = time.perf_counter() - start
    finally:
        server.stop()
    return {
        "parameters": parameters,
        "sites": sites,
        "survivors": len(session.survivors),
        "seconds": seconds,
        "peak_extra_over_vector": memory.extra_bytes / (4 * parameters),
    }


def _serve(pipe: Connection, address: str, sites: dict[str, TlsFiles], parameters: int, longest: int) -> None:
    """The other process: all hospitals, until told to stop."""
    consortium = BenchConsortium(parameters, len(sites), 32)
    cpu = threading.Semaphore(2)  # as many masks at a time as there are hands; more only fight for the cache

    def handler(session: MaskedSite) -> Callable[[LinkRequest], Buffer]:
        def handle(request: LinkRequest) -> Buffer:
            with cpu:
                return session.handle(request.frame)

        return handle

    links = []
    for name in consortium.names:
        link = GrpcSiteConnection(address, sites[name], study=_STUDY, max_frame_bytes=longest)
        links.append(link)
        handle = handler(consortium.session(name))
        threading.Thread(target=link.serve, args=(handle,), daemon=True).start()
    pipe.recv()
    for link in links:
        link.close()
