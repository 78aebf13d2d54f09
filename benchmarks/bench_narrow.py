"""Narrow lanes: does a study's result change with the bits on the wire? A table for docs/benchmarks.md.

    python benchmarks/bench_narrow.py [--quick]

Runs the studies of examples/ under plain protection (the sums are the same integers under every
protection) at several lane widths and seeds, and prints metric and bytes.
"""

from __future__ import annotations

import statistics
import sys

import sections

from secfed.errors import DataError
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

QUICK = "--quick" in sys.argv
STUDIES = {"breast-cancer": "roc_auc", "heart-disease": "roc_auc", "digits-cnn": "accuracy"}
WIDTHS = [32, 24, 20, 18, 16]
SEEDS = range(1) if QUICK else range(3)


def main() -> None:
    """Measure, print, and rewrite the section."""
    rows = []
    for name, metric in STUDIES.items():
        try:
            rows += [_row(name, metric, bits) for bits in WIDTHS]
        except DataError as error:
            print(f"{name} left out: {error.message}")
    text = "`python benchmarks/bench_narrow.py`\n\n" + sections.table(
        [
            "study",
            "metric",
            "bits per element",
            "upload per round, kB",
            "mean over seeds",
            "lowest",
            "highest",
        ],
        rows,
    )
    text += "\n\nRounding is stochastic and unbiased; narrow lanes add noise, not a shift."
    sections.write("narrow", "Narrow lanes and accuracy", text)


def _row(name: str, metric: str, bits: int) -> list[str]:
    study = Study.load(sections.ROOT / "examples" / f"{name}.toml")
    study = study.replace("protection.name", "plain").replace("protection.bits", bits)
    if study.privacy is not None:
        study = study.replace("privacy", None)  # its noise would hide what the lanes do
    values, size = [], 0.0
    for seed in SEEDS:
        seeded = study.replace("study.seed", seed)
        report = simulate(seeded, out=None, drops=[], observer=SilentObserver())
        values.append(report.final[metric])
        size = report.rounds[0].bytes_up_per_site.mean
    row = [name, metric, str(bits), f"{size / 1000:.1f}", f"{statistics.mean(values):.4f}"]
    row += [f"{min(values):.4f}", f"{max(values):.4f}"]
    print(*row, flush=True)
    return row


if __name__ == "__main__":
    main()
