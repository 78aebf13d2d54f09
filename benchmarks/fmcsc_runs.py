"""One run of the FMCSC comparison: a data set, a ratio of hospitals, a variant, a seed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sections
import torch
from comparison import write_result

from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.limits import study_id
from secfed.study.study import Study

Scores = tuple[float, float, float]  # ACC, NMI, ARI in percent
RATIOS = ("2:1", "1:1", "1:2")


@dataclass(frozen=True)
class DataSet:
    title: str
    example: str  # the study file that its runs are made from
    needs: str  # a file of the shared data folder
    paper: Mapping[str, Scores]  # the paper's Table 1, by ratio
    ablation: Mapping[str, Scores]  # its Table 2, by variant; at 1:1
    # its Table 3 by variant: ACC of hospitals that take part, and of the others; at 1:1
    participation: Mapping[str, tuple[float, float]]
    # of the study, by ratio, where the example's are too few
    rounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """Study keys that are changed, and the table that shows it."""

    title: str
    keys: Mapping[str, object] = field(default_factory=dict)
    table: str = "ratios"


SETS = {
    "mnist-usps": DataSet(
        "MNIST-USPS, 5000 records, 24 hospitals",
        "fmcsc-mnist-usps-full.toml",
        "MNIST_USPS.mat",
        {"2:1": (95.1, 87.8, 88.8), "1:1": (92.9, 84.2, 85.0), "1:2": (90.1, 79.4, 79.5)},
        {
            "no-pretraining": (91.12, 82.24, 81.63),
            "no-distillation": (60.82, 39.74, 34.28),
            "mi-no-contrast": (88.66, 76.85, 76.84),
            "equal": (89.52, 78.12, 78.31),
            "mi": (93.38, 84.98, 85.96),
        },
        {"half": (90.64, 89.11), "seven-tenths": (91.71, 91.67), "nine-tenths": (92.97, 92.06)},
        {"1:2": 52},  # eight of 24 hospitals teach: after eight main rounds accuracy still rises
    ),
    "bdgp": DataSet(
        "BDGP, 2500 records, 12 hospitals",
        "fmcsc-bdgp-full.toml",
        "BDGP.mat",
        {"2:1": (94.5, 83.9, 86.8), "1:1": (91.9, 77.3, 81.0), "1:2": (90.0, 73.3, 76.8)},
        {
            "no-pretraining": (69.84, 48.71, 46.29),
            "no-distillation": (61.04, 30.76, 30.14),
            "mi-no-contrast": (87.40, 68.96, 71.09),
            "equal": (85.44, 64.15, 67.26),
            "mi": (91.92, 77.29, 80.95),
        },
        {"half": (88.32, 85.92), "seven-tenths": (89.48, 86.63), "nine-tenths": (92.73, 87.65)},
    ),
}
PUBLIC = "public"
VARIANTS = {
    PUBLIC: Variant("public weights"),
    "mi": Variant("weights of mutual information", {"algorithm.weights": "mi"}, "ablation"),
    "equal": Variant("equal weights (without D)", {"algorithm.weights": "equal"}, "ablation"),
    "mi-no-contrast": Variant(
        "weights of mutual information, without the model contrast (C)",
        {"algorithm.weights": "mi", "algorithm.model_contrast": False},
        "ablation",
    ),
    "no-distillation": Variant("without distillation (B)", {"algorithm.distillation": False}, "ablation"),
    "no-pretraining": Variant(
        "without common pre-training (A), four times the rounds",
        {"algorithm.pretrain_rounds": 0, "study.rounds": 32},
        "ablation",
    ),
    "assigned": Variant(
        "public weights, groups with one view keep the centres of all views",
        {"algorithm.group_iterations": 0},
        "ablation",
    ),
    "half": Variant("50 % take part", {"algorithm.participation": 0.5}, "participation"),
    "seven-tenths": Variant("70 % take part", {"algorithm.participation": 0.7}, "participation"),
    "nine-tenths": Variant("90 % take part", {"algorithm.participation": 0.9}, "participation"),
}


def study_of(dataset: str, ratio: str, variant: str, seed: int) -> Study:
    path = sections.ROOT / "examples" / SETS[dataset].example
    study = Study.parse(path.read_text(encoding="utf-8"))
    rounds = SETS[dataset].rounds.get(ratio, study.rounds)
    keys = {"study.seed": seed, "study.rounds": rounds, "data.ratio": ratio, **VARIANTS[variant].keys}
    for key, value in keys.items():
        study = study.replace(key, value)
    return study


def study_id_of(dataset: str, ratio: str, variant: str, seed: int) -> str:
    """Says whether a stored result is still that of this run."""
    return study_id(study_of(dataset, ratio, variant, seed))


def run_one(dataset: str, ratio: str, variant: str, seed: int, out: Path) -> None:
    torch.set_num_threads(1)
    study = study_of(dataset, ratio, variant, seed)
    began = time.perf_counter()
    report = simulate(study, out=None, drops=(), observer=SilentObserver())
    result = {
        "study": study_id(study),
        "protection": report.protection,
        "final": dict(report.final),
        "rounds": {str(one.round): dict(one.metrics or {}) for one in report.rounds},
        "wall_s": time.perf_counter() - began,
    }
    write_result(out, result)
