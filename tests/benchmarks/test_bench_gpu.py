"""The benchmark of GPUs, in its tiny form on the processor: its parts fit together."""

from __future__ import annotations

import bench_gpu
import pytest
import torch

CPU = torch.device("cpu")


def test_a_device_that_is_the_processor_differs_in_nothing() -> None:
    assert bench_gpu.largest_difference(CPU) == 0.0
    assert min(bench_gpu.quantising(CPU, 1 << 12)) > 0


@pytest.mark.slow
def test_without_a_gpu_it_shows_the_wiring_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_gpu.sys, "argv", ["bench_gpu.py", "--tiny"])
    monkeypatch.setattr(bench_gpu.sections, "write", lambda *_: pytest.fail("no figures without a GPU"))
    assert bench_gpu.main() == 0
    said = capsys.readouterr().out
    assert f"| device | {bench_gpu.NO_GPU} |" in said
    assert "| integers of device and processor | equal |" in said
