"""A private step beside a plain one: the table of docs/benchmarks.md.

python benchmarks/bench_dp.py [--quick]
"""

from __future__ import annotations

import sys

import sections

from secfed.bench import tables
from secfed.bench.private_step import measure

QUICK = "--quick" in sys.argv
STEPS = 2 if QUICK else 10


def main() -> None:
    result = measure(steps=STEPS, quick=QUICK)
    parts = [f"`secfed bench private-step --steps {STEPS}`", tables.private_step(result).markdown()]
    parts.append(
        "Ratios of medians to the plain step, in processor time of one thread; every step takes the same "
        '64 records (mlp and bert 32, vit 16). "No noise" is the engine `ghost` without its noise; `ghost` '
        "and `hooks` include exact noise from a stream cipher for every parameter, whose rate stands in the "
        "last row. Opacus ghost is its fast gradient clipping, Opacus hooks its gradients per record, both "
        "with Opacus's floating-point noise."
    )
    sections.write("dp", "A private step beside a plain one", "\n\n".join(parts))


if __name__ == "__main__":
    main()
