"""Draws what FMCSC clusters, with and without common pre-training: the paper's Figure 3, by t-SNE.

    python benchmarks/fmcsc_features.py [--study examples/fmcsc-digits.toml] [--toy]

Two runs, which differ in the start of the main rounds only: autoencoders that all hospitals pre-trained
together, or the mean of those that each trained for itself from a start of its own. The features h of all
hospitals' records are drawn in one picture each, which only a simulation can do; colours are the classes,
crosses the records of hospitals with one view. Four minutes of one processor.

Source: van der Maaten, Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import sections
import torch
from matplotlib import colormaps
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.manifold import TSNE

from secfed.algorithms.fmcsc.algorithm import Fmcsc
from secfed.algorithms.framework.server_state import part_of
from secfed.runs import figure_style as style
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import State

Floats = NDArray[np.float64]
_SEED = 0  # of the drawing, in which only neighbourhoods mean anything


def without_consensus(study: Study) -> Study:
    """The same study with one round of pre-training, from unrelated starts, of as many passes per site."""
    keys = study.algorithm
    rounds, share, epochs = (getattr(keys, f"pretrain_{name}") for name in ("rounds", "share", "epochs"))
    changed = {
        "pretrain_start": "independent",
        "pretrain_rounds": 1,
        "pretrain_share": 1.0,
        "pretrain_epochs": max(round(rounds * share * epochs), 1),
    }
    changed = {**keys.model_dump(exclude_unset=True), **changed}
    return study.replace("algorithm", changed).replace("study.rounds", study.rounds - rounds + 1)


def features(algorithm: Fmcsc, model: State) -> tuple[Floats, list[int], list[bool]]:
    """h of all records at all sites, their classes, and whether their site has one view."""
    found, labels, single = [], [], []
    for site in algorithm.setting.sites:
        data = algorithm.site_data(site)
        group = 0 if len(data.held) > 1 else data.held[0] + 1
        network = algorithm.networks.holding(part_of(model, f"{algorithm.plan.groups[group]}/"))
        with torch.no_grad():
            found.append(network(data.views).double().numpy())
        labels += data.labels.tolist()
        single += [group > 0] * len(data.labels)
    return np.concatenate(found), labels, single


def run(study: Study) -> tuple[Fmcsc, State, float]:
    """The trained models of a study, and its accuracy."""
    algorithm = build(study)
    if not isinstance(algorithm, Fmcsc):
        raise TypeError(f"{study.algorithm.name} is not fmcsc")
    with tempfile.TemporaryDirectory() as folder:
        report = simulate(study, out=Path(folder), drops=(), observer=SilentObserver())
        return algorithm, load_file(Path(folder) / MODEL_FILE), report.final["acc"]


def draw(panels: list[tuple[str, Floats, list[int], list[bool]]], path: Path) -> None:
    """A panel per run, of the places of its records, their classes, and whether their site has one view."""
    with style.styled():
        figure, axes = style.new_figure(len(panels), across=2, height_in=4.2)
        for at, (title, places, labels, single) in zip(axes, panels, strict=True):
            for number in sorted(set(labels)):
                for alone, marker in ((False, "o"), (True, "x")):
                    rows = [
                        row for row, label in enumerate(labels) if label == number and single[row] == alone
                    ]
                    colour = colormaps["tab10"](number % 10)
                    label = None if alone else str(number)
                    at.scatter(*places[rows].T, s=7, marker=marker, color=colour, linewidths=0.6, label=label)
            at.set_title(title)
            at.set_xticks([])
            at.set_yticks([])
        shown, labels = axes[0].get_legend_handles_labels()
        one_view = Line2D([], [], marker="x", linestyle="", color=style.INK, markersize=3)
        figure.legend(
            [*shown, one_view],
            [*labels, "at a hospital with one view"],
            loc="outside lower center", ncols=6, markerscale=2,
        )  # fmt: skip
        style.save_svg(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", type=Path, default=sections.ROOT / "examples" / "fmcsc-digits.toml")
    parser.add_argument("--out", type=Path, default=sections.FIGURES / "fmcsc-features.svg")
    parser.add_argument("--toy", action="store_true", help="few rounds, which only try the code")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    study = (
        Study.load(asked.study).replace("protection.name", "plain").replace("algorithm.small_kinds", "summed")
    )
    if asked.toy:
        study = study.replace("algorithm.pretrain_rounds", 1).replace("study.rounds", 2)
        study = study.replace("algorithm.local_epochs", 1).replace("algorithm.distillation_epochs", 1)
    panels = []
    for title, one in (("common pre-training", study), ("each pre-trains alone", without_consensus(study))):
        algorithm, model, accuracy = run(one)
        records, labels, single = features(algorithm, model)
        print(f"{title}: ACC {100 * accuracy:.1f}, {len(records)} records", flush=True)
        places = TSNE(random_state=_SEED, init="pca").fit_transform(records)
        panels.append((f"{title}: ACC {100 * accuracy:.1f} %", places, labels, single))
    draw(panels, asked.out)
    print(f"wrote {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
