"""The link between machines, over loopback: latency, large frames both ways, memory, many sites.

The aggregator is this process, the sites are threads of another. The limit is the same bytes over bare TLS
1.3 sockets with the same certificates: no frames, no hashes, no names. Both are measured in one run.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from secfed.bench.loopback import Handler, TlsConsortium, bare_tls, same_answers, served
from secfed.bench.masked import BenchConsortium
from secfed.bench.processes import PeakMemory
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.deploy.transport.client import LinkRequest
from secfed.deploy.transport.dispatch import StageDispatcher
from secfed.deploy.transport.grpc.peer import TlsFiles
from secfed.runs.machine import processor
from secfed.server.round import drive
from secfed.wire.transport import OnReply

_SMALL = bytes(1000)
_MESSAGES_BYTES = 1 << 22  # what a message with something per peer may take beside a vector


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

    All of ``sites`` receive and send a frame of ``parameters`` 32-bit lanes at once; ``messages`` are empty
    trips; ``many`` sites get 1 kB each way, and sum ``round_parameters`` masked elements (0: none).
    """
    size_bytes = 4 * parameters
    progress("certificates")
    made = TlsConsortium([f"site-{index:03d}" for index in range(max(sites, many))])
    few = {name: made.sites[name] for name in list(made.sites)[:sites]}
    progress("empty messages")
    with _running(made.aggregator, few, 0) as link:  # one site, the others waiting
        trips = _asked(link, {next(iter(few)): b""}, messages)
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
    with _running(made.aggregator, made.sites, len(_SMALL)) as link:
        steps = _asked(link, dict.fromkeys(made.sites, _SMALL), max(3, repeats))
        seconds["many_sites_step"], threads = statistics.median(steps), threading.active_count()
    masked = _masked_round(round_parameters, max(3, many), progress) if round_parameters else None
    return {
        "parameters": parameters,
        "sites": sites,
        "many": many,
        "repeats": repeats,
        "messages": messages,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
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


def _running(
    aggregator: TlsFiles, sites: Mapping[str, TlsFiles], size_bytes: int, room: int = 1 << 30
) -> AbstractContextManager[StageDispatcher]:
    longest = max(1000, size_bytes)
    return served(aggregator, sites, longest, same_answers, tuple(sites), size_bytes, room=room)


def _asked(
    link: StageDispatcher,
    requests: Mapping[str, Buffer],
    times: int,
    on_reply: OnReply = lambda _site, _reply: None,
) -> list[float]:
    """Seconds until all have answered, of each time."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        link.ask("bench", requests, on_reply)
        seconds.append(time.perf_counter() - start)
    return seconds


def _transfers(
    aggregator: TlsFiles, sites: Mapping[str, TlsFiles], size_bytes: int, repeats: int, room: int
) -> tuple[float, int]:
    """Median seconds for a frame to every site and back, added up as they come; and the peak of memory."""
    frame = bytes(size_bytes)
    total = np.zeros(size_bytes // 4, np.uint32)
    total += 0  # its pages exist before the measurement

    def on_reply(_site: str, reply: Buffer) -> None:
        np.add(total, np.frombuffer(reply, np.uint32), out=total)

    with _running(aggregator, sites, size_bytes, room) as link, PeakMemory() as memory:
        seconds = _asked(link, dict.fromkeys(sites, frame), repeats, on_reply)
    return statistics.median(seconds), memory.extra_bytes


def _masked_round(parameters: int, sites: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """One masked sum over the link: seconds, survivors, and the aggregator's extra memory in vectors.

    Every hospital has its own connection, certificate, identity and vector, and a summand from the start.
    """
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
