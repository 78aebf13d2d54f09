"""The link between machines, over loopback: latency, large frames both ways, memory, many sites.

The aggregator is this process, the sites are threads of another, as far apart as one machine allows. The
limit is the same bytes over bare TLS 1.3 sockets between the same two processes with the same certificates:
no frames, no hashes, no names. Both are measured in one run; seconds alone mean little on a shared machine.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from secfed.bench.bare_tls import bare_tls
from secfed.bench.memory import PeakMemory
from secfed.bench.processes import HOST, other_process
from secfed.bench.tls_files import TlsConsortium
from secfed.crypto.codec import Buffer
from secfed.deploy.transport.carriers.dispatch import StageDispatcher
from secfed.deploy.transport.client import LinkRequest
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.grpc.peer import TlsFiles
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.link import Offer

STUDY = "bench"
_SMALL = bytes(1000)
_WAIT_S = 600.0


def measure(
    *,
    parameters: int = 50_000_000,
    sites: int = 3,
    many: int = 100,
    repeats: int = 3,
    messages: int = 200,
    round_parameters: int = 1_000_000,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run the benchmark; JSON-ready. Of ``repeats`` large transfers and steps the median counts.

    Args:
        parameters: float32 or 32-bit lanes of one frame; each site receives one and sends one.
        sites: those that do so at the same time.
        many: sites of the last measurement, with 1 kB each way.
        messages: empty round trips.
        round_parameters: elements of a masked sum over all of ``many`` sites; 0 leaves it out.
    """
    # These import torch, which the other process does not need.
    from secfed.bench.many_agents import masked_round
    from secfed.bench.masked import processor

    size_bytes = 4 * parameters
    progress("certificates")
    made = TlsConsortium([f"site-{index:03d}" for index in range(max(sites, many))])
    few = {name: made.sites[name] for name in list(made.sites)[:sites]}
    progress("empty messages")
    trips = _round_trips(made.aggregator, few, messages)
    bare_trip = bare_tls(made.aggregator, few, 0, messages, 1)
    seconds: dict[str, float] = {
        "empty_round_trip": statistics.median(trips),
        "empty_round_trip_p95": sorted(trips)[int(0.95 * len(trips))],
        "limit_empty_round_trip": bare_trip / messages,
    }
    memory: dict[str, float] = {}
    for name, room in (("", 1 << 30), ("_one_at_a_time", 1)):
        progress(f"{parameters:,} parameters each way{name.replace('_', ' ')}")
        seconds[f"both_ways{name}"], peak = _transfers(made.aggregator, few, size_bytes, repeats, room)
        memory[f"peak_extra_over_vector{name}"] = peak / size_bytes
    progress("bare TLS")
    runs = [bare_tls(made.aggregator, few, size_bytes, 1, sites) for _ in range(repeats)]
    seconds["limit_both_ways"] = statistics.median(runs)
    progress(f"{many} sites")
    seconds["many_sites_step"], threads = _many(made.aggregator, made.sites, repeats)
    masked = None
    if round_parameters:
        masked = masked_round(parameters=round_parameters, sites=max(3, many), progress=progress)
    return {
        "parameters": parameters,
        "sites": sites,
        "many": many,
        "repeats": repeats,
        "messages": messages,
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "over_limit": {
            "empty_round_trip": seconds["empty_round_trip"] / seconds["limit_empty_round_trip"],
            "both_ways": seconds["both_ways"] / seconds["limit_both_ways"],
        },
        "latency_ms": 1000 * seconds["empty_round_trip"],
        "mbytes_per_s": 2 * sites * size_bytes / 1e6 / seconds["both_ways"],
        "aggregator_memory": memory,
        "aggregator_threads_with_many_sites": threads,
        "masked_round": masked,
        "seconds": seconds,
    }


def _serve_sites(pipe: Connection, address: str, sites: dict[str, TlsFiles], reply_bytes: int) -> None:
    """The other process: every site answers with a frame of this size, until told to stop."""
    reply = bytes(reply_bytes)

    def handle(_request: LinkRequest) -> Buffer:
        return reply

    links = [
        GrpcSiteConnection(address, tls, study=STUDY, max_frame_bytes=max(1000, reply_bytes))
        for tls in sites.values()
    ]
    threads = [threading.Thread(target=link.serve, args=(handle,), daemon=True) for link in links]
    for thread in threads:
        thread.start()
    pipe.recv()
    for link in links:
        link.close()


@contextmanager
def _running(
    aggregator: TlsFiles, sites: dict[str, TlsFiles], size_bytes: int, room: int = 1 << 30
) -> Iterator[StageDispatcher]:
    offer = Offer(STUDY, b"", max(1000, size_bytes))
    server = LinkServer(f"{HOST}:0", aggregator, tuple(sites), offer, ServerLimits(answers_bytes=room))
    port = server.start()
    try:
        with other_process(_serve_sites, f"{HOST}:{port}", sites, size_bytes):
            link = StageDispatcher(server, lambda _stage: _WAIT_S)
            link.wait_for(tuple(sites), len(sites), 120.0)
            yield link
    finally:
        server.stop()


def _round_trips(aggregator: TlsFiles, sites: dict[str, TlsFiles], messages: int) -> list[float]:
    """Seconds of each empty round trip with one site, the others waiting."""
    one = next(iter(sites))
    with _running(aggregator, sites, 0) as link:
        found = []
        for _ in range(messages):
            start = time.perf_counter()
            link.ask("bench", {one: b""}, lambda _site, _reply: None)
            found.append(time.perf_counter() - start)
        return found


def _transfers(
    aggregator: TlsFiles, sites: dict[str, TlsFiles], size_bytes: int, repeats: int, room: int
) -> tuple[float, int]:
    """Median seconds for a frame to every site and back, added up as they come; and the peak of memory."""
    frame = bytes(size_bytes)
    total = np.zeros(size_bytes // 4, np.uint32)
    total += 0  # its pages exist before the measurement
    with _running(aggregator, sites, size_bytes, room) as link:

        def on_reply(_site: str, reply: Buffer) -> None:
            np.add(total, np.frombuffer(reply, np.uint32), out=total)

        found = []
        with PeakMemory() as memory:
            for _ in range(repeats):
                start = time.perf_counter()
                link.ask("bench", dict.fromkeys(sites, frame), on_reply)
                found.append(time.perf_counter() - start)
        return statistics.median(found), memory.extra_bytes


def _many(aggregator: TlsFiles, sites: dict[str, TlsFiles], repeats: int) -> tuple[float, int]:
    """Median seconds of one step with many sites, and the threads that this process has meanwhile."""
    with _running(aggregator, sites, len(_SMALL)) as link:
        found = []
        for _ in range(max(3, repeats)):
            start = time.perf_counter()
            link.ask("bench", dict.fromkeys(sites, _SMALL), lambda _site, _reply: None)
            found.append(time.perf_counter() - start)
        return statistics.median(found), threading.active_count()
