"""A simulation that outlives its process: what it keeps between two rounds, so that the same command goes on.

    OUT/unfinished          states of the server and of every site, keys, reports, lengths of all records
    OUT/unfinished-sums/    where the sites open the sums: those sums

Both are gone when the run is over. A run goes on at the beginning of a round: what the killed process wrote
behind it into transcripts and ledgers is cut off, and the same work follows, from the same seeds. To keep
takes a fiftieth of a run's time at most, and nothing in its first second.

Security: the file (mode 0600) holds the keys of the simulated parties. All of them are this user's, and
rounding and noise of a simulation follow from the study's seed anyway; between machines nothing of this is
used.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from secfed.config.plugins import source_of
from secfed.crypto.identity import Identity
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.runs.machine import machine
from secfed.runs.run_folder import ANOTHER_FOLDER, UNFINISHED_FILE, remove_unfinished
from secfed.server.coordinator import Position
from secfed.simulation.dropouts import Dropout
from secfed.storage.atomic import PART, unwritable_errors
from secfed.storage.failpoints import failpoint
from secfed.study.study import Study
from secfed.wire.frames import untied
from secfed.wire.layout import State

_FACTS: Final = "secfed"  # the name of our facts in the safetensors header
_SERVER: Final = "server/"
_FIRST_S: Final = 1.0  # a shorter run is as quickly begun again
_WORK_PER_KEPT: Final = 50.0  # seconds of work between two writes, per second that one takes


@dataclass(frozen=True)
class Left:
    """What a killed simulation left."""

    path: Path
    position: Position  # the next round
    stamp: Mapping[str, Any]  # of what it was run with
    lengths: Mapping[str, int]  # of its records at that time, in bytes, by their place in the folder
    facts: Mapping[str, Any]  # of the aggregator
    notes: Mapping[str, Any] = field(repr=False)  # plain JSON, as :class:`Unfinished` was given them

    def identity(self, name: str) -> Identity:
        """The identity that was made for a party."""
        return Identity.from_seed(name, bytes.fromhex(self.notes["identities"][name]))

    def state(self, prefix: str) -> State:
        """The tensors that were kept under such names, without the prefix."""
        with safe_open(self.path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - no mapping
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}

    def cut(self, path: Path) -> None:
        """Cut off what was written into a record since."""
        length = self.lengths.get(path.relative_to(self.path.parent).as_posix())
        if length is not None:
            os.truncate(path, length)


def left_in(out: Path) -> Left | None:
    """What a killed simulation left in its folder; None where nothing can be gone on with."""
    path = out / UNFINISHED_FILE
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()[_FACTS])
        left = Left(path, Position(*facts.pop("position")), **facts)
        whole = all((out / name).stat().st_size >= length for name, length in left.lengths.items())
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return None  # there is none, or the machine went down before its disk had everything
    return left if whole else None


class Unfinished:
    """Keeps one simulation; see :class:`secfed.server.coordinator.Keeper`.

    Args:
        out: folder of the run.
        stamp: says what the run is made with, read before anything of it ran.

    Raises:
        ConfigError: the folder holds the beginning of a run that was made with something else.
    """

    def __init__(self, out: Path, stamp: Mapping[str, Any]) -> None:
        self._out, self._stamp = out, stamp
        self.left = left_in(out)
        if self.left is not None:
            _check(out, self.left.stamp, stamp)
        self.start = Position() if self.left is None else self.left.position
        self.state: State | None = None if self.left is None else self.left.state(_SERVER)
        self.facts: Mapping[str, Any] = {} if self.left is None else self.left.facts
        # Gives tensors, notes and records beside those of the aggregator.
        self.collect: Callable[[], tuple[State, Mapping[str, Any], Sequence[Path]]] = lambda: ({}, {}, ())
        self._next_s = time.perf_counter() + _FIRST_S

    def is_due(self, position: Position) -> bool:
        """Between rounds, once it is cheap enough."""
        between = position.exchange_index == 0 and position.round > 1
        return between and position != self.start and time.perf_counter() >= self._next_s

    def keep(self, position: Position, state: State, facts: Mapping[str, Any]) -> None:
        """Write everything that the rounds before ``position`` left behind."""
        began_s = time.perf_counter()
        tensors, notes, records = self.collect()
        about = {
            "position": [position.round, position.exchange_index],
            "stamp": self._stamp,
            "lengths": {path.relative_to(self._out).as_posix(): path.stat().st_size for path in records},
            "facts": facts,
            "notes": notes,
        }
        path = self._out / UNFINISHED_FILE
        coming = path.with_name(path.name + PART)
        everything = untied({**tensors, **{_SERVER + name: value for name, value in state.items()}})
        failpoint("simulation: before its state is written")
        with unwritable_errors(coming):
            coming.touch(mode=0o600)
            save_file(everything, coming, metadata={_FACTS: json.dumps(about, allow_nan=True)})
            coming.chmod(0o600)
            with coming.open("rb") as written:
                os.fsync(written.fileno())
        failpoint("simulation: after its state is written")
        with unwritable_errors(path):
            os.replace(coming, path)
        failpoint("simulation: after its state is in place")
        now_s = time.perf_counter()
        self._next_s = now_s + _WORK_PER_KEPT * (now_s - began_s)

    def end(self) -> None:
        """The run is over: there is nothing to go on with."""
        remove_unfinished(self._out)


def stamp_of(
    study: Study, drops: Sequence[Dropout], budgets: Mapping[str, float], engine: EngineOptions
) -> dict[str, Any]:
    """What must be the same for a run to go on: whatever can change its numbers."""
    path = getattr(study.data, "path", None)
    ran_on = machine(engine.threads)
    return {
        "study": study.digest(operational=True).hex(),
        "--drop": sorted(map(str, drops)),
        "--budget": dict(sorted(budgets.items())),
        "--site-deadline": engine.site_deadline_s,
        "--threads": engine.threads,
        "own code": {name: source_of(name) for name in study.own_code},
        "data": None if path is None else _dated(study.folder / str(path)),
        "secfed": [ran_on["build"], ran_on["packages"]],
        "machine": [ran_on["processor"], ran_on["system"], ran_on["python"]],
    }


def _size_and_date(path: Path) -> list[int | str] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _dated(path: Path) -> list[int | str] | None:
    """Size and date; those of a folder, and a digest of the names, sizes and dates of all that is below."""
    own = _size_and_date(path)
    if own is None or not path.is_dir():
        return own
    below = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted([*folders, *files]):
            below.update(json.dumps([folder, name, _size_and_date(Path(folder, name))]).encode())
    return [*own, below.hexdigest()]


def _check(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Never go on with something else than the run was begun with."""
    now = json.loads(json.dumps(now))
    other = [name for name in now if before.get(name) != now[name]]
    if other:
        raise ConfigError(
            f"--out {out}: holds a run that was killed, and something differs since: {', '.join(other)}",
            remedy=f"run it as it was begun to go on, add --overwrite to begin again, or {ANOTHER_FOLDER}",
        )
