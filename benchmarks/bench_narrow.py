"""Narrow lanes: does a study's result change with the bits on the wire? A table for docs/benchmarks.md.

    python benchmarks/bench_narrow.py [--quick]

Sweeps the studies of examples/ under plain protection (the sums are the same integers under every
protection) over lane widths and seeds, and prints metric and bytes. Finished runs in runs/narrow stay.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import sections

from secfed.sweep.engine import run_sweep
from secfed.sweep.file import SweepFile
from secfed.sweep.live import watching
from secfed.sweep.plan import make_plan
from secfed.sweep.processes import ProcessRunner
from secfed.sweep.results import Row, groups
from secfed.terminal.consoles import stderr

EXAMPLES, RUNS = sections.ROOT / "examples", sections.ROOT / "runs" / "narrow"
STUDIES = {"breast-cancer": "roc_auc", "heart-disease": "roc_auc", "digits-cnn": "accuracy"}
SEEDS = [0] if "--quick" in sys.argv else [0, 1, 2]
SWEEP = f"""
[sweep]
seeds = {SEEDS}
"protection.name" = ["plain"]
"protection.bits" = [32, 24, 20, 18, 16]
"""
# Noise would hide what the lanes do.
WITHOUT_PRIVACY = '[[sweep.panel]]\nname = "no-privacy"\nremove = ["privacy"]\n'


def main() -> None:
    lines = []
    for name, metric in STUDIES.items():
        study = (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")
        text = study + SWEEP + (WITHOUT_PRIVACY if "privacy" in tomllib.loads(study) else "")
        plan = make_plan(SweepFile.parse(text, folder=EXAMPLES))
        with watching(stderr()) as observer:
            jobs = os.cpu_count() or 1
            rows = run_sweep(plan, RUNS / name, jobs=jobs, runner=ProcessRunner(EXAMPLES), observer=observer)
        failed = [row.message for row in rows if row.status != "done"]
        if failed:
            print(f"{name} left out: {failed[0]}")
            continue
        lines += _lines(name, metric, rows)
    columns = ["study", "metric", "bits per element", "upload per round, kB"]
    table = sections.table([*columns, "mean over seeds", "lowest", "highest"], lines)
    note = "Rounding is stochastic and unbiased; narrow lanes add noise, not a shift."
    print(table)
    text = f"`python benchmarks/bench_narrow.py`\n\n{table}\n\n{note}"
    sections.write("narrow", "Narrow lanes and accuracy", text)


def _lines(name: str, metric: str, rows: list[Row]) -> list[list[str]]:
    lines = []
    for group in groups(rows):
        members = [row for row in rows if row.run.at == group.at]
        run: Path = RUNS / name / "runs" / members[0].folder / "run.json"
        first = json.loads(run.read_text(encoding="utf-8"))["rounds"][0]
        values = [row.metrics[metric] for row in members]
        numbers = (group.cells[metric].mean, min(values), max(values))
        upload_kb = first["bytes_up_per_site"] / 1000
        bits = str(group.at["protection.bits"])
        lines.append([name, metric, bits, f"{upload_kb:.1f}", *(f"{value:.4f}" for value in numbers)])
    return lines


if __name__ == "__main__":
    main()
