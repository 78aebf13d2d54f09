"""The example with MONAI: it trains to the same bytes wherever it runs, and says what is missing without."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from tests.layout import ROOT

STUDY = ROOT / "examples" / "volumes" / "monai.toml"


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_monai", "my_volumes"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_without_monai_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai", None)
    monkeypatch.setitem(sys.modules, "monai.losses", None)
    with pytest.raises(ConfigError, match=r"cannot import module 'my_monai'") as caught:
        Study.load(STUDY)
    assert ".[imaging]" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.skipif(find_spec("monai") is None, reason="MONAI is not installed (extra imaging)")
def test_networks_losses_and_transforms_of_monai_train(tmp_path: Path) -> None:
    study = Study.load(STUDY).replace("study.rounds", 2).replace("data.volumes", 8)
    report = simulate(study, out=tmp_path / "here")
    assert report.final["dice"] > (report.initial or {})["dice"]
    simulate(study, out=tmp_path / "there", engine=EngineOptions("processes", 2))
    here, there = (tmp_path / name / "model.safetensors" for name in ("here", "there"))
    assert here.read_bytes() == there.read_bytes()
