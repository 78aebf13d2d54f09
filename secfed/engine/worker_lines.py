"""What workers print, line by line and under their names, where it does not tear a live display apart."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress


class WorkerLines:
    """The pipe of one worker's output, from before it is started."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._reading, self.writing = os.pipe()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def take_over(self) -> None:
        """In the worker: what it prints, its libraries too, goes into the pipe."""
        for descriptor in (1, 2):
            os.dup2(self.writing, descriptor)
        os.close(self.writing)
        # Not those of a display with a lock of its own; whole lines, since a worker ends without a goodbye.
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115

    def given(self) -> None:
        """The worker has its end: only its own end will be that of the lines."""
        os.close(self.writing)

    def show(self) -> None:
        """Begin to show them; in a thread, so that all forks must have been made."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for what a worker said until it ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _show(self) -> None:
        with os.fdopen(self._reading, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line.rstrip())
                with suppress(ValueError, OSError):  # nobody listens any more
                    print(f"{self._worker}: {text}", file=sys.stderr, flush=True)
