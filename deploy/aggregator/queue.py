"""Several studies at one aggregator: one after another, on one port, and each can be paused and resumed.

The next one begins when the one before has ended, was stopped, is paused, or has waited too long for
hospitals, which puts it behind the others. Every run keeps on the disk what it needs to go on, so a queue has
no state of its own: what is there says what is left to do.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from secfed.deploy.transport.signals import Stopped, Stopper, StudyPaused
from secfed.errors import ConfigError, DiskFull, LinkError, SecfedError
from secfed.records.transcript import CLOSED
from secfed.runs.run_folder import TRANSCRIPT_FILE

_LOOK_S: Final = 1.0
_LONG_S: Final = 600.0  # opens any study, so that turns that are too short for it grow up to here
_LAST_BYTES: Final = 1 << 16  # the last line of a transcript is shorter

GivesWay = Callable[[float], bool]  # whether a study that has waited so many seconds is put aside
Serve = Callable[["QueuedStudy", GivesWay], None]


@dataclass(frozen=True)
class QueuedStudy:
    """A study file, and the folder of its run."""

    file: Path
    out: Path

    @property
    def name(self) -> str:
        """The study's name; that of the file where it cannot be read, which the study's turn reports."""
        try:
            return str(tomllib.loads(self.file.read_text(encoding="utf-8"))["study"]["name"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.file.stem

    @property
    def is_over(self) -> bool:
        """Whether its run has ended, and the hospitals were told; they were given time to take the model.

        A file that holds another study than the run is not over: its turn says what is wrong with it.
        """
        try:
            with (self.out / TRANSCRIPT_FILE).open("rb") as stream:
                first = json.loads(stream.readline(_LAST_BYTES))
                stream.seek(max(0, stream.seek(0, 2) - _LAST_BYTES))
                closed = bool(json.loads(stream.read().splitlines()[-1])["kind"] == CLOSED)
            text = self.file.read_text(encoding="utf-8")
            return closed and _is_of(str(first["body"]["study"]), text, self.name)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return False  # not begun, or a line is half written


class StudyQueue:
    """The studies of some files and folders, in the order in which they are named, and of their file names.

    Args:
        sources: study files; every ``.toml`` of a folder counts, also one that is put there later.
        out: the run's folder of a single study file; else where each study has a folder of its file's name.
        is_paused: whether the operator has paused the study of this name.
        tell: for the operator's log.
        stopper: turns Ctrl-C into ``Stopped``.
        patience_s: how long a study waits for hospitals while another one waits for its turn; twice as long
            after every turn that it gave away, up to ten minutes.

    Raises:
        ConfigError: a source is not there, or two studies would share a run's folder.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        out: Path,
        is_paused: Callable[[str], bool],
        tell: Callable[..., None],
        stopper: Stopper,
        patience_s: float = _LONG_S,
    ) -> None:
        self._sources, self._out = tuple(sources), out
        self.is_single = len(self._sources) == 1 and not self._sources[0].is_dir()
        self._is_paused, self._tell, self._stopper = is_paused, tell, stopper
        self._patience_s = patience_s
        if math.isnan(patience_s):  # every study would give way at once
            raise ConfigError("--patience nan: is not a number", remedy="leave it out for 600 seconds")
        for source in self._sources:
            if not source.exists():
                raise ConfigError(f"{source}: no such file or folder", remedy="name studies that are there")
        if not self.studies():
            raise ConfigError(
                f"{', '.join(map(str, self._sources))}: no study is there",
                remedy="put study files into the folder; their names end in .toml",
            )

    def studies(self) -> tuple[QueuedStudy, ...]:
        """Every study, as the folders are now."""
        if self.is_single:
            return (QueuedStudy(self._sources[0], self._out),)
        files = [file for source in self._sources for file in _files(source)]
        by_stem = {file.stem: file for file in files}
        for file in files:
            if by_stem[file.stem].resolve() != file.resolve():
                raise ConfigError(
                    f"{file} and {by_stem[file.stem]}: would share the folder {self._out / file.stem}",
                    remedy="give one of the files another name",
                )
        return tuple(QueuedStudy(file, self._out / stem) for stem, file in by_stem.items())

    def has_more(self) -> bool:
        """Whether a study is left, beside one that is over."""
        return not self.is_single and not all(one.is_over for one in self.studies())

    def _left(self, done: Collection[Path]) -> list[QueuedStudy]:
        """What is still to be served, as the folders are now."""
        return [one for one in self.studies() if one.file not in done and (self.is_single or not one.is_over)]

    def run(self, serve: Serve) -> None:
        """Serve every study that is not over, until none is left; paused ones are waited for.

        A study that fails does not keep the others from their turn; the first failure is raised at the end,
        that of a full disk also where nothing but paused studies is left.

        Raises:
            Stopped: by the operator.
            LinkError: the address cannot be had.
            SecfedError: of the first study that failed.
        """
        failures: dict[Path, SecfedError] = {}
        served: set[Path] = set()
        gave_way: Counter[Path] = Counter()
        paused: frozenset[str] = frozenset()
        while True:
            done = {*failures, *served}
            left = self._left(done)
            if not left:
                break
            names = {one.file: one.name for one in left}
            paused = self._tell_of_pauses(paused, frozenset(filter(self._is_paused, names.values())))
            ready = [one for one in left if names[one.file] not in paused]
            if not ready and any(error.exit_code == DiskFull.exit_code for error in failures.values()):
                break  # started again, this goes on with the study that met the full disk
            if not ready:
                with self._stopper.waiting():
                    time.sleep(_LOOK_S)
                continue
            one = min(ready, key=lambda item: gave_way[item.file])  # the first of those that did so least
            if not self.is_single:
                others = [names[other.file] for other in left if other is not one]
                self._tell("turn", study=names[one.file], out=str(one.out), queued=others)
            try:
                serve(one, self._gives_way(one, done, gave_way[one.file]))
                served.add(one.file)
            except StudyPaused:
                if not self._is_paused(names[one.file]):
                    gave_way[one.file] += 1
                    self._tell("gave_way", study=names[one.file])
            except (Stopped, LinkError):
                raise
            except SecfedError as error:
                # Without frames: they hold the run, its model and its open files.
                error.__context__ = None
                failures[one.file] = error.with_traceback(None)
                if not self.is_single:
                    self._tell("failed", study=names[one.file], reason=str(error))
        if failures:
            raise next(iter(failures.values()))

    def _gives_way(self, study: QueuedStudy, done: Collection[Path], before: int) -> GivesWay:
        name = study.name
        patience_s = min(self._patience_s * 2.0 ** min(before, 20), max(self._patience_s, _LONG_S))

        def gives_way(waited_s: float) -> bool:
            if self._is_paused(name):
                return True
            if waited_s <= patience_s:
                return False
            try:  # looked for now: one may have been put there since this turn began
                return any(not self._is_paused(other.name) for other in self._left({*done, study.file}))
            except ConfigError:
                return True  # of the folder; said where the next turn is given

        return gives_way

    def _tell_of_pauses(self, before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
        for event, names in (("paused", now - before), ("continued", before - now)):
            for name in sorted(names):
                self._tell(event, study=name)
        return now


@lru_cache(maxsize=256)
def _is_of(study: str, text: str, name: str) -> bool:
    """Whether a run, by its study's id, is of the study of this text; by the name where it cannot be read."""
    from secfed.study.limits import study_id  # brings torch
    from secfed.study.study import Study

    try:
        return study == study_id(Study.parse(text))
    except SecfedError:
        return study.rpartition("-")[0] == name


def _files(source: Path) -> Iterator[Path]:
    if source.is_dir():
        yield from sorted(path for path in source.glob("*.toml") if path.is_file())
    else:
        yield source
