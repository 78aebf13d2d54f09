"""Parts of one vector, worked on by as many threads as there are processors.

Ciphers, numpy and SHA-256 let go of the interpreter lock during their calls, so threads are enough. Which
thread gets a part is chance; what is computed does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


def processors() -> int:
    """Threads that may work at a time: ``SECFED_THREADS``, or the processors that this process may use."""
    asked = os.environ.get("SECFED_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(parts: Iterable[T], work: Callable[[T], None], *, at_most: int) -> None:
    """Give every part to a thread that is free, to ``at_most`` at a time; returns once all are done.

    ``parts`` is read in order and by one thread at a time, so that what has to be sequential is done there.

    Raises:
        Exception: the first that ``parts`` or ``work`` raised.
    """
    left, reading = iter(parts), Lock()

    def serve() -> None:
        while True:
            with reading:
                try:
                    part = next(left)
                except StopIteration:
                    return
            work(part)

    others = min(processors(), at_most) - 1
    if others < 1:
        serve()
        return
    with ThreadPoolExecutor(others) as pool:
        served = [pool.submit(serve) for _ in range(others)]
        serve()
        for one in served:
            one.result()
