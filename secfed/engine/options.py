"""Which engine a simulation takes."""

from __future__ import annotations

from dataclasses import dataclass

from secfed.errors import ConfigError

NAMES = ("inline", "processes", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """Where local work is done; nothing but a deadline changes a result."""

    # inline, processes or ray; ray://HOST:PORT joins a cluster
    name: str = "inline"
    workers: int | None = None  # at a time; None for as many as there are processors
    site_deadline_s: float | None = None  # of one site's work on one exchange; who is later has dropped out
    gpus_per_site: float = 0.0  # what Ray reserves for each worker

    def __post_init__(self) -> None:
        if self.name not in NAMES and not self.name.startswith("ray://"):
            raise ConfigError(f"--engine {self.name}: unknown", remedy=f"use one of: {', '.join(NAMES)}")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: no work would be done", remedy="use 1 or more")
        if self.site_deadline_s is not None and not 0 < self.site_deadline_s < float("inf"):
            raise ConfigError(f"--site-deadline {self.site_deadline_s:g}: not a number of seconds")
        if self.name == "inline" and (self.workers or self.site_deadline_s):
            raise ConfigError(
                "--engine inline: does one site after the other, and cannot stop one",
                remedy="leave out --workers and --site-deadline, or use --engine processes",
            )
