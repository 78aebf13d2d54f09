"""The same studies in secfed and in Flower: lines to write, seconds in simulation, what each server sees.

    python benchmarks/compare_code.py

Prints the table of docs/compare-code.md. What is counted and run lies in benchmarks/compare; the network and
the records are given to both. Seconds are of the whole command, so of starting Python and, for Flower, Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

HERE: Final = Path(__file__).parent / "compare"
SECFED: Final = "import sys; from secfed.cli import main; sys.exit(main())"
FLOWER: Final = {
    "fedavg": ("flower_means.py", "parameters and number of records"),
    "fedyogi": ("flower_means.py", "parameters and number of records"),
    "scaffold": ("flower_scaffold.py", "parameters and control variate"),
}


def lines(path: Path) -> int:
    """Lines that somebody writes: without empty ones, comments and docstrings of one line."""
    told = (line.strip() for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in told)


def timed(command: Sequence[str]) -> tuple[float, str]:
    """Seconds of a command, and what it printed."""
    places = [str(HERE), os.environ.get("PYTHONPATH", "")]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, places))}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=HERE, env=settings, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def secfed(name: str) -> list[str]:
    """One row: masked sums, the default."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        seconds, _ = timed([sys.executable, "-c", SECFED, "simulate", f"{name}.toml", "--out", str(out)])
        run = json.loads((out / "run.json").read_text())
    sums = sum(one["attempts"] for one in run["rounds"])
    saw = f"{sums + 1} sums over all hospitals; nothing of one"
    count = lines(HERE / f"{name}.toml")
    return [name, "secfed", str(count), f"{seconds:.0f}", f"{run['final']['accuracy']:.3f}", saw]


def flower(name: str) -> list[str]:
    """One row: Flower's simulation on Ray."""
    script, what = FLOWER[name]
    seconds, printed = timed([sys.executable, script, name])
    accuracy = float(printed.rpartition("accuracy ")[2])
    saw = f"every hospital's {what}, in every round"
    return [name, "Flower", str(lines(HERE / script)), f"{seconds:.0f}", f"{accuracy:.3f}", saw]


def main() -> None:
    """Print the table."""
    print("| study | with | lines | seconds | accuracy | what the server sees |")
    print("|---|---|---|---|---|---|")
    for name in FLOWER:
        for row in (secfed(name), flower(name)):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
