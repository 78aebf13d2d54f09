"""A second process for benchmarks, as far away as one machine allows, and the memory that this one takes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HOST = "localhost"


@contextmanager
def other_process(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Iterator[Connection]:
    """Run ``target(pipe, ...)`` in a fresh process until it is sent something; no ``daemon`` has children."""
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    near, far = context.Pipe()
    process = context.Process(target=target, args=(far, *arguments), daemon=daemon)
    process.start()
    far.close()  # the other process has its own; while this one is open, its death would go unnoticed
    try:
        yield near
    finally:
        with suppress(OSError):  # it has died already: what the caller saw of that is the error to report
            near.send("stop")
        process.join(30)


class PeakMemory:
    """Samples the resident memory of this process."""

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = _resident_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._done.wait(0.005):
            self._peak = max(self._peak, _resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def extra_bytes(self) -> int:
        """Peak above what there was at the start."""
        return self._peak - self._before


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
