"""A run in TensorBoard: one folder per run, with one event file.

A resumed run writes the file anew, with the rounds before it, so no round is there twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from secfed.errors import missing_package
from secfed.runs.tracking import Point, TrackedRun

_OWN: Final = "events.out.tfevents.*.secfed"
_UNSAFE: Final = re.compile(r"[^\w.-]|^\.", re.ASCII)


class TensorBoardWriter:
    """Writes below the folder, which may hold other runs.

    Raises:
        ConfigError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboardX
            from tensorboardX import summary
            from tensorboardX.proto import event_pb2
        except ImportError:
            raise missing_package("--track tensorboard", "tensorboardX") from None
        # Not SummaryWriter, which writes on a thread of its own, where an error is lost.
        self._open, self._events, self._summary = tensorboardX.RecordWriter, event_pb2, summary
        self._folder = folder.absolute()
        self._file: Any = None

    def begin(self, run: TrackedRun, *, resumed: bool) -> set[tuple[str, int]]:  # noqa: ARG002 - the interface's
        """Replace the event file of an earlier start; the rounds that it had come again."""
        simulated = "-simulated" if run.simulated else ""
        folder = self._folder / f"{_UNSAFE.sub('_', run.study)}-{run.identity[:8]}{simulated}"
        folder.mkdir(parents=True, exist_ok=True)
        earlier = list(folder.glob(_OWN))
        # TensorBoard finds event files by "tfevents". No name of this machine, as other writers put there.
        self._file = self._open(str(folder / f"events.out.tfevents.{time.time_ns()}.secfed"))
        self._add(file_version="brain.Event:2")
        # A TensorBoard that is open forgets what the earlier file said.
        self._add(session_log=self._events.SessionLog(status=self._events.SessionLog.START))
        self._tell("run", run.facts())
        for file in earlier:
            file.unlink()
        return set()

    def write(self, point: Point) -> None:
        """Add a scalar for each value; of the model before training, known last of all, a text."""
        if point.step == 0:  # a curve that ends at 0 would be drawn backwards
            self._tell("before_training", {name: f"{value:.6g}" for name, value in point.values.items()})
            return
        for name, value in point.values.items():
            made = self._summary.scalar(name, value)
            self._add(point.time_s, step=point.step, summary=made)
        self._file.flush()

    def end(self, facts: Mapping[str, str]) -> None:
        """Add the facts as text."""
        self._tell("result", facts)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _tell(self, name: str, facts: Mapping[str, str]) -> None:
        self._add(summary=self._summary.text(name, json.dumps(facts, ensure_ascii=False)))
        self._file.flush()

    def _add(self, time_s: float | None = None, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time() if time_s is None else time_s, **content)
        self._file.write(event.SerializeToString())
