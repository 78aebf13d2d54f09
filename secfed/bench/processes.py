"""A second process for benchmarks of the link: as far from the aggregator as one machine allows."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
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
