"""What a private step costs beside a plain one, by engine; a table for docs/benchmarks.md.

    python benchmarks/bench_dp.py [--quick]

Every row is one model and batch size. The plain step and the private steps (forward, backward, clipping,
noise, optimiser) are timed in turns within one run; the ratio is of medians. The private steps draw exactly
as many records as the plain ones, so that the ratio is of equal work.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import sections
import torch
from torch import nn

from secfed.algorithms.models.networks import mlp, small_cnn
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.dp.training.engines import EngineName
from secfed.dp.training.losses import supervised
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.private_loop import PrivateTraining

QUICK = "--quick" in sys.argv
STEPS = 5 if QUICK else 30
ENGINES: tuple[EngineName, ...] = ("hooks", "ghost", "loop")
LOSS = nn.CrossEntropyLoss()


class Layers(nn.Module):
    """A transformer-like stack of linear layers and norms: 0.8 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        block = [nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256)]
        self.blocks = nn.Sequential(*block, *[type(layer)(*_arguments(layer)) for layer in block])
        self.head = nn.Linear(256, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(inputs))
        return out


def _arguments(layer: nn.Module) -> tuple[int, ...]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (256,) if isinstance(layer, nn.LayerNorm) else ()


def main() -> None:
    torch.set_num_threads(1)
    from secfed.algorithms.models.networks import MlpOptions, SmallCnnOptions

    cases: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, int]] = [
        ("mlp, 530 parameters", lambda: mlp((30,), 2, MlpOptions(name="mlp", hidden=(16,))), (30,), 2, 32),
        (
            "small CNN, digits",
            lambda: small_cnn((1, 8, 8), 10, SmallCnnOptions(name="small-cnn", channels=(8, 16), hidden=32)),
            (1, 8, 8),
            10,
            64,
        ),
        ("linear layers and norms, 0.5 M parameters", Layers, (256,), 10, 64),
    ]
    rows = []
    for name, make, shape, classes, batch in cases:
        data = (torch.randn(batch, *shape), torch.randint(classes, (batch,)))
        took: dict[str, list[float]] = {"plain": [], **{engine: [] for engine in ENGINES}}
        steps = {
            "plain": _plain(make(), data),
            **{engine: _private(engine, make(), data) for engine in ENGINES},
        }
        for _ in range(STEPS + 2):  # in turns, so that a busy moment hits all of them; two to warm up
            for kind, step in steps.items():
                began = time.perf_counter()
                step()
                took[kind].append(time.perf_counter() - began)
        middle = {kind: statistics.median(values[2:]) for kind, values in took.items()}
        row = [name, str(batch), f"{middle['plain'] * 1000:.2f}"]
        row += [f"{middle[engine] / middle['plain']:.1f}x" for engine in ENGINES]
        print(*row, flush=True)
        rows.append(row)
    text = "`python benchmarks/bench_dp.py`\n\n" + sections.table(
        ["model", "records per step", "plain step, ms", "hooks", "ghost", "loop"], rows
    )
    text += (
        "\n\nRatios to the plain step, one thread, CPU. `hooks` and `ghost` are Opacus; `loop` takes one "
        "backward pass per record. All include secure noise for every parameter."
    )
    sections.write("dp", "A private step beside a plain one", text)


def _plain(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        LOSS(model(data[0]), data[1]).backward()
        optimiser.step()

    return step


def _private(
    engine: EngineName, model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], None]:
    # A sampling rate of 1 takes every record in every step.
    mechanism = Mechanism(PrivacyUnit.default(Unit.RECORD), 1.0, 1.0, 1.0)
    training = PrivateTraining(mechanism, engine=engine)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    session = training.session(model, optimiser, supervised(LOSS), records=len(data[1]), steps=STEPS + 2)
    session.__enter__()
    records = TensorRecords(data)
    return lambda: session.step(records)


if __name__ == "__main__":
    main()
