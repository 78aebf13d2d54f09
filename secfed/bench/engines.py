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
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from secfed.engine.options import EngineOptions
from secfed.runs.run_folder import MODEL_FILE
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

_COMMAND: Final = "from secfed.cli import main; main()"
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
        ``equal_bytes``: whether all models are the same; ``flower_round_s`` and ``flower_total_s``: Flower's,
        None without it.
    """
    text = STUDY.format(rounds=rounds, epochs=epochs, sites=sites)
    study = Study.parse(text)
    engines = {"inline": EngineOptions()} | {f"processes_{workers}": EngineOptions("processes", workers)}
    if find_spec("ray") is not None:
        engines[f"ray_{workers}"] = EngineOptions("ray", workers)
    rounds_s: dict[str, float] = {}
    start_s: dict[str, float] = {}
    total_s: dict[str, float] = {}
    models = set()
    for name, options in engines.items():
        progress(name)
        with TemporaryDirectory(prefix="secfed-bench-") as folder:
            began = time.perf_counter()
            report = simulate(study, out=Path(folder), engine=options)
            total_s[name] = time.perf_counter() - began
            models.add((Path(folder) / MODEL_FILE).read_bytes())
        rounds_s[name] = statistics.median(one.busy_s for one in report.rounds[1:])
        start_s[name] = _start(text, options)
    progress("Flower")
    flower = _flower(rounds, epochs, sites, workers)
    return {
        "sites": sites,
        "epochs": epochs,
        "rounds": rounds,
        "round_s": min(value for name, value in rounds_s.items() if name != "inline"),
        "rounds_s": rounds_s,
        "start_s": start_s,
        "total_s": total_s,
        "speedup": {name: rounds_s["inline"] / value for name, value in rounds_s.items() if name != "inline"},
        "equal_bytes": len(models) == 1,
        "flower_round_s": None if flower is None else flower[0],
        "flower_total_s": None if flower is None else flower[1],
    }


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


def _flower(*asked: int) -> tuple[float, float] | None:
    """Median seconds of a round, and of everything but imports; in a process that Ray ends with."""
    if find_spec("ray") is None or find_spec("flwr") is None:
        return None
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = [sys.executable, "-m", "secfed.bench.engines_flower", *map(str, asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    times = [float(line.removeprefix("at ")) for line in done.stdout.splitlines() if line.startswith("at ")]
    if done.returncode != 0 or len(times) < 5:
        return None
    rounds = [after - before for before, after in pairwise(times[1:-1])]
    return statistics.median(rounds[1:]), times[-1] - times[0]
