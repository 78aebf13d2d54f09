"""The parties of a night: processes that are killed, disks that fill up, clocks that jump.

Every party has a disk of its own (a small tmpfs in a mount namespace, so a full one gives the real ENOSPC to
whatever writes there) and a clock of its own (``shifted_clock``). It is started again as its systemd unit
would do it: not after the exit codes of ``RestartPreventExitStatus``, which want an administrator.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from secfed.storage.failpoints import VARIABLE as CRASH_VARIABLE
from tests.conftest import ROOT
from tests.deploy.shifted_clock import VARIABLE as CLOCK_VARIABLE

DISK_BYTES: Final = 256 << 20  # an aggregator wants room for the largest replies
_INSIDE: Final = "SECFED_NIGHT_INSIDE"
_FILLER: Final = "filler"


def enter_mount_namespace(arguments: Sequence[str]) -> None:
    """Start this program again where it may mount; what it mounts is gone with it.

    ``SystemExit`` where that is not possible, with the reason.
    """
    if os.environ.get(_INSIDE):
        return
    command = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        sys.exit(f"A night needs Linux and unshare, to mount small disks: {said}")
    environment = {**os.environ, _INSIDE: "1"}
    os.execvpe(command[0], [*command, sys.executable, "-m", "tests.deploy.night", *arguments], environment)


def restart_prevented(unit: str) -> frozenset[int]:
    """Exit codes after which systemd leaves this unit alone."""
    text = (ROOT / "deploy" / "systemd" / unit).read_text(encoding="utf-8")
    (codes,) = re.findall(r"(?m)^RestartPreventExitStatus=(.+)$", text)
    return frozenset(map(int, codes.split()))


@dataclass
class Party:
    """One process, its disk and its clock.

    Attributes:
        name: of the party.
        folder: the mount point of its disk.
        command: arguments of ``secfed``.
        log: gets its output; not on its disk, which may be full.
        prevented: exit codes after which it is not started again until somebody has acted.
        point: crash point of the next start.
        deaths: what killed it, in order: a crash point, or ``moment``.
        exits: other ends: exit code, and the last line of its log.
    """

    name: str
    folder: Path
    command: Sequence[str]
    log: Path
    prevented: frozenset[int]
    point: str = ""
    deaths: list[str] = field(default_factory=list)
    exits: list[tuple[int, str]] = field(default_factory=list)
    left_alone: bool = False
    process: subprocess.Popen[bytes] | None = None
    _again_s: float = 0.0
    _killed: bool = False
    _armed: str = ""

    @property
    def clock(self) -> Path:
        """The file with the seconds by which its clock is ahead."""
        return self.log.with_suffix(".clock")

    def mount(self) -> None:
        self.folder.mkdir(parents=True)
        options = f"size={DISK_BYTES},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)
        self.shift(0)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=False)

    def shift(self, seconds: float) -> None:
        """Set its clock, also of the running process."""
        new = self.clock.with_suffix(".new")
        new.write_text(str(seconds), encoding="ascii")
        new.replace(self.clock)

    def fill(self) -> None:
        """Leave not a byte free on its disk; again and again, for what is removed there makes room."""
        with (self.folder / _FILLER).open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        (self.folder / _FILLER).unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        return (self.folder / _FILLER).exists()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
        environment[CLOCK_VARIABLE] = str(self.clock)
        environment[CRASH_VARIABLE] = self._armed = self.point
        self.point, self.left_alone, self._killed = "", False, False
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.deploy.shifted_clock", *self.command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL now; :meth:`tend` starts it again."""
        if self.is_running and self.process is not None:
            self._killed = True
            self.process.kill()

    def tend(self) -> str:
        """Start it again where its unit would; what it was killed by since the last look, if it was."""
        if self.process is None or self.left_alone:
            return ""
        code = self.process.poll()
        if code is None:
            return ""
        if self._again_s:
            if time.monotonic() >= self._again_s:
                self._again_s = 0.0
                self.start()
            return ""
        self._again_s = time.monotonic() + 0.5
        if code == -signal.SIGKILL and (self._killed or self._armed):
            self.deaths.append("moment" if self._killed else self._armed)
            return self.deaths[-1]
        self.exits.append((code, self.last_line()))
        if code in self.prevented:
            self.left_alone, self._again_s = True, 0.0
        return ""

    def last_line(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")

    def said_since(self, offset: int) -> str:
        """Its log from this byte on."""
        with self.log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def stop(self) -> int:
        """End it politely; its exit code."""
        if self.process is None:
            return 0
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(90)
                except subprocess.TimeoutExpired:
                    continue
        return self.process.wait()
