"""Which share of a GPU a site gets, and which GPUs a worker sees; on machines that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from secfed.engine import choice, gpus, processes
from secfed.engine.gpus import VISIBLE, Gpus, bounded, here, share
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.study.build import build
from tests.algorithms import vlp_case
from tests.device_case import CASES

GIB = 1 << 30


class Machine:
    """What torch says of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sizes_gib: int, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes_gib))
        properties = [SimpleNamespace(total_memory=size * GIB) for size in sizes_gib]
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
        monkeypatch.delenv(VISIBLE, raising=False)
        if visible is not None:
            monkeypatch.setenv(VISIBLE, visible)


def _needs(needed_gib: float | None) -> Any:
    return SimpleNamespace(device_bytes=lambda: None if needed_gib is None else int(needed_gib * GIB))


STUDY = vlp_case.study()


@pytest.mark.parametrize(
    ("count", "per_site", "workers", "seen"),
    [
        (2, 0.0, None, ["", ""]),
        (2, 1.0, 2, ["a", "b"]),
        (2, 0.5, 4, ["a", "a", "b", "b"]),
        (2, 1 / 3, 6, ["a", "a", "a", "b", "b", "b"]),
        (2, 0.4, 4, ["a", "a", "b", "b"]),
        (1, 0.75, 1, ["a"]),
        (3, 2.0, 1, ["a,b"]),
        (4, 2.0, 2, ["a,b", "c,d"]),
        (1, 2.0, 0, []),
    ],
)
def test_workers_fill_one_gpu_after_the_other(
    count: int, per_site: float, workers: int | None, seen: list[str]
) -> None:
    found = Gpus(tuple("abcd"[:count]), per_site)
    assert found.workers == workers
    assert [found.seen_by(number).get(VISIBLE, "") for number in range(len(seen))] == seen


@pytest.mark.parametrize(
    ("needed_gib", "sizes_gib", "expected"),
    [
        (None, (80,), 1.0),  # nobody knows
        (6.0, (80,), 1 / 9),  # 80 / (1.25 * 6 + 1)
        (17.1, (24, 80), 1.0),  # the smallest counts
        (200.0, (80,), 1.0),  # too large is for the GPU to say
        (6.0, (), 0.0),
    ],
)
def test_the_need_of_memory_decides(
    needed_gib: float | None, sizes_gib: tuple[int, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, *sizes_gib)
    found = share(EngineOptions("processes"), STUDY, _needs(needed_gib), len(sizes_gib))
    assert found == pytest.approx(expected)
    asked = share(EngineOptions("processes", gpus_per_site=0.25), STUDY, _needs(needed_gib), len(sizes_gib))
    assert asked == 0.25


def test_a_study_on_the_processor_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 80)
    assert share(EngineOptions("processes"), STUDY.replace("algorithm.device", "cpu"), _needs(1), 1) == 0.0


@pytest.mark.parametrize("name", ["feddra, transformers", "feddra, gloria", "feddra, mgca", "feddra"])
def test_an_algorithm_estimates_its_need_without_allocating_it(name: str) -> None:
    needed = build(CASES[name]()).device_bytes()
    if name == "feddra":  # a model of somebody's own
        assert needed is None
    else:
        assert needed is not None
        assert 5e6 < needed < 1e9


def test_gpus_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 80, 80)
    assert here() == ("0", "1")
    Machine(monkeypatch, 80, 80, visible="GPU-5,2,9")
    assert here() == ("GPU-5", "2")


def test_there_are_no_more_workers_than_shares() -> None:
    assert bounded(8, None, 4, "this machine") == 4
    assert bounded(2, 2, 4, "this machine") == 2
    with pytest.raises(ConfigError, match="this machine has room for 4 workers") as caught:
        bounded(8, 8, 4, "this machine")
    assert caught.value.remedy == "use --workers 4 or less"
    with pytest.raises(ConfigError, match="room for 0 workers") as caught:
        bounded(1, None, 0, "this machine")
    assert caught.value.remedy == "use a smaller --gpus-per-site"


def test_workers_start_afresh_with_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 80, 80)
    monkeypatch.setattr(gpus.os, "cpu_count", lambda: 16)
    started: list[str] = []

    def popen(_command: Any, *, env: dict[str, str], **_more: Any) -> Any:
        started.append(env[VISIBLE])
        raise BlockingIOError

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    monkeypatch.setattr(
        processes.Processes, "_forked", lambda *_: pytest.fail("CUDA does not work in a fork")
    )
    options = EngineOptions("processes", gpus_per_site=0.5)
    engine = choice.open_engine(options, STUDY, build(STUDY), study_id="s", sites=5)
    assert engine.workers == 4
    for worker in engine.all:  # type: ignore[attr-defined]
        with pytest.raises(BlockingIOError):
            engine.link_of(worker)  # type: ignore[attr-defined]
    assert started == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "processes", "gpus_per_site": -0.5}, "--gpus-per-site -0.5"),
        ({"name": "processes", "gpus_per_site": 1.5}, "--gpus-per-site 1.5"),
        ({"name": "ray", "gpus_per_site": float("nan")}, "--gpus-per-site nan"),
        ({"gpus_per_site": 0.5}, "--engine inline: all hospitals train on one device"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineOptions(**options)
