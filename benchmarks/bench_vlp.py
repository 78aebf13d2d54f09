"""Federated vision-language pre-training on this machine: step time, memory, and what protection costs.

    python benchmarks/bench_vlp.py [--size paper] [--batch 72] [--steps 50] [--rounds 2] [--no-page]

Runs FedDRA with five sites on synthetic chest images, masked: the papers' size on a GPU where there is one,
on which all sites take turns, and a tiny model otherwise. Prints the time of a joint step, the peak of
memory, and the share of a round that protection takes; rewrites its section of docs/benchmarks.md. Weights
are random: what is measured does not depend on them.

    python benchmarks/bench_vlp.py --size paper --batch 4 --count

counts the floating-point operations of a step instead: with the speed a device reaches, the time it needs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import sections
import torch
from torch.utils.flop_counter import FlopCounterMode
from vlp_oracle import algorithm_of

from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.plan import JOINT
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

SITES, GOAL = 5, 0.02  # of a round's time
_WARMUP = 3


def main() -> int:
    asked = _arguments()
    study = Study.parse(study_text(asked))
    algorithm = algorithm_of(study)
    if asked.count:
        for stage, operations in _operations(algorithm).items():
            print(f"{stage} step: {operations / asked.batch / 1e12:.3f} TFLOP per pair")
        return 0
    step_ms, peak_gb = joint_step(algorithm, asked.measured)
    seconds = round_seconds(study)
    every = sum(seconds.values())
    share = seconds["protect"] / every
    parameters = sum(value.numel() for value in algorithm.initial.values())
    device = algorithm.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    memory = "the device, one site" if device.type == "cuda" else "the process"
    rows = [
        ["parameters", f"{parameters / 1e6:,.1f} million"],
        ["device, precision, pairs per step", f"{name}, {asked.precision}, {asked.batch}"],
        ["joint step with anchor (median)", f"{step_ms:,.0f} ms"],
        [f"peak memory of {memory}", f"{peak_gb:.1f} GB"],
        ["one round, five sites one after the other", f"{every:,.1f} s"],
        *[[f"of it: {phase}", f"{spent:,.1f} s"] for phase, spent in seconds.items()],
        ["share of protection (goal: at most 2 %)", f"{100 * share:.1f} %, {share / GOAL:.1f}x the goal"],
    ]
    text = sections.table(["", "measured"], rows)
    print(text)
    if not asked.no_page:
        command = "python benchmarks/bench_vlp.py " + " ".join(sys.argv[1:])
        sections.write("vlp", "Vision-language pre-training", f"    {command.strip()}\n\n{text}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpu = torch.cuda.is_available()
    size, precision = ("paper", "bfloat16") if gpu else ("tiny", "float32")
    parser.add_argument("--size", choices=("tiny", "small", "paper"), default=size, help=f"default {size}")
    parser.add_argument("--batch", type=int, default=72 if gpu else 64, help="pairs per step")
    parser.add_argument("--steps", type=int, default=50, help="joint steps of a round; 0.4 as many align")
    parser.add_argument("--rounds", type=int, default=2, help="the first round is not counted")
    parser.add_argument("--measured", type=int, default=10, help="joint steps that are timed one by one")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default=precision)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--count", action="store_true", help="count the operations of a step, and end")
    parser.add_argument("--no-page", action="store_true", help="print only")
    asked = parser.parse_args()
    if asked.rounds < 2:
        parser.error("--rounds: at least 2, as the first one is not counted")
    return asked


def study_text(asked: argparse.Namespace) -> str:
    image = 224 if asked.size == "paper" else 32
    return f"""
[study]
name = "bench-vlp"
rounds = {asked.rounds}
[algorithm]
name = "feddra"
align_steps = {max(1, round(0.4 * asked.steps))}
joint_steps = {asked.steps}
batch_size = {asked.batch}
loss_batches = 4
precision = "{asked.precision}"
evaluate = "last"
[model]
name = "vision-language"
size = "{asked.size}"
gradient_checkpointing = {str(asked.checkpointing).lower()}
[data]
name = "chest-synthetic"
sites = {SITES}
train = {max(2 * asked.batch, 256)}
test = 64
size = {image}
[protection]
name = "masked"
threshold = 4
bound = 0.1
"""


def joint_step(algorithm: VlpAlgorithm, measured: int) -> tuple[float, float]:
    """Median of a joint step in milliseconds, and the peak of memory in GB, at one site."""
    site, device = algorithm.site(algorithm.setting.sites[0]), algorithm.device
    received = dict(algorithm.initial)
    stage = next(stage for stage in algorithm.stages(1) if stage.name == JOINT)
    loss, times = site.loss(1, stage, received), list[float]()

    def timed(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter())
        return loss(model, batch)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    site.fit(1, replace(stage, steps=_WARMUP + measured + 1), timed)
    steps = [after - before for before, after in pairwise(times)][_WARMUP:]
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1000 * statistics.median(steps), peak / 1e9


def _operations(algorithm: VlpAlgorithm) -> dict[str, int]:
    """Floating-point operations of one step by stage, forward and backward, recomputation included."""
    site, received, counted = algorithm.site(algorithm.setting.sites[0]), dict(algorithm.initial), {}
    for stage in (stage for stage in algorithm.stages(1) if stage.trained):
        loss = site.loss(1, stage, received)
        with FlopCounterMode(display=False) as counter:
            site.fit(1, replace(stage, steps=1), loss)
        counted[stage.name] = counter.get_total_flops()
    return counted


def round_seconds(study: Study) -> dict[str, float]:
    """Seconds of the last training round by phase; the first one warms up."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulate(study, out=out, drops=(), observer=SilentObserver())
        rounds = json.loads((out / "run.json").read_text(encoding="utf-8"))["rounds"]
    return dict(rounds[-1]["seconds"])


if __name__ == "__main__":
    sys.exit(main())
