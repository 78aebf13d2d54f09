"""Draws how the losses of an FMCSC study fall: the paper's Figure 6.

    python benchmarks/fmcsc_losses.py [--study examples/fmcsc-digits.toml] [--main-rounds 12]
    python benchmarks/fmcsc_losses.py --run runs/fmcsc-digits

The first trains into ``runs/fmcsc-losses`` and draws; the second draws a run that is there, from its
``run.json``. A value is what training in that round had: the mean over the hospitals of a sum, by their
weights, which is all that leaves them. So there are total losses by rounds; the paper has parts of them by
epochs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sections
import torch

from secfed.runs import figure_style as style
from secfed.runs.run_folder import RUN_FILE
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

Curve = list[tuple[int, float]]  # rounds of training, losses

_RUN: Final = sections.ROOT / "runs" / "fmcsc-losses"
_PANELS: Final = (
    ("pretrain_loss", "common pre-training"),
    ("full_loss", "hospitals with all views"),
    (r"view_\d+_loss", "models of single views"),
)
_VIEW: Final = re.compile(r"view_(\d+)_loss")


def curves(initial: Mapping[str, float], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every loss of a run by the round that had it; ``initial`` and ``rounds`` as in ``run.json``.

    A run notes a loss at the model that training began with, so the first is at the initial model.
    """
    found: dict[str, Curve] = {}
    for after, metrics in enumerate((initial, *(one["metrics"] or {} for one in rounds))):
        for name, value in metrics.items():
            if name.endswith("_loss"):
                found.setdefault(name, []).append((after + 1, value))
    return found


def draw(found: Mapping[str, Curve], path: Path) -> None:
    """A panel for pre-training, one for the hospitals with all views, one for the models of single views."""
    panels = [
        (title, {name: curve for name, curve in sorted(found.items()) if re.fullmatch(pattern, name)})
        for pattern, title in _PANELS
    ]
    panels = [(title, of) for title, of in panels if of]
    with style.styled():
        figure, axes = style.new_figure(len(panels), across=len(panels), height_in=2.6)
        for at, (title, of) in zip(axes, panels, strict=True):
            for colour, (name, curve) in zip(style.CYCLE, of.items(), strict=False):
                view = _VIEW.fullmatch(name)
                label = f"view {view[1]}" if view else None
                at.plot(*zip(*curve, strict=True), marker="o", color=colour, label=label)
            at.set_title(title)
            at.set_xlabel("round")
            at.xaxis.get_major_locator().set_params(integer=True)
            if len(of) > 1:
                at.legend()
        axes[0].set_ylabel("loss")
        style.save_svg(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, default=sections.ROOT / "examples" / "fmcsc-digits.toml")
    parser.add_argument("--main-rounds", type=int, default=12, help="after the study's pre-training")
    parser.add_argument("--run", type=Path, help="draw this folder instead of training")
    parser.add_argument("--out", type=Path, default=sections.FIGURES / "fmcsc-losses.svg")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.run is None:
        study = (
            Study.load(asked.study)
            .replace("protection.name", "plain")
            .replace("algorithm.small_kinds", "summed")
        )
        rounds = study.algorithm.pretrain_rounds + asked.main_rounds
        simulate(study.replace("study.rounds", rounds), out=_RUN, drops=(), observer=SilentObserver())
    written = json.loads(((asked.run or _RUN) / RUN_FILE).read_text(encoding="utf-8"))
    found = curves(written["initial"] or {}, written["rounds"])
    for name, curve in found.items():
        print(f"{name}: {curve[0][1]:.4f} in round {curve[0][0]}, {curve[-1][1]:.4f} in round {curve[-1][0]}")
    draw(found, asked.out)
    print(f"wrote {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
