"""How much resident memory a piece of work took."""

from __future__ import annotations

import os
import threading
from pathlib import Path


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
