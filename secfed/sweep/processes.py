"""Runs in child processes: each with one thread, its own log, and no longer a life than its sweep's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from secfed.sweep.plan import SweepRun
from secfed.sweep.store import LOG_FILE

_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_TAIL_BYTES = 1024


class Running(Protocol):
    """A run that was started."""

    def over(self) -> bool:
        """Whether it has ended, in success or not."""
        ...

    def stop(self) -> None:
        """End it now; afterwards it writes nothing any more. No effect on a run that is over."""
        ...

    def signal(self) -> str:
        """Name of the signal that ended it, empty if none did."""
        ...

    def now(self) -> str:
        """What it is doing, in a few words."""
        ...


class Runner(Protocol):
    """Starts runs."""

    def start(self, run: SweepRun, part: Path) -> Running:
        """Start a run into its folder ``NAME.part``, which holds ``study.toml``."""
        ...


@dataclass(frozen=True)
class ProcessRunner:
    """One child process per run.

    Attributes:
        paths_from: where relative paths of the studies start.
        debug: whether a run that fails also leaves where in the code it did.
    """

    paths_from: Path
    debug: bool = False

    def start(self, run: SweepRun, part: Path) -> ChildProcess:  # noqa: ARG002 - the folder holds the study
        """Start a process for a run."""
        command = [sys.executable, "-P", "-m", "secfed.sweep.child", str(part.resolve())]
        command += ["--paths-from", str(self.paths_from.resolve()), *(["--debug"] if self.debug else [])]
        with (part / LOG_FILE).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to; closes when this process ends
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | _ONE_THREAD | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # its worker processes can be ended with it
            )
        return ChildProcess(process, part / LOG_FILE)


@dataclass(frozen=True)
class ChildProcess:
    """A run in a child process."""

    process: subprocess.Popen[bytes]
    log: Path

    def over(self) -> bool:
        """Whether the process has ended."""
        if self.process.poll() is None:
            return False
        self._release()
        return True

    def stop(self) -> None:
        """End the process and its workers."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):  # it may end between the two lines
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._release()

    def signal(self) -> str:
        """``SIGKILL``, for example when the memory was not enough."""
        code = self.process.returncode
        if code is None or code >= 0:
            return ""
        try:
            return signal.Signals(-code).name
        except ValueError:  # most real-time signals have no name
            return f"signal {-code}"

    def now(self) -> str:
        """The last line of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode("utf-8", errors="replace").splitlines()
        except FileNotFoundError:  # renamed with its folder: the run has just ended
            return "finished"
        return next((line for line in reversed(lines) if line.strip()), "starting")

    def _release(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
