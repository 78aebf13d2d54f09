"""The benchmark of FMCSC's training: what it counts, and what it makes of it."""

from __future__ import annotations

import bench_fmcsc
import pytest
import torch

from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetworks
from secfed.study.study import Study

_RECORDS = 7


@pytest.fixture(scope="module")
def networks() -> MultiviewNetworks:
    options = MultiviewModelOptions(name="multiview", hidden=(8,), features=4, head_hidden=5)
    return MultiviewNetworks((6, 5), options)


@pytest.fixture(scope="module")
def phases(networks: MultiviewNetworks) -> dict[str, bench_fmcsc.Phase]:
    study = Study.parse(bench_fmcsc._EXAMPLE.read_text(encoding="utf-8"))
    return {phase.name: phase for phase in bench_fmcsc.phases(study, networks, _RECORDS)}


def test_the_steps_are_those_of_the_page(phases: dict[str, bench_fmcsc.Phase]) -> None:
    steps = {name: phase.steps for name, phase in phases.items()}
    assert sum(steps.values()) == 18_400
    assert steps["all views"] == 12 * 25 * 8
    assert steps["teaching one view"] == 12 * 2 * 50 * 8


@pytest.mark.slow  # PyTorch's counter imports its compiler
def test_the_operations_of_a_step_are_those_of_its_products(
    phases: dict[str, bench_fmcsc.Phase], networks: MultiviewNetworks
) -> None:
    weights = 6 * 8 + 8 * 4 + 4 * 8 + 8 * 6
    # Forward, gradients of weights, and gradients of inputs, which the first layer does not need.
    products = 3 * weights - 6 * 8
    network = networks.holding(networks.start(1))
    assert phases["pre-training, one view"].operations(network) == 2 * _RECORDS * products


def test_a_seed_is_compared_with_the_time_of_its_products(
    phases: dict[str, bench_fmcsc.Phase], networks: MultiviewNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(phases.values())
    found[0].time(networks.holding(networks.start(1)))
    assert 0 <= found[0].seconds < float("inf")
    for phase in found:
        monkeypatch.setattr(phase, "seconds", 0.03)
    text = bench_fmcsc.report(found, {phase.name: 2_000_000_000 for phase in found}, peak=100e9)
    last = next(line for line in text.splitlines() if line.startswith("| a seed"))
    assert [cell.strip() for cell in last.strip("|").split("|")][4:] == ["9.2", "6.1", "1.50x"]
    assert "36.8 TFLOP, at 100 GFLOP/s" in text
    assert "8 minutes would take 77 GFLOP/s" in text


def test_the_fastest_product_is_a_rate() -> None:
    threads = torch.get_num_threads()
    assert bench_fmcsc.fastest_product(64) > 0
    assert torch.get_num_threads() == threads
