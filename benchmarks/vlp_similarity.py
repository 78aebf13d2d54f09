"""How alike image and report of a pair become, by rounds and hospitals: FedDRA's Figure 4 d to f.

    python benchmarks/vlp_similarity.py [--seeds 1 2 3] [--keep] [--update-docs]
    python benchmarks/kept_runs.py show vlp-similarity --beside fedavg

The study is the first panel of examples/vlp-regime.toml, whose first lines say how its encoders are made.
Similarity is the mean cosine of both embeddings of a held-out pair. A run leaves its curves in
``runs/vlp-similarity``, is not repeated, and is drawn into ``vlp-similarity.svg``. Of every run stand in
docs/results/runs with ``--keep``:

- ``similarity``: mean over the hospitals at the end;
- ``settled``: after which share of the rounds it has nine tenths of the most that it ever rises;
- ``falls``: what the mean loses after that, all falls from a round to the next added up;
- ``catching_up``: over the hospitals, the correlation of similarity with its gain in the next round, averaged
  over the rounds: below zero where those that lag behind gain more.

ORACLE: it reads the held-out pairs of all hospitals, as only a simulation can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import kept_runs
import sections
import torch
import vlp_oracle
from comparison import is_done, write_result

from secfed.runs import figure_style as style
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import SweepRun, make_plan, read_study

NAME: Final = "vlp-similarity"  # under which runs are kept, and the folder of their curves
_SWEEP: Final = sections.ROOT / "examples" / "vlp-regime.toml"
_PANEL: Final = "alpha-03"
SHOWN: Final = {
    "fedavg": "FedAvg",
    "fedavg-28": "FedAvg, as many steps",
    "feddra": "FedDRA",
}

Curves = Mapping[str, Sequence[float]]  # of every hospital, by model version, 0 the initial model


def facts(curves: Curves) -> dict[str, float]:
    """The numbers of one run that are kept; see the top."""
    mean = [statistics.fmean(at) for at in zip(*curves.values(), strict=True)]
    gains = [after - before for before, after in pairwise(mean)]
    settled = next(at for at, value in enumerate(mean) if value - mean[0] >= 0.9 * (max(mean) - mean[0]))
    return {
        "similarity": mean[-1],
        "settled": settled / len(gains),
        "falls": -sum(gain for gain in gains[settled:] if gain < 0),
        "catching_up": statistics.fmean(_correlations(curves)),
    }


def _correlations(curves: Curves) -> list[float]:
    versions = list(zip(*curves.values(), strict=True))
    found = []
    for before, after in pairwise(versions):
        gains = [one - other for one, other in zip(after, before, strict=True)]
        found.append(statistics.correlation(before, gains))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", action="append", choices=tuple(SHOWN), help="only this method")
    parser.add_argument("--runs", type=Path, default=sections.ROOT / "runs" / NAME)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for run in _wanted(asked.only or tuple(SHOWN), asked.seeds):
        path = asked.runs / f"{run.at['variant']}-seed-{run.seed}.json"
        if not is_done(path, run.text):
            write_result(path, _measured(run))
            print(f"wrote {path}", flush=True)
    found = [json.loads(path.read_text("utf-8")) for path in sorted(asked.runs.glob("*-seed-*.json"))]
    rows = [_row(one) for one in found]
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    if asked.keep:
        kept = kept_runs.merged(kept_runs.kept(NAME), rows)
        kept_runs.write(kept_runs.FOLDER / f"{NAME}.csv", kept)
    target = sections.beside(sections.FIGURES / f"{NAME}.svg")
    draw(found, target)
    print(f"wrote {target}")
    return 0


def _wanted(variants: Sequence[str], seeds: Sequence[int]) -> Sequence[SweepRun]:
    sweep = SweepFile.load(_SWEEP)
    return make_plan(
        replace(
            sweep,
            seeds=tuple(seeds),
            panels=tuple(one for one in sweep.panels if one.name == _PANEL),
            variants=tuple(one for one in sweep.variants if one.name in variants),
        )
    ).runs


def _measured(run: SweepRun) -> dict[str, object]:
    algorithm = vlp_oracle.algorithm_of(read_study(run.text, _SWEEP.parent))
    found = vlp_oracle.run_in_clear(algorithm)
    curves = {site: [float(at[site]["similarity"]) for at in found.per_site] for site in found.sites}
    return {"study": run.text, "variant": run.at["variant"], "seed": run.seed, "curves": curves}


def _row(one: Mapping[str, Any]) -> kept_runs.Row:
    numbers = {name: f"{value:.6g}" for name, value in facts(one["curves"]).items()}
    return {"panel": "", "variant": one["variant"], "seed": str(one["seed"]), **numbers}


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Every hospital with FedDRA, its gain in every round, and the methods' means."""
    first = next(one for one in found if one["variant"] == "feddra")
    seeds = [{one["seed"] for one in found if one["variant"] == variant} for variant in SHOWN]
    common = set.intersection(*(of for of in seeds if of))
    with style.styled():
        figure, (gained, each, means) = style.new_figure(3, across=3, height_in=2.8)
        for colour, (site, curve) in zip(style.CYCLE, first["curves"].items(), strict=False):
            gains = [after - before for before, after in pairwise(curve)]
            gained.plot(range(1, len(curve)), gains, color=colour, label=site)
            each.plot(curve, color=colour, label=site)
        gained.axhline(0, color=style.FAINT, linewidth=0.8)
        gained.set_title("FedDRA: gain of a round")
        each.set_title("FedDRA: hospitals")
        each.legend()
        for colour, (variant, label) in zip(style.CYCLE, SHOWN.items(), strict=False):
            mine = [one for one in found if one["variant"] == variant and one["seed"] in common]
            several = [one["curves"].values() for one in mine]
            if several:
                by_seed = [[statistics.fmean(at) for at in zip(*curves, strict=True)] for curves in several]
                curve = [statistics.fmean(at) for at in zip(*by_seed, strict=True)]
                means.plot(curve, color=colour, label=label)
        means.set_title("Mean over the hospitals")
        means.legend()
        for at in (gained, each, means):
            at.set_xlabel("round")
        gained.set_ylabel("cosine of a pair")
        style.save_svg(figure, path)


if __name__ == "__main__":
    sys.exit(main())
