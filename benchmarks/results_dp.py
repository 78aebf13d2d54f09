"""Accuracy against epsilon on real data: runs three sweeps and writes docs/results/dp.md.

    python benchmarks/results_dp.py [RUNS]

Sweeps that are already complete in the folder RUNS (default ``runs``) are not repeated. Heart disease is
left out where its table is not there.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import sections

PAGE = sections.ROOT / "docs" / "results" / "dp.md"
STUDIES = {
    "dp-breast-cancer": "569 patients, four hospitals, mlp with 530 parameters, 12 rounds",
    "dp-heart-disease": "920 patients, four real hospitals, logistic regression, 15 rounds",
    "dp-digits": "1797 images, five hospitals, small CNN, 15 rounds",
    "dp-digits-none": "the same without privacy, smaller steps",
}
HEAD = """# What differential privacy costs in accuracy

Masked protection, federated averaging, every record (patient, image) is the unit: add or remove one record,
delta 1e-4, PLD accountant, the epsilon of the whole study at every hospital. Mean and standard deviation over
five seeds; a seed decides partition, split, initial model and noise. Metrics are over the held-out records of
all hospitals. Without privacy (epsilon ∞) the split is stratified by class, under privacy each record is
drawn by itself, so the held-out records are not the same: differences below the spread mean nothing. Step
costs are in [benchmarks](../benchmarks.md). Your own run: `summary.md` in the folder of its sweep has the
rows below.

    python benchmarks/results_dp.py
"""


def main() -> None:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    parts = [HEAD, sections.machine()]
    for name, what in STUDIES.items():
        out = runs / name
        command = ["secfed", "sweep", f"examples/{name}.toml", "--out", str(out)]
        if not (out / "summary.md").exists():
            done = subprocess.run(
                [str(Path(sys.executable).parent / "secfed"), *command[1:]], cwd=sections.ROOT, check=False
            )
            if done.returncode and not (out / "summary.md").exists():
                print(f"{name} left out")
                continue
        table = [line for line in (out / "summary.md").read_text().splitlines() if line.startswith("|")]
        with (out / "results.csv").open(newline="") as rows:
            took = [float(row["seconds"]) for row in csv.DictReader(rows) if row["seconds"]]
        shown = f"runs/{name}"
        parts += [
            f"## {name.removeprefix('dp-').replace('-', ' ')}: {what}",
            f"`secfed sweep examples/{name}.toml --out {shown}`: {len(took)} runs, "
            f"{sum(took) / 60:.0f} minutes of run time in all, on cores shared with other work.",
            "\n".join(table),
        ]
    print(f"wrote {sections.write_page(PAGE, parts)}")


if __name__ == "__main__":
    main()
