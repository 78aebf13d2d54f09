"""Runs of a sweep on other machines: as jobs of Slurm, or as tasks of Ray.

Every machine sees the sweep's folder under the same path. A run works in a folder of its own inside
``NAME.part``; one that nobody waits for any more finds it gone, and ends. So the same command continues a
sweep, as with processes on this machine, and a worker that is killed costs one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from secfed.errors import ConfigError, installing
from secfed.sweep.child import run_alone
from secfed.sweep.plan import SweepRun
from secfed.sweep.processes import ProcessRunner, last_line
from secfed.sweep.store import LOG_FILE


class Running(Protocol):
    """A run that was started."""

    def over(self) -> bool:
        """Whether it has ended, one way or the other."""

    def stop(self) -> None:
        """End it."""

    def signal(self) -> str:
        """What ended it, if it did not end by itself."""

    def now(self) -> str:
        """The last line of its log."""


class Runner(Protocol):
    """Starts runs."""

    def start(self, run: SweepRun, part: Path) -> Running:
        """Start a run into its folder ``NAME.part``, which holds ``study.toml``."""


@dataclass(frozen=True)
class SlurmRunner:
    """One job of Slurm per run, through submitit: https://github.com/facebookincubator/submitit.

    Attributes:
        cluster: ``slurm``; ``local`` starts processes on this machine in the same way.
        settings: of the jobs, by submitit's names: ``timeout_min``, ``mem_gb``, ``slurm_partition``, ..
    """

    paths_from: Path
    debug: bool = False
    cluster: str = "slurm"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def start(self, run: SweepRun, part: Path) -> Running:
        """See :class:`Runner`; ConfigError where there is no Slurm, or it has no such setting."""
        try:
            import submitit
        except ImportError:
            raise _lacks("slurm", "submitit") from None
        try:
            executor = submitit.AutoExecutor(
                folder=part.parents[1] / "jobs" / run.folder, cluster=self.cluster
            )
            executor.update_parameters(**{"name": run.folder, "cpus_per_task": 1, **self.settings})
            job = executor.submit(run_alone, part.resolve(), self.paths_from.resolve(), self.debug)
        except (RuntimeError, NameError, TypeError, ValueError, OSError) as error:
            raise ConfigError(
                f"--engine slurm: {error}", remedy="run it where sbatch is, and check --slurm"
            ) from None
        return _SlurmJob(job, part / LOG_FILE)


@dataclass(frozen=True)
class _SlurmJob:
    job: Any
    log: Path

    def over(self) -> bool:
        return bool(self.job.done())

    def stop(self) -> None:
        self.job.cancel(check=False)

    def signal(self) -> str:
        state = str(self.job.state)
        return "" if state in ("FINISHED", "COMPLETED") else state

    def now(self) -> str:
        return last_line(self.log)


@dataclass
class RayRunner:
    """One task of Ray per run; ``address`` is that of a cluster, None for a Ray on this machine alone."""

    paths_from: Path
    jobs: int
    debug: bool = False
    address: str | None = None
    _run: Any = None

    def start(self, run: SweepRun, part: Path) -> Running:  # noqa: ARG002
        """See :class:`Runner`."""
        try:
            import ray
        except ImportError:
            raise _lacks("ray", "Ray") from None
        if self._run is None:
            from secfed.engine.on_ray import join

            if not ray.is_initialized():
                join(self.address, self.jobs)
            self._run = ray.remote(num_cpus=1, max_retries=0)(run_alone)
        return _RayTask(
            self._run.remote(part.resolve(), self.paths_from.resolve(), self.debug), part / LOG_FILE
        )


@dataclass
class _RayTask:
    task: Any
    log: Path
    ended: str = ""

    def over(self) -> bool:
        import ray

        if not ray.wait([self.task], timeout=0)[0]:
            return False
        try:
            ray.get(self.task)
        except ray.exceptions.RayError as error:
            self.ended = type(error).__name__
        return True

    def stop(self) -> None:
        import ray

        ray.cancel(self.task, force=True)

    def signal(self) -> str:
        return self.ended

    def now(self) -> str:
        return last_line(self.log)


def make_runner(engine: str, paths_from: Path, jobs: int, slurm: Sequence[str], *, debug: bool) -> Runner:
    """The runner that ``secfed sweep --engine`` names; ``slurm`` are its options KEY=VALUE."""
    if slurm and engine != "slurm":
        raise ConfigError(f"--slurm: has no effect with --engine {engine}", remedy="use --engine slurm")
    if engine == "processes":
        return ProcessRunner(paths_from, debug=debug)
    if engine == "slurm":
        settings: dict[str, Any] = {}
        for text in slurm:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise ConfigError(
                    f"--slurm {text}: not KEY=VALUE", remedy="write for example timeout_min=120"
                )
            settings[key] = int(value) if value.isdecimal() else value
        return SlurmRunner(paths_from, debug, settings=settings)
    if engine == "ray" or engine.startswith("ray://"):
        return RayRunner(paths_from, jobs, debug, None if engine == "ray" else engine)
    raise ConfigError(f"--engine {engine}: unknown", remedy="use processes, slurm, ray or ray://HOST:PORT")


def _lacks(engine: str, package: str) -> ConfigError:
    return ConfigError(
        f"--engine {engine}: {package} is not installed",
        remedy=installing("cluster"),
    )
