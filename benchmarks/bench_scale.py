"""A study of many simulated hospitals: seconds of a round, and memory of the driver and of its workers.

python benchmarks/bench_scale.py [--quick] [--rounds N] [--out FILE] [--draw FILE]

Every row is a process of its own, so that one row's memory is not another's. ``--draw`` makes the figure and the
tables of docs/scale.md from the file that an earlier call wrote, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import sections

EXAMPLE: Final = sections.ROOT / "examples" / "thousand-hospitals.toml"
SITES: Final = (10, 100, 1000)
MOST: Final = 100  # sites that a round asks
HIDDEN: Final = {1: 10_000, 2: 103_210}  # by the number of hidden layers
_MIB: Final = 2**20


def measure(sites: int, engine: str, rounds: int, hidden: list[int]) -> dict[str, Any]:
    """One study, in this process."""
    from secfed.engine.options import EngineOptions
    from secfed.simulation.simulate import simulate
    from secfed.study.study import Study

    study = Study.load(EXAMPLE).replace("study.rounds", rounds).replace("data.sites", sites)
    study = study.replace("model.hidden", hidden).replace("protection.sites_per_round", None)
    if sites > MOST:
        study = study.replace("protection.sites_per_round", MOST)
    options = EngineOptions("processes", 2) if engine == "processes" else EngineOptions()
    with TemporaryDirectory(prefix="secfed-scale-") as folder:
        began, cpu = time.perf_counter(), time.process_time()
        report = simulate(study, out=Path(folder), engine=options)
        total, cpu = time.perf_counter() - began, time.process_time() - cpu
        size = (Path(folder) / "model.safetensors").stat().st_size
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "sites": sites,
        "asked": min(sites, MOST),
        "engine": engine,
        "parameters": size // 4,
        "rounds": rounds,
        "round_s": statistics.median(one.busy_s for one in report.rounds),
        "total_s": total,
        "cpu_s": cpu + children.ru_utime + children.ru_stime,
        "driver_mib": own.ru_maxrss * 1024 / _MIB,
        "worker_mib": children.ru_maxrss * 1024 / _MIB,
        "up_bytes": report.rounds[0].bytes_up_per_site.mean,
        "down_bytes": report.rounds[0].bytes_down_per_site.mean,
        "seconds": {name: statistics.median(one.seconds[name] for one in report.rounds) for name in report.rounds[0].seconds},
    }
