"""The link between machines: the table of docs/benchmarks.md.

python benchmarks/bench_link.py [--quick]
"""

from __future__ import annotations

import sys

import sections

from secfed.bench import tables
from secfed.bench.link import measure

QUICK = "--quick" in sys.argv


def main() -> None:
    size = 10**6 if QUICK else 5 * 10**7
    result = measure(
        parameters=size,
        sites=3,
        many=10 if QUICK else 100,
        repeats=1 if QUICK else 3,
        round_parameters=10**5 if QUICK else 10**6,
        progress=lambda text: print(text, flush=True),
    )
    parts = [
        "`secfed bench link --params 50000000 --sites 3 --many 100 --round-params 1000000`",
        tables.link(result).markdown(),
        "The aggregator is one process, all sites are threads of a second one, so two cores do the work of "
        "the whole consortium. Bare TLS moves the same bytes between the same processes with the same "
        "certificates, without frames, hashes or names; both are measured in one run.",
    ]
    sections.write("link", "The link between machines", "\n\n".join(parts))


if __name__ == "__main__":
    main()
