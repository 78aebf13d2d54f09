"""Private steps, one in each exchange: how many a second; a section of docs/benchmarks.md.

    python benchmarks/bench_exchanges.py [--quick] [--json]

``fedsgd`` with noise in the sum, masked, a small network on the digits. In a simulation with four hospitals,
and with three agents and an aggregator as processes over gRPC on this machine (examples/three-hospitals).
Beside both, from the same run, the local work alone: the clipped gradients of all hospitals' records, one
hospital after the other. The median over all exchanges but the first two counts. Whatever a hospital must not
forget is on its disk before it answers; the last row has all folders in memory, to see what that costs.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sections
import torch
from torch import nn

from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.losses import supervised
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.unit_sums import UnitSums
from secfed.simulation.simulate import simulate
from secfed.study.build import build, build_data
from secfed.study.study import Study

MEMORY = Path("/dev/shm")
ROUNDS = 12 if "--quick" in sys.argv else 60
STUDY = """
[study]
name = "exchanges"
rounds = {rounds}
seed = 1
[algorithm]
name = "fedsgd"
weighting = "equal"
learning_rate = 2.0
records = 1400
evaluate_every = {rounds}
[model]
name = "{model}"
[data]
name = "digits"
sites = {sites}
[protection]
name = "masked"
colluders = 1
[privacy]
unit = "record"
noise = "sum"
epsilon = 3.0
delta = 1e-5
metrics = "unprotected"
"""
POLICY = """
approve = "automatic"
[studies]
names = ["exchanges"]
max_rounds = 1000
[protection]
colluders = 1
[privacy]
noise = ["sum"]
metrics = ["unprotected"]
max_epsilon = 3.0
max_delta = 1e-4
[algorithms.fedsgd]
weighting = "any"
learning_rate = "any"
records = "any"
evaluate_every = "any"
[models.mlp]
hidden = "any"
[models.small-cnn]
[models.logistic-regression]
[[data]]
name = "digits"
source = "digits"
options = "any"
[[data.budget]]
epsilon = 10.0
delta = 1e-4
"""


def main() -> None:
    torch.set_num_threads(1)
    found = [simulated(model) for model in ("logistic-regression", "mlp", "small-cnn")]
    found.append(over_grpc("mlp"))
    if MEMORY.is_dir():
        found.append(over_grpc("mlp", MEMORY))
    if "--json" in sys.argv:
        print(json.dumps(found, indent=2))
        return
    columns = ["model", "where", "exchanges/s", "ms", "local work alone, ms", "its part"]
    rows = [
        [one["model"], one["where"], *(f"{number:.1f}" for number in (1000 / whole, whole, local)), part]
        for one in found
        for whole, local in [(one["ms"], one["local_ms"])]
        for part in [f"{local / whole:.0%}"]
    ]
    told = (__doc__ or "").split("\n\n")[2].replace("``", "`")
    text = ["`python benchmarks/bench_exchanges.py`", told, sections.table(columns, rows)]
    sections.write("exchanges", "Private steps, one in each exchange", "\n\n".join(text))


def study_of(model: str, sites: int) -> str:
    return STUDY.format(rounds=ROUNDS, model=model, sites=sites)


def simulated(model: str) -> dict[str, Any]:
    """Milliseconds of an exchange in a simulation, and of the local work in it."""
    text = study_of(model, 4)
    with TemporaryDirectory() as folder:
        report = simulate(Study.parse(text), out=Path(folder) / "run")
    return row(model, "simulation, 4 sites", [one.busy_s for one in report.rounds], text)


def over_grpc(model: str, where: Path | None = None) -> dict[str, Any]:
    """The same with processes: what the aggregator's record of the run says."""
    text = study_of(model, 3)
    with TemporaryDirectory(dir=where) as folder:
        study, policy, work = (Path(folder) / name for name in ("study.toml", "policy.toml", "work"))
        study.write_text(text)
        policy.write_text(POLICY)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        command = [str(sections.ROOT / "examples" / "three-hospitals" / "run.sh"), str(work)]
        told = {"STUDY": str(study), "POLICY": str(policy), "PORT": str(port)}
        done = subprocess.run(
            command, env={**os.environ, **told}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        report = json.loads((work / "run" / "run.json").read_text())
    phases = [one["seconds"] for one in report["rounds"]]
    seconds = [sum(one.values()) - one.get("wait", 0.0) for one in phases]
    kept = "gRPC, 3 sites" if where is None else "gRPC, 3 sites, disks that take no time"
    return row(model, kept, seconds, text)


def row(model: str, where: str, seconds: list[float], study: str) -> dict[str, Any]:
    return {"model": model, "where": where, "ms": middle(seconds), "local_ms": local_work(study)}


def middle(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds[2:-1])


def local_work(text: str) -> float:
    """Milliseconds for the clipped gradients of all sites, one after the other."""
    study, loss = Study.parse(text), supervised(nn.functional.cross_entropy)
    algorithm = build(study)
    model, privacy, work = algorithm.setting.model(), study.privacy, []
    if privacy is None:
        raise SystemExit("the study is not private")
    for name in build_data(study).sites:
        found = algorithm.site_data(name)
        sums = UnitSums(privacy, seed=1, random=lambda *_: SecureRandom())
        work.append(partial(sums.gradients, model, loss, TensorRecords((found.train_x, found.train_y))))
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for one in work:
            one()
        rounds.append(time.perf_counter() - start)
    return middle(rounds)


if __name__ == "__main__":
    main()
