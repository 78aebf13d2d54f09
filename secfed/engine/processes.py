"""Workers on this machine: processes with one torch thread each.

Where it is safe they are forks of this process, so the study's records and code are there at once, in shared
memory. Forks are made before other threads are; a worker that replaces another starts afresh instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch

from secfed.algorithms.framework.base import Algorithm
from secfed.config.plugins import allow_imports
from secfed.engine.gpus import Gpus
from secfed.engine.interface import one_thread
from secfed.engine.pool import Late, Pool, WorkerDied
from secfed.engine.trainer import serve
from secfed.engine.wire import SOCKET_VARIABLE, Job, Tensors, receive, send
from secfed.engine.worker_lines import WorkerLines
from secfed.errors import LinkError
from secfed.study.build import build
from secfed.study.study import Study

_CHILD: Final = "secfed.engine.processes"
_STOP_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 1.0
_NO_GPUS: Final = Gpus((), 0.0)


class Processes(Pool):
    """Workers on this machine."""

    def __init__(
        self,
        study: Study,
        algorithm: Algorithm,
        job: Job,
        workers: int,
        deadline_s: float | None = None,
        gpus: Gpus = _NO_GPUS,
    ) -> None:
        super().__init__(job, workers, deadline_s)
        self._study, self._algorithm, self._gpus = study, algorithm, gpus
        self._started = 0
        self._lines: list[WorkerLines] = []
        # CUDA, once this process has asked it anything, does not work in a fork.
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if sys.platform == "linux" and not gpus.per_site and not started:
            try:
                for worker in self.all:
                    worker.link = self._forked(worker.number)
            except OSError as error:
                self.close()
                raise LinkError(
                    f"--workers {workers}: no process can be started ({error.strerror})"
                ) from None
            for lines in self._lines:
                lines.show()

    def connect(self, number: int) -> ProcessLink:
        """A process that starts afresh, and sees its share of the GPUs."""
        near, far = socket.socketpair()
        lines = self._named()
        with near, far:
            environment = os.environ | self._gpus.seen_by(number)
            environment |= {SOCKET_VARIABLE: str(far.fileno()), "PYTHONUNBUFFERED": "1"}
            command = [sys.executable, "-P", "-m", _CHILD]
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=lines.writing,
                stderr=lines.writing,
                pass_fds=(far.fileno(),),
            )
            connection = Connection(near.detach())
        lines.given()
        lines.show()
        connection.send(sys.path)
        connection.send(self._study)  # may be of classes that are found on that path
        return ProcessLink(connection, process.kill, process.wait)

    def close(self) -> None:
        """End all workers; what they said is shown first."""
        super().close()
        for lines in self._lines:
            lines.finish(_STOP_TIMEOUT_S)

    def _named(self) -> WorkerLines:
        self._started += 1
        self._lines.append(WorkerLines(f"worker {self._started}"))
        return self._lines[-1]

    def _forked(self, _number: int) -> ProcessLink:
        context = multiprocessing.get_context("fork")
        near, far = context.Pipe()
        others = [worker.link.connection for worker in self.all if isinstance(worker.link, ProcessLink)]
        built, lines = (self._study, self._algorithm), self._named()
        process = context.Process(target=_fork, args=(far, [near, *others], built, lines), daemon=True)
        process.start()
        far.close()
        lines.given()
        return ProcessLink(near, process.kill, process.join)


class ProcessLink:
    """One of them."""

    def __init__(
        self, connection: Connection, kill: Callable[[], None], wait: Callable[[float], object]
    ) -> None:
        self.connection, self.kill, self._wait = connection, kill, wait

    def ask(
        self, head: Mapping[str, Any], tensors: Tensors, timeout_s: float | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """See :class:`secfed.engine.pool.Link`."""
        try:
            send(self.connection, head, tensors)
            if not self.connection.poll(timeout_s):
                raise Late("no answer in time")
            return receive(self.connection)
        except (EOFError, OSError):
            raise WorkerDied("a worker process ended") from None

    def close(self) -> None:
        """Kill it: it keeps nothing that is not here."""
        self.connection.close()
        self.kill()
        self._wait(_STOP_TIMEOUT_S)


def _fork(
    connection: Connection,
    others: list[Connection],
    built: tuple[Study, Algorithm],
    lines: WorkerLines,
) -> None:
    lines.take_over()
    for other in others:  # or the end of this process's parent would not be the end of their pipes
        other.close()
    _serve(connection, built)


def _serve(connection: Connection, built: tuple[Study, Algorithm]) -> None:
    one_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver ends its workers
    threading.Thread(target=_end_with_the_parent, args=(os.getppid(),), daemon=True).start()
    with suppress(OSError):  # nobody hears the answer
        serve(connection, built)


def _end_with_the_parent(parent: int) -> None:
    """A driver that was killed needs nothing more of this process."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main() -> None:
    """Entry point of a process that starts afresh; what it unpickles is its own user's study."""
    connection: Connection = Connection(int(os.environ.pop(SOCKET_VARIABLE)))
    one_thread()
    allow_imports(*map(Path, connection.recv()))
    study = connection.recv()
    _serve(connection, (study, build(study)))


if __name__ == "__main__":
    main()
