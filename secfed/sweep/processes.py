"""Jobs in child processes: each with one thread, its own log, and no longer a life than its parent's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secfed.sweep.plan import SweepRun
from secfed.sweep.store import LOG_FILE

_ENVIRONMENT: Final = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
_TAIL_BYTES = 1024


@dataclass(frozen=True)
class ProcessRunner:
    """One child process per run."""

    paths_from: Path  # where relative paths of the studies start
    debug: bool = False  # whether a run that fails also leaves where in the code it did

    def start(self, run: SweepRun, part: Path) -> ChildProcess:  # noqa: ARG002 - the folder holds the study
        """Start a process for a run into its folder ``NAME.part``, which holds ``study.toml``."""
        command = [sys.executable, "-P", "-m", "secfed.sweep.child", str(part.resolve())]
        command += ["--paths-from", str(self.paths_from.resolve()), *(["--debug"] if self.debug else [])]
        return ChildProcess.start(command, part / LOG_FILE)


@dataclass(frozen=True)
class ChildProcess:
    """A job in a child process; with its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: Sequence[str], log: Path) -> ChildProcess:
        """Start it, in a session of its own: its worker processes can be ended with it."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to; closes when this process ends
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,
            )
        return cls(process, log)

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
        return last_line(self.log)

    def _release(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


def last_line(path: Path) -> str:
    """The last line of a run's log."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # renamed with its folder: the run has just ended
        return "finished"
    return next((line for line in reversed(lines) if line.strip()), "starting")
