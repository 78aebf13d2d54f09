"""GPUs that the workers of a simulation share: how much of one a site needs, and which worker sees which.

A worker sees its own GPUs only (``CUDA_VISIBLE_DEVICES``), so an algorithm that trains on "the" GPU needs to
know nothing of others. Shares are kept by counting, not by force: nothing stops one that takes more.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final

import torch

from secfed.algorithms.framework.base import Algorithm
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.study.study import Study

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_BESIDE_BYTES: Final = 1 << 30  # what CUDA and torch take in every process before there is a model
_ROOM: Final = 1.25  # for fragmentation, and what the estimate leaves out


@dataclass(frozen=True)
class Gpus:
    """GPUs, by the names that CUDA_VISIBLE_DEVICES takes, and how many of them each worker has."""

    names: tuple[str, ...]
    per_site: float  # 0 where no worker has any; a whole number above 1

    @property
    def workers(self) -> int | None:
        """How many workers there is room for; None where that does not depend on GPUs."""
        if not self.per_site:
            return None
        return int(len(self.names) * self._on_one if self.per_site < 1 else len(self.names) // self.per_site)

    @property
    def _on_one(self) -> int:
        """How many workers share a GPU."""
        return math.floor(1 / self.per_site + 1e-9)

    def seen_by(self, worker: int) -> dict[str, str]:
        """What to add to the environment of a worker, counted from 0."""
        if not self.per_site:
            return {}
        if self.per_site < 1:
            return {VISIBLE: self.names[worker // self._on_one]}
        whole = int(self.per_site)
        return {VISIBLE: ",".join(self.names[worker * whole : (worker + 1) * whole])}


def here() -> tuple[str, ...]:
    """The GPUs of this process."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE, "")
    return tuple(named.split(",")[:count]) if named else tuple(map(str, range(count)))


def share(options: EngineOptions, study: Study, algorithm: Algorithm, gpus: int) -> float:
    """How much of a GPU each site gets: as asked for, or by the estimate of its memory; 0 where none is used.

    Without an estimate a site gets a whole GPU, which is never too little.
    """
    if options.gpus_per_site is not None:
        return options.gpus_per_site
    if not gpus or getattr(study.algorithm, "device", "cpu") == "cpu":
        return 0.0
    needed, there = algorithm.device_bytes(), _memory_bytes()
    if needed is None or there is None:
        return 1.0
    fitting = int(there // (_ROOM * needed + _BESIDE_BYTES))
    return 1.0 / fitting if fitting > 1 else 1.0


def _memory_bytes() -> int | None:
    """Of the smallest GPU of this process; None without any."""
    sizes = [torch.cuda.get_device_properties(at).total_memory for at in range(torch.cuda.device_count())]
    return min(sizes, default=None)


def bounded(workers: int, asked: int | None, most: int, where: str) -> int:
    """So many workers, or as many as there is room for; more would wait for ever, or for memory.

    Raises:
        ConfigError: there is no room for one, or for as many as were asked for.
    """
    if most < 1 or (asked or 1) > most:
        raise ConfigError(f"{where} has room for {most} workers", remedy=_remedy(most))
    return min(workers, most)


def _remedy(most: int) -> str:
    return f"use --workers {most} or less" if most else "use a smaller --gpus-per-site"
