"""Workers as actors of Ray, on this machine or in a cluster: https://docs.ray.io.

Every actor runs the same loop as a local worker process (:func:`secfed.engine.trainer.serve`), on messages
that arrive as calls. A broadcast is put into Ray's object store once, whatever the number of actors.

Security: simulation only. Ray's ports are neither encrypted nor authenticated; whoever reaches a cluster can
read the records of all simulated hospitals.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from secfed.algorithms.framework.base import Algorithm
from secfed.config.plugins import allow_imports
from secfed.engine.gpus import bounded, share
from secfed.engine.interface import one_thread
from secfed.engine.options import EngineOptions
from secfed.engine.pool import EngineEnded, Late, Pool, WorkerDied
from secfed.engine.trainer import serve
from secfed.engine.wire import Job, Tensors, decoded, encoded
from secfed.errors import ConfigError, LinkError, installing
from secfed.study.build import build
from secfed.study.study import Study


class Ray(Pool):
    """Workers as actors; starts a Ray of its own on this machine, unless one is named or running."""

    def __init__(
        self, study: Study, algorithm: Algorithm, job: Job, workers: int, options: EngineOptions
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError(
                "--engine ray: Ray is not installed",
                remedy=installing("cluster"),
            ) from None
        self._ray: Any = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            join(options.name if options.name.startswith("ray://") else None, workers)
        there = self._ray.cluster_resources()
        self._study, self._gpus = study, share(options, study, algorithm, int(there.get("GPU", 0)))
        most = int(there.get("CPU", 0))
        if self._gpus:
            most = min(most, int(there.get("GPU", 0) / self._gpus + 1e-9))
        workers = bounded(workers, options.workers, most, "--engine ray: the cluster")
        super().__init__(job, workers, options.site_deadline_s)
        self._actor = self._ray.remote(num_cpus=1, num_gpus=self._gpus, max_concurrency=1)(_Actor)
        self._put: tuple[bytes, Any] = (b"", None)  # a large message, and where it lies in the object store

    def connect(self, _number: int) -> ActorLink:
        """A new actor."""
        try:
            return ActorLink(self, self._actor.remote(self._study, sys.path))
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise EngineEnded(f"--engine ray: Ray has ended ({type(error).__name__})") from None

    def shared(self, message: bytes) -> Any:
        """A message in the object store, put there once for all actors that get it."""
        with self.change:
            if self._put[0] != message:
                self._put = message, self._ray.put(message)
            return self._put[1]

    def close(self) -> None:
        """End the actors, and Ray where it was started here."""
        super().close()
        if self._mine:
            self._ray.shutdown()


def join(address: str | None, cpus: int) -> None:
    """Join the cluster at this address, or at RAY_ADDRESS; without either start a Ray on this machine."""
    import ray

    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns
    # Ray's own workers stand back behind every other process of the machine (niceness 15), also behind the
    # driver that waits for them; a study's work ranks as the command that was asked for it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise LinkError(
            f"--engine ray: no Ray answers at {address or 'this machine'} ({type(error).__name__})",
            remedy="start one with: ray start --head",
        ) from None


class ActorLink:
    """One actor."""

    def __init__(self, pool: Ray, actor: Any) -> None:
        self._pool, self._actor = pool, actor

    def ask(
        self, head: Mapping[str, Any], tensors: Tensors, timeout_s: float | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """See :class:`secfed.engine.pool.Link`."""
        import ray

        message = encoded(head, tensors)
        carried = self._pool.shared(message) if head["do"] == "broadcast" else message
        try:
            return decoded(ray.get(self._actor.ask.remote(carried), timeout=timeout_s))
        except ray.exceptions.GetTimeoutError:
            raise Late("no answer in time") from None
        except (ray.exceptions.RayError, EOFError):
            raise WorkerDied("an actor ended") from None

    def close(self) -> None:
        """Kill it: it keeps nothing that is not here."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


class _Actor:
    """Runs in a process of Ray's: one message in, one message out."""

    def __init__(self, study: Study, path: list[str]) -> None:
        one_thread()
        allow_imports(*map(Path, path))
        self._here = _Queues()
        built = study, build(study)
        threading.Thread(target=self._serve, args=(built,), daemon=True).start()

    def _serve(self, built: tuple[Study, Algorithm]) -> None:
        try:
            serve(self._here, built)
        finally:
            os._exit(1)  # or whoever waits for an answer waits for ever

    def ask(self, message: bytes) -> bytes:
        """Hand a message to the loop, and wait for its answer."""
        self._here.received.put(message)
        return self._here.sent.get()


class _Queues:
    """What the loop takes for a connection."""

    def __init__(self) -> None:
        self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send_bytes(self, buf: bytes, /) -> None:
        """An answer."""
        self.sent.put(buf)

    def recv_bytes(self) -> bytes:
        """A question."""
        return self.received.get()
