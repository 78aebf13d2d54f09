"""Every path of local training on a device that is not the processor: nothing is mixed, little is read back.

What is emulated, and what that cannot show, says tests/emulated_device.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from secfed.engine.options import EngineOptions
from tests import device_case, emulated_device
from tests.device_case import CASES, Run, largest_difference

pytestmark = pytest.mark.skipif(
    not emulated_device.THERE, reason="this torch has no Python backend for devices"
)

# Random numbers of its own, casts that it does not make, attention that the processor computes otherwise.
LOOSE = {
    "feddra, half precision": 0.02,
    "fedavg, records, random layer": 0.02,
    "creamfl": 5e-3,
    "fedcola": 5e-3,
    "fedcola, pulled": 5e-3,
    "fedcola, fediot": 5e-3,
    "fedcola, drop path and frozen tokens": 5e-3,
}
# One of every family; the others are slow.
QUICK = (
    "fedavg, mlp", "own code, updates stay", "fedavg, records, random layer", "fedavg, adapters",
    "fedavg, regression", "fedavg, multi-label", "fedavg, survival", "fedavg, segmentation",
    "scaffold", "fedbn", "ditto", "fedsgd", "fmcsc", "canonical", "view-kmeans", "fedcola, pulled",
    "canonical-alignment, encoders", "vlp-fedavg", "vlp-fedmoon", "feddra", "feddra, noise for sites",
    "fedrgb, a small network",
)  # fmt: skip
WITHOUT_NETWORK = ("canonical", "canonical, noise in the sum", "view-kmeans")
PROCESSES = EngineOptions("processes", 2)


def _on_device(name: str, engine: EngineOptions | None = None) -> Run:
    return emulated_device.elsewhere(_run, name, engine)


def _run(_device: torch.device, name: str, engine: EngineOptions | None) -> Run:
    return device_case.run(name, engine)


def _run_several(_device: torch.device, *names: str) -> dict[str, Run]:
    return {name: device_case.run(name) for name in names}


def _check(name: str, there: Run, here: Run) -> None:
    assert not there.zeroed
    assert (there.operators > 200) == (name not in WITHOUT_NETWORK)
    assert largest_difference(here, there) <= LOOSE.get(name, 1e-5)
    assert there.payments == here.payments
    _check_reads(there)


def _check_reads(there: Run) -> None:
    """What a step waits for: nothing in plain training, nothing for a unit, twice for a batch of records."""

    def reads(*files: str) -> int:
        return sum(count for place, count in there.reads.items() if place.split(":")[0] in files)

    calls = there.calls
    assert reads("dp/training/step.py") <= calls["mean"]
    loops = (
        "dp/training/plain_loop.py",
        "algorithms/framework/local_training.py",
        "dp/training/mechanism.py",
    )
    assert reads(*loops, "algorithms/vision_language/stage.py", "dp/training/private_loop.py") == 0
    books = ("book_keeping", "row_books", "ghost", "losses", "exact_engine")
    assert (
        reads("dp/training/engines.py", *(f"dp/training/{name}.py" for name in books)) <= 2 * calls["_losses"]
    )


def _tries(device: torch.device) -> list[str]:
    there = torch.ones(3, device=device)
    generator = torch.Generator()
    wrong = [
        lambda: there + torch.ones(3),
        lambda: torch.ones(3)[there > 0],
        lambda: there.index_put_((torch.tensor([0, 1]),), torch.ones(2)),
        lambda: there.numpy(),
        lambda: torch.randn(3, device=device, generator=generator),
        lambda: torch.randperm(3, device=device, generator=generator),
    ]
    said = []
    for one in wrong:
        with pytest.raises(RuntimeError) as refused:
            one()
        said.append(str(refused.value))
    emulated_device.reads.clear()
    both: Any = (there.sum().item(), bool((there > 0).all()), there.cpu(), there[torch.tensor([0])])
    said.append(f"{sum(emulated_device.reads.values())} reads of {both[3].device.type}")
    return said


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    *mixed, array, numbers, order, read = emulated_device.elsewhere(_tries)
    assert len(mixed) == 3
    assert all(said.startswith("Expected all tensors to be on the same device") for said in mixed)
    assert "numpy" in array
    assert all(said.startswith("Expected a generator of the device") for said in (numbers, order))
    assert read == "3 reads of emulated"


def test_a_few_studies_train_on_a_device_and_read_nothing_back_in_a_step() -> None:
    found = emulated_device.elsewhere(_run_several, *QUICK)
    for name, there in found.items():
        _check(name, there, device_case.run(name))
    # Random layers draw from a state of the device that is secret, and new for every step.
    # 3 sites and 2 rounds: at the beginning, and after each of 3 steps.
    assert found["fedavg, records, random layer"].seeds == 3 * 2 * (1 + 3)
    assert found["fedavg, mlp"].seeds == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES) - set(QUICK)))
def test_every_other_path_trains_on_a_device(name: str) -> None:
    _check(name, _on_device(name), device_case.run(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedavg, mlp", "fedavg, records by books", "fedsgd, noise in the sum", "fmcsc", "feddra"]
)
def test_workers_train_on_a_device_alike(name: str) -> None:
    there = _on_device(name, PROCESSES)
    assert not there.zeroed
    assert largest_difference(device_case.run(name), there) <= 1e-5
