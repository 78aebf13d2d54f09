"""One study under every engine, and Flower's simulation of the same study, in one run.

The study is FedAvg of a small CNN on the digits that come with scikit-learn, masked. Flower does the same
training on the same records without any protection.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from secfed.bench.cpu_seconds import cpu_by_kind, per_round
from secfed.engine.options import EngineOptions
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import RoundReport
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

_COMMAND: Final = "from secfed.cli import main; main()"
# Simulates a study by itself once it is told to begin; prints the median seconds of a round.
_ALONE: Final = """
import statistics, sys, tempfile
from pathlib import Path
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
study = Study.parse(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with tempfile.TemporaryDirectory(prefix="secfed-bench-") as folder:
    report = simulate(study, out=Path(folder))
print(statistics.median(one.busy_s for one in report.rounds[1:]), flush=True)
"""
_REPEATS: Final = 3
STUDY: Final = """
[study]
name = "engines"
rounds = {rounds}
seed = 3
[algorithm]
name = "fedavg"
local_epochs = {epochs}
batch_size = 32
learning_rate = 0.05
[model]
name = "small-cnn"
channels = [8, 16]
hidden = 32
[data]
name = "digits"
sites = {sites}
[protection]
name = "masked"
"""


def measure(
    *, sites: int, epochs: int, rounds: int, workers: int, progress: Callable[[str], object]
) -> dict[str, Any]:
    """Rounds of one study under every engine that is installed.

    Returns:
        ``rounds_s``: median seconds of a round by engine, the first one left out; ``round_s``: of the fastest
        engine with several workers; ``start_s``: from the command to the first round; ``total_s``: of
        everything but imports; ``speedup``: of ``rounds_s`` over inline, by engine and workers;
        ``limit``: the speed-up of as many processes that each simulate the whole study alone, measured
        in the same run: what the machine's cores give; ``fraction_of_limit``: of ``speedup``;
        ``cpu_s``: processor seconds of a round by engine and kind of process, as
        :func:`secfed.bench.cpu_seconds.cpu_by_kind` tells them apart;
        ``equal_bytes``: whether all models are the same; ``flower_round_s`` and ``flower_total_s``: Flower's,
        None without it.
    """
    text = STUDY.format(rounds=rounds, epochs=epochs, sites=sites)
    study = Study.parse(text)
    engines = {"inline": EngineOptions()} | {f"processes_{workers}": EngineOptions("processes", workers)}
    if find_spec("ray") is not None:
        engines[f"ray_{workers}"] = EngineOptions("ray", workers)
    busy_s: dict[str, list[float]] = {name: [] for name in engines}
    totals: dict[str, list[float]] = {name: [] for name in engines}
    cpu_s: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    models = set()
    for turn in range(_REPEATS):  # in turn, because the cores of a virtual machine are now fast and now slow
        for name, options in engines.items():
            progress(f"{name}, {turn + 1} of {_REPEATS}")
            with TemporaryDirectory(prefix="secfed-bench-") as folder:
                began, spent = time.perf_counter(), _CpuOfRounds()
                report = simulate(study, out=Path(folder), engine=options, observer=spent)
                totals[name].append(time.perf_counter() - began)
                models.add((Path(folder) / MODEL_FILE).read_bytes())
            cpu_s[name].append(per_round(spent.after[1], spent.after[rounds], rounds - 1))
            busy_s[name] += [one.busy_s for one in report.rounds[1:]]
    rounds_s = {name: statistics.median(seconds) for name, seconds in busy_s.items()}
    start_s = {name: _start(text, options) for name, options in engines.items()}
    progress("independent processes")
    limit = _limit(text, workers)
    speedup = {name: rounds_s["inline"] / value for name, value in rounds_s.items() if name != "inline"}
    progress("Flower")
    flower = _flower(rounds, epochs, sites, workers)
    return {
        "sites": sites,
        "epochs": epochs,
        "rounds": rounds,
        "round_s": min(value for name, value in rounds_s.items() if name != "inline"),
        "rounds_s": rounds_s,
        "start_s": start_s,
        "total_s": {name: statistics.median(seconds) for name, seconds in totals.items()},
        "cpu_s": {name: _medians(runs) for name, runs in cpu_s.items()},
        "speedup": speedup,
        "limit": limit,
        "fraction_of_limit": {name: value / limit for name, value in speedup.items()},
        "equal_bytes": len(models) == 1,
        "flower_round_s": None if flower is None else flower[0],
        "flower_total_s": None if flower is None else flower[1],
    }


class _CpuOfRounds:
    """Observes rounds: what each kind of process has spent when a round ends."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, float]] = {}

    def __call__(self, report: RoundReport) -> None:
        if report.round not in self.after:  # told again with its metrics
            self.after[report.round] = cpu_by_kind()


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """By kind of process."""
    return {kind: statistics.median(run.get(kind, 0.0) for run in runs) for run in runs for kind in run}


def _start(study: str, engine: EngineOptions) -> float:
    """Seconds from ``secfed simulate`` to its first line, before the first round."""
    more = ["--workers", str(engine.workers)] if engine.workers else []
    with TemporaryDirectory(prefix="secfed-bench-") as folder:
        file = Path(folder) / "study.toml"
        file.write_text(study)
        began = time.perf_counter()
        command = [sys.executable, "-c", _COMMAND, "simulate", str(file), "--engine", engine.name, *more]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            if process.stderr is not None:
                process.stderr.readline()
            seconds = time.perf_counter() - began
            process.terminate()
    return seconds


def _limit(study: str, workers: int) -> float:
    """Speed-up of so many processes that share nothing: the median of runs, alone and together in turn."""
    runs = []
    for _ in range(_REPEATS):
        (alone,) = _side_by_side(study, 1)
        runs.append(workers * alone / max(_side_by_side(study, workers)))
    return statistics.median(runs)


def _side_by_side(study: str, processes: int) -> list[float]:
    """Median seconds of a round in each of so many processes at once."""
    command = [sys.executable, "-c", _ALONE, study]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SECFED_THREADS": "1"}
    with ExitStack() as started:
        children = [
            started.enter_context(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(processes)
        ]
        pipes = [(child.stdin, child.stdout) for child in children if child.stdin and child.stdout]
        for _, answers in pipes:
            answers.readline()
        for begin, _ in pipes:
            begin.write("begin\n")
            begin.flush()
        return [float(answers.readline()) for _, answers in pipes]


def _flower(*asked: int) -> tuple[float, float] | None:
    """Median seconds of a round, and of everything but imports; in a process that Ray ends with."""
    if find_spec("ray") is None or find_spec("flwr") is None:
        return None
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment.setdefault("RAY_worker_niceness", "0")  # as --engine ray: a busy machine is not its fault
    command = [sys.executable, "-m", "secfed.bench.engines_flower", *map(str, asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    times = [float(line.removeprefix("at ")) for line in done.stdout.splitlines() if line.startswith("at ")]
    if done.returncode != 0 or len(times) < 5:
        return None
    rounds = [after - before for before, after in pairwise(times[1:-1])]
    return statistics.median(rounds[1:]), times[-1] - times[0]
