"""The same study in one process: what a run between machines must be equal to, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import SilentObserver
from secfed.simulation import simulate as simulation
from secfed.simulation.dropouts import Dropout
from secfed.study.study import Study


def model_in(path: Path) -> bytes:
    """The model in a file, or in the folder of a run, in the order of its names."""
    return save(load_file(path / MODEL_FILE if path.is_dir() else path))


def simulated(study: Study, out: Path, drops: Sequence[Dropout] = ()) -> bytes:
    """The model of a simulation, whose run is in ``out``."""
    simulation.simulate(study, out=out, drops=drops, observer=SilentObserver())
    return model_in(out)
