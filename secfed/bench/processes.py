"""A second process for benchmarks, as far away as one machine allows, and the memory that this one takes."""

from __future__ import annotations

import multiprocessing
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
    """The most memory that this process has resident meanwhile, by the system's own account."""

    extra_bytes = 0  # the peak above what there was at the start

    def __enter__(self) -> PeakMemory:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        self._before = resident_bytes("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.extra_bytes = resident_bytes("VmHWM") - self._before


def resident_bytes(which: str, process: str = "self") -> int:
    """Memory of a process: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{which}:"))
    return int(line.split()[1]) * 1024
