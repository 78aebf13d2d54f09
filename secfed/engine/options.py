"""Which engine a simulation takes."""

from __future__ import annotations

from dataclasses import dataclass

from secfed.errors import ConfigError

NAMES = ("inline", "processes", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """Where local work is done; nothing but a deadline, and more threads, changes a result."""

    # inline, processes or ray; ray://HOST:PORT joins a cluster
    name: str = "inline"
    workers: int | None = None  # at a time; None for as many as there are processors
    site_deadline_s: float | None = None  # of one site's work on one exchange; who is later has dropped out
    # what a worker has, for example 0.25; above 1 whole ones. None lets the study's need of memory decide.
    gpus_per_site: float | None = None
    threads: int = 1  # of the process, inline; another number changes the last digits of a model

    def __post_init__(self) -> None:
        if self.name not in NAMES and not self.name.startswith("ray://"):
            raise ConfigError(f"--engine {self.name}: unknown", remedy=f"use one of: {', '.join(NAMES)}")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: no work would be done", remedy="use 1 or more")
        if self.site_deadline_s is not None and not 0 < self.site_deadline_s < float("inf"):
            raise ConfigError(f"--site-deadline {self.site_deadline_s:g}: not a number of seconds")
        share = self.gpus_per_site
        if share is not None and (not 0 <= share < float("inf") or (share > 1 and share % 1)):
            raise ConfigError(
                f"--gpus-per-site {share:g}: not a share of a GPU, nor a number of GPUs",
                remedy="use 0.25 for a quarter, 2 for two, 0 for none",
            )
        if self.threads < 1:
            raise ConfigError(f"--threads {self.threads}: no work would be done", remedy="use 1 or more")
        if self.name != "inline" and self.threads != 1:
            raise ConfigError(
                f"--threads {self.threads}: with --engine {self.name} each worker has one thread",
                remedy="leave it out, and use --workers",
            )
        if self.name == "inline" and share is not None:
            raise ConfigError(
                "--engine inline: all hospitals train on one device, one after the other",
                remedy="leave out --gpus-per-site, or use --engine processes",
            )
        if self.name == "inline" and (self.workers or self.site_deadline_s):
            raise ConfigError(
                "--engine inline: does one site after the other, and cannot stop one",
                remedy="leave out --workers and --site-deadline, or use --engine processes",
            )
