"""A small sweep file, a runner that only pretends, and the command by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from secfed.cli.guard import GuardedGroup
from secfed.cli.sweep import sweep
from secfed.errors import SecfedError
from secfed.sweep.child import note_failure
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import SweepPlan, SweepRun, make_plan, read_study

STUDY = """
[study]
name = "small"
rounds = 1
[algorithm]
name = "fedavg"
learning_rate = 0.1
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 4
[protection]
name = "plain"
"""

RATES = (
    STUDY
    + """
[sweep]
seeds = [1, 2]
"algorithm.learning_rate" = [0.1, 0.2, 0.3]
"""
)

# Two ways to vary "strength"; inf is the study without either, so it is the same study in both.
CURVES = (
    STUDY
    + """
[sweep]
seeds = [1, 2, 3]
[sweep.axes]
strength = [inf, 0.5, 0.25]
[[sweep.variant]]
name = "momentum"
label = "Momentum | SGD"
note = "not a guarantee: it only looks like one"
axis = { strength = "algorithm.momentum" }
remove_at_inf = { strength = [] }
[[sweep.variant]]
name = "decay"
axis = { strength = "algorithm.weight_decay" }
remove_at_inf = { strength = [] }
[sweep.figure]
x_scale = "log"
title = "Two curves"
"""
)

# A variant of CURVES that no version can run.
LATER = """
[[sweep.variant]]
name = "later"
optional = true
set = { algorithm.name = "fedlater" }
axis = { strength = "algorithm.mu" }
remove_at_inf = { strength = [] }
"""


def sweep_file(text: str, folder: Path = Path()) -> SweepFile:
    return SweepFile.parse(text, folder=folder)


@cache
def plan(text: str = RATES) -> SweepPlan:
    return make_plan(sweep_file(text))


def metrics_of(run: SweepRun) -> dict[str, float | None]:
    """Numbers that depend on the study and the seed in a known way."""
    study = read_study(run.text, Path())
    rate = float(study.algorithm.model_dump()["learning_rate"])
    return {"accuracy": 0.5 + rate + 0.01 * study.seed, "undefined": None}


@dataclass
class PretendedRun:
    runner: PretendingRunner
    work: Callable[[], None]
    polls: int
    ended_by: str = ""
    stopped: bool = False

    def over(self) -> bool:
        self.polls -= 1
        if self.polls >= 0:
            return False
        self.work()
        self.runner.running -= 1
        return True

    def stop(self) -> None:
        self.stopped = True

    def signal(self) -> str:
        return self.ended_by

    def now(self) -> str:
        return "round 1/1"


@dataclass
class PretendingRunner:
    """Writes what a run would leave behind, without training anything.

    Attributes:
        fails: title of a run to the error it fails with.
        ended_by: title of a run to the signal that ends it.
        polls: how many times a run is asked before it is over.
        started: titles, in order.
        most: the most runs that were running at the same time.
        before: called before each start.
    """

    fails: dict[str, Exception] = field(default_factory=dict)
    ended_by: dict[str, str] = field(default_factory=dict)
    polls: int = 0
    started: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    before: Callable[[SweepRun], None] = lambda run: None
    runs: list[PretendedRun] = field(default_factory=list)

    def start(self, run: SweepRun, part: Path) -> PretendedRun:
        self.before(run)
        self.started.append(run.title)
        self.running += 1
        self.most = max(self.most, self.running)
        signal = self.ended_by.get(run.title, "")
        made = PretendedRun(self, lambda: None if signal else self._work(run, part), self.polls, signal)
        self.runs.append(made)
        return made

    def _work(self, run: SweepRun, part: Path) -> None:
        error = self.fails.get(run.title)
        if error is not None:
            note_failure(part, error, debug=False)
        else:
            pretend_result(part, run.digest, metrics_of(run))


def pretend_result(part: Path, digest: str, final: dict[str, Any]) -> None:
    """What a finished run leaves behind, as far as a sweep reads it."""
    (part / "run.json").write_text(json.dumps({"final": final}))
    (part / "finished.json").write_text(json.dumps({"study_digest": digest, "seconds": 1.5}))
    part.rename(part.with_name(part.name.removesuffix(".part")))


app = typer.Typer(cls=GuardedGroup, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def options(debug: bool = False) -> None:
    pass


app.command("sweep")(sweep)


def secfed_sweep(*arguments: object, columns: int = 120) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["sweep", *map(str, arguments)])


def error_of(work: Callable[[], object]) -> SecfedError:
    try:
        work()
    except SecfedError as error:
        return error
    raise AssertionError("nothing was refused")


if __name__ == "__main__":
    app()
