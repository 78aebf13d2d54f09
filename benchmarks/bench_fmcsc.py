"""How far FMCSC's training is from the least that its products of matrices take on one core.

    python benchmarks/bench_fmcsc.py

The steps of one seed of examples/fmcsc-mnist-usps-full.toml, counted from its plan, on generated records: the
floating-point operations of each (counted by PyTorch; only products of matrices count), its processor time
in one thread, and the fastest product of float32 matrices that either of PyTorch's two libraries shows here,
measured in between. Operations over that rate are the least minutes of a seed, whoever writes the step: only
more cores, a GPU or fewer bits get below. Sums, scores and the carrying of models are not in these figures.
Of all passes the fastest counts: other work on the machine only adds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import sections
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from secfed.algorithms.fmcsc import losses
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.plan import FmcscPlan
from secfed.algorithms.fmcsc.site import adam_over
from secfed.algorithms.framework.local_training import fit
from secfed.algorithms.framework.parameters import shapes_of
from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetwork, MultiviewNetworks
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.study.study import Study

GOAL_MINUTES = 8
_EXAMPLE = sections.ROOT / "examples" / "fmcsc-mnist-usps-full.toml"
_SITES, _RECORDS, _VIEW_SIZES = 24, 5000 // 24, (784, 784)  # of that study
_PASSES = 2
_CPU = torch.device("cpu")


@dataclass
class Phase:
    """One kind of training: what a visit to a hospital does, and how many steps a seed has of it."""

    name: str
    loss: DeclaredLoss
    parts: tuple[str, ...]
    batch: Batch
    epochs: int  # of one visit, one step each
    visits: int  # of a seed
    seconds: float = field(default=math.inf)  # of one step, the optimiser's making included

    @property
    def steps(self) -> int:
        return self.visits * self.epochs

    def train(self, network: MultiviewNetwork, epochs: int) -> None:
        optimiser = adam_over(network, self.parts, 3e-4)
        fit(network, optimiser, self.loss, lambda: [self.batch], epochs=epochs, device=_CPU)

    def operations(self, network: MultiviewNetwork) -> int:
        """Floating-point operations of the products of one step."""
        with FlopCounterMode(display=False) as counter:
            self.train(network, 1)
        return counter.get_total_flops()

    def time(self, network: MultiviewNetwork) -> None:
        begun = time.process_time()
        self.train(network, self.epochs)
        self.seconds = min(self.seconds, (time.process_time() - begun) / self.epochs)


def phases(study: Study, networks: MultiviewNetworks, records: int = _RECORDS) -> list[Phase]:
    """All training of a seed with 24 hospitals, every second of which holds all views."""
    options, shapes = study.algorithm, networks.shapes
    if not isinstance(options, FmcscOptions):
        raise SystemExit("the study is not one of FMCSC")
    view_sizes, features = shapes.view_sizes, shapes.fuse_head[-1].out_features
    plan = FmcscPlan(
        options=options,
        protection=study.protection,
        rounds=study.rounds,
        seed=study.seed,
        view_of={f"hospital-{at + 1}": (None, 0, None, 1)[at % 4] for at in range(_SITES)},
        views=len(view_sizes),
        classes=10,
        features=features,
        shapes=shapes_of(dict(shapes.named_parameters())),
    )
    sampled = [plan.view_of[site] for at in range(1, plan.first_main_round) for site in plan.sampled(at)]
    full = len(plan.trainers(0)) * (plan.rounds - options.pretrain_rounds)
    generator = torch.Generator().manual_seed(1)
    views = tuple(torch.rand(records, size, generator=generator) for size in view_sizes)
    target = torch.nn.functional.normalize(torch.randn(records, features, generator=generator), dim=1)
    both, all_views = tuple(range(len(views))), losses.multiview_loss(options)
    before = options.pretrain_epochs
    return [
        Phase("pre-training, both views", losses.pretraining_loss(both), ("enc", "dec"), views, before,
              sampled.count(None)),
        Phase("pre-training, one view", losses.pretraining_loss((0,)), ("enc.0", "dec.0"), views[:1], before,
              len(sampled) - sampled.count(None)),
        Phase("all views", all_views, ("enc", "dec", "view_head", "fuse_head"), views, options.local_epochs,
              full),
        Phase("teaching one view", losses.distillation_loss(0, options), ("enc", "dec", "fuse_head"),
              (*views, target), options.distillation_epochs, full * len(views)),
    ]  # fmt: skip


def fastest_product(size: int = 1024) -> float:
    """Operations per second of the fastest float32 product: PyTorch's BLAS, and oneDNN's as a convolution."""
    channels, edge = size // 4, 30
    pixels, kernels = torch.rand(1, channels, edge + 2, edge + 2), torch.rand(channels, channels, 3, 3)
    square = torch.rand(size, size)
    return max(
        _rate(torch.mm, (square, square), 2 * size**3),
        _rate(conv2d, (pixels, kernels), 2 * edge**2 * 9 * channels**2),
    )


def _rate(product: Callable[..., torch.Tensor], factors: Batch, operations: int) -> float:
    product(*factors)
    taken_s = math.inf
    for _ in range(5):
        begun = time.process_time()
        for _ in range(3):
            product(*factors)
        taken_s = min(taken_s, (time.process_time() - begun) / 3)
    return operations / taken_s


def main() -> int:
    torch.set_num_threads(1)
    study = Study.parse(_EXAMPLE.read_text(encoding="utf-8"))
    if not isinstance(study.model, MultiviewModelOptions):
        raise SystemExit(f"{_EXAMPLE.name} trains another model")
    networks = MultiviewNetworks(_VIEW_SIZES, study.model)
    start, peak = networks.start(1), 0.0
    found = phases(study, networks)
    operations = {phase.name: phase.operations(networks.holding(start)) for phase in found}
    for _ in range(_PASSES):
        for phase in found:
            peak = max(peak, fastest_product())
            phase.time(networks.holding(start))
    print(report(found, operations, peak))
    return 0


def report(found: list[Phase], operations: dict[str, int], peak: float) -> str:
    """A table of the phases, and what follows for a seed. ``peak`` in operations per second."""
    lines, total, taken_s = [], 0, 0.0
    for phase in found:
        one, steps = operations[phase.name], phase.steps
        least_s, real_s = one * steps / peak, phase.seconds * steps
        figures = (f"{steps:,}", f"{one / 1e9:.2f}", f"{1e3 * phase.seconds:.1f}")
        minutes = (f"{real_s / 60:.1f}", f"{least_s / 60:.1f}", f"{real_s / least_s:.2f}x")
        lines.append([phase.name, *figures, *minutes])
        total, taken_s = total + one * steps, taken_s + real_s
    least_s = total / peak
    minutes = (f"{taken_s / 60:.1f}", f"{least_s / 60:.1f}", f"{taken_s / least_s:.2f}x")
    lines.append(["a seed", f"{sum(phase.steps for phase in found):,}", "", "", *minutes])
    columns = ["phase", "steps", "GFLOP per step", "ms per step", "minutes", "least", "ratio"]
    table = sections.table(columns, lines)
    needed = total / (60 * GOAL_MINUTES) / 1e9
    return (
        f"{sections.machine()}\n\n{table}\n\n"
        f"Products of float32 matrices: {total / 1e12:.1f} TFLOP, at {peak / 1e9:.0f} GFLOP/s, the fastest "
        f"seen on one core. {GOAL_MINUTES} minutes would take {needed:.0f} GFLOP/s."
    )


if __name__ == "__main__":
    sys.exit(main())
