"""Which engine a simulation takes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from secfed.algorithms.framework.base import Algorithm
from secfed.engine.interface import Engine, Inline
from secfed.engine.wire import Job
from secfed.errors import ConfigError
from secfed.study.study import Study

NAMES = ("inline", "processes", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """Where local work is done; nothing of it changes a result."""

    # inline, processes or ray; ray://HOST:PORT joins a cluster
    name: str = "inline"
    workers: int | None = None  # at a time; None for as many as there are processors
    site_deadline_s: float | None = None  # of one site's work on one exchange; who is later has dropped out
    gpus_per_site: float = 0.0  # what Ray reserves for each worker

    def __post_init__(self) -> None:
        base = self.name.partition(":")[0]
        if base not in NAMES:
            raise ConfigError(f"--engine {self.name}: unknown", remedy=f"use one of: {', '.join(NAMES)}")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: no work would be done", remedy="use 1 or more")
        if self.site_deadline_s is not None and not 0 < self.site_deadline_s < float("inf"):
            raise ConfigError(f"--site-deadline {self.site_deadline_s:g}: not a number of seconds")
        if base == "inline" and (self.workers or self.site_deadline_s):
            raise ConfigError(
                "--engine inline: does one site after the other, and cannot stop one",
                remedy="leave out --workers and --site-deadline, or use --engine processes",
            )


def open_engine(
    options: EngineOptions, study: Study, algorithm: Algorithm, *, study_id: str, sites: int
) -> Engine:
    """The engine, started.

    Args:
        algorithm: the study's, without noise in sums.

    Raises:
        ConfigError: Ray is not installed, or its cluster cannot be reached.
    """
    if options.name == "inline":
        return Inline(algorithm, study.seed)
    job = Job(site="", settings="", study=study_id, simulated=True, only_values=True)
    workers = min(options.workers or os.cpu_count() or 1, sites)
    if options.name == "processes":
        from secfed.engine.processes import Processes

        return Processes(study, algorithm, job, workers, options.site_deadline_s)
    from secfed.engine.on_ray import Ray

    return Ray(study, job, workers, options)
