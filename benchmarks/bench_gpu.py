"""What a GPU takes for a step, protection and privacy, and whether it learns what the processor learns.

    python benchmarks/bench_gpu.py [--tiny] [--no-page]

Made to take less than eight minutes on one GPU: a joint step of FedDRA at the papers' size and its memory,
the share of a round that protection takes (goal: at most 2 %), a private step against a plain one, and the
same training, and the same integers of a sum, on the device and on the processor. Rewrites its section of
docs/benchmarks.md. Without a GPU everything runs in a tiny form on the processor, which shows that the parts
fit, and no page is written.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable

import bench_vlp
import numpy as np
import sections
import torch
from torch import nn
from vlp_oracle import algorithm_of

from secfed.bench.private_models import case
from secfed.crypto.fixedpoint import FixedPoint, Scratch
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.losses import supervised
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining
from secfed.dp.training.step import Steps, StepSettings
from secfed.study.study import Study
from secfed.wire.quantise import on_device

NO_GPU = "no GPU: figures of the CPU, for the wiring only"
_CPU = torch.device("cpu")
_WARM_UP = 3
_TOLERANCE = 1e-3  # of any parameter after 20 steps, whose kernels add in another order


def main() -> int:
    asked = _arguments()
    gpu = torch.cuda.is_available() and not asked.tiny
    device = torch.device("cuda" if gpu else "cpu")
    options = argparse.Namespace(
        size="paper" if gpu else "tiny",
        batch=72 if gpu else 4,
        steps=50 if gpu else 2,
        rounds=2,
        precision="bfloat16" if gpu else "float32",
        checkpointing=False,
    )
    study = Study.parse(bench_vlp.study_text(options)).replace("algorithm.device", device.type)
    step_ms, peak_gb = bench_vlp.joint_step(algorithm_of(study), 20 if gpu else 2)
    seconds = bench_vlp.round_seconds(study)
    share = seconds["protect"] / sum(seconds.values())
    plain_ms, private_ms = private_step(device, steps=20 if gpu else 2, quick=not gpu)
    elements = 1 << (26 if gpu else 16)
    here_s, there_s = quantising(device, elements)
    moved = largest_difference(device)
    rows = [
        ["device", torch.cuda.get_device_name(device) if gpu else NO_GPU],
        [f"joint step of FedDRA, {options.size}, {options.batch} pairs (median)", f"{step_ms:,.1f} ms"],
        ["peak memory of the device" if gpu else "peak memory of the process", f"{peak_gb:.2f} GB"],
        ["share of protection in a round (goal: at most 2 %)", f"{100 * share:.2f} %"],
        ["private step over a plain one, records by books", f"{private_ms / plain_ms:.1f}x"],
        ["quantising: processor over device", f"{here_s / there_s:.1f}x"],
        ["integers of device and processor", "equal"],
        [f"largest difference of a parameter after 20 steps (tolerance {_TOLERANCE:g})", f"{moved:.1e}"],
    ]
    text = sections.table(["", "measured"], rows)
    print(text)
    if gpu and not asked.no_page:
        sections.write("gpu", "On a GPU", f"    python benchmarks/bench_gpu.py\n\n{text}")
    return 0 if moved <= _TOLERANCE else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the processor, GPU or not")
    parser.add_argument("--no-page", action="store_true", help="print only")
    return parser.parse_args()


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Wall seconds of one call, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def private_step(device: torch.device, *, steps: int, quick: bool) -> tuple[float, float]:
    """Medians of a plain and of a private step in milliseconds, on the same records."""
    found = case("linear", quick=quick)
    if found is None:
        raise SystemExit("the model of private steps is missing")
    model, data = found
    records = tuple(part.to(device) for part in data)
    model = model.to(device)
    other = copy.deepcopy(model)
    optimiser, private_optimiser = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, other))
    criterion = nn.CrossEntropyLoss()
    plain = Steps(optimiser, lambda x, y: criterion(model(x), y), device, StepSettings())
    mechanism = Mechanism(PrivacyUnit.default(Unit.RECORD), 1.0, 1.0, 1.0)
    training = PrivateTraining(mechanism, engine="ghost", random=SecureRandom())
    loss, total = supervised(criterion), steps + _WARM_UP
    times: tuple[list[float], list[float]] = ([], [])
    with training.session(other, private_optimiser, loss, records=len(data[0]), steps=total) as session:
        rows = TensorRecords(records)
        for _ in range(total):
            times[0].append(_seconds(device, lambda: plain.take(records)))
            times[1].append(_seconds(device, lambda: session.step(rows)))
    medians = [1000 * statistics.median(spent[_WARM_UP:]) for spent in times]
    return medians[0], medians[1]


def quantising(device: torch.device, elements: int) -> tuple[float, float]:
    """Seconds of the processor and of the device for the same integers; an error if they differ."""
    rule = FixedPoint.choose(bound=1.0, bits=32, sites=5)
    values = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    words = np.random.default_rng(1).integers(0, 2**32, elements, np.uint32)
    here, moved = np.empty(elements, np.uint32), values.to(device)
    on_device(rule, moved[:1024], words[:1024])
    scratch, chunk, plain = Scratch(), 1 << 16, values.numpy()

    def on_processor() -> None:
        for at in range(0, elements, chunk):
            part = slice(at, at + chunk)
            rule.quantise(plain[part], words[part], here[part], scratch)

    here_s = _seconds(_CPU, on_processor)
    begun = time.perf_counter()
    there, _ = on_device(rule, moved, words)
    there_s = time.perf_counter() - begun
    if not np.array_equal(here, there):
        raise SystemExit("the device's integers are not the processor's")
    return here_s, there_s


def largest_difference(device: torch.device) -> float:
    """Of any parameter after 20 equal steps on both."""
    trained = []
    for place in (_CPU, device):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
            batch = torch.randn(256, 64), torch.randint(10, (256,))
        model.to(place)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = supervised(nn.CrossEntropyLoss())
        steps = Steps(
            optimiser, lambda x, y, net=model, of=loss: of(net, (x, y)).mean(), place, StepSettings()
        )
        for _ in range(20):
            steps.take(batch)
        trained.append([value.detach().cpu() for value in model.parameters()])
    return max(float((one - other).abs().max()) for one, other in zip(*trained, strict=True))


if __name__ == "__main__":
    sys.exit(main())
