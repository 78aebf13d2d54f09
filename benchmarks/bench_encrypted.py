"""Encrypted protection: the table of docs/benchmarks.md.

python benchmarks/bench_encrypted.py [--quick | --no-memory]
"""

from __future__ import annotations

import sys

import sections

from secfed.bench import tables
from secfed.bench.encrypted import measure

QUICK = "--quick" in sys.argv


def main() -> None:
    headline = measure(parameters=10**5 if QUICK else 10**6, repeats=1 if QUICK else 3)
    large = None if QUICK or "--no-memory" in sys.argv else measure(parameters=10**7, repeats=1, memory=True)
    parts = ["`secfed bench encrypted --params 1000000 --sites 8`", tables.encrypted(headline).markdown()]
    parts.append(
        "Rates are per second of processor time, but for plain and masked, which are by the clock in one "
        f"process. The usual CKKS context ran on {headline['ckks_params']:,} values. Two processes: "
        + ", ".join(f"{name} {_show(value)}" for name, value in headline["parallel"].items())
        + "."
    )
    if large is not None:
        peaks = ", ".join(f"{name} {_show(value)}" for name, value in large["peak_mib"].items())
        parts.append(f"`secfed bench encrypted --params 10000000 --memory`: peak memory in MiB: {peaks}.")
    sections.write("encrypted", "Encrypted protection", "\n\n".join(parts))


def _show(values: dict[str, float]) -> str:
    return "(" + ", ".join(f"{name} {value:.3g}" for name, value in values.items()) + ")"


if __name__ == "__main__":
    main()
