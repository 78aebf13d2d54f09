"""The sparse graph of masks: holders, thresholds and bounds by cohort, and the bound beside a simulation.

python benchmarks/graph_failure.py [--write]

The first table is what sites compute (crypto/masked/graph.py), with both bounds evaluated in full. The second
plays the adversary at parameters so weak that failures are frequent: it draws graphs and looks for a set of
honest sites with enough of their holders among themselves and the colluders (condition (2) of
docs/protocol.md, section 10.7), by exhaustive search over all sets. ``--write`` puts both into that section.
"""

from __future__ import annotations

import math
import random
import sys
from itertools import combinations
from pathlib import Path

from secfed.crypto import thresholds
from secfed.crypto.masked.graph import ATTEMPTS, Holders, SparseGraph, draw, log2_lost, log2_part

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
MARK = "<!-- sparse table -->", "<!-- end of sparse table -->"


def bounds(sites: int, colluders: int, least: int, advertised: int, rate: float) -> list[object]:
    """One row: what a site computes, and what follows."""
    holders = SparseGraph(rate).holders(sites, least, colluders, advertised)
    parts = [log2_part(sites, colluders, advertised, holders, size) for size in range(1, least - colluders)]
    if holders.count == advertised - 1:
        return [
            sites,
            colluders,
            least,
            advertised,
            rate,
            holders.count,
            holders.threshold,
            "exact",
            "-",
            "-",
        ]
    total = math.log2(ATTEMPTS) + math.log2(math.fsum(2.0**part for part in parts))
    masks = holders.count * (2 - holders.count / (advertised - 1))
    lost = 2.0 ** log2_lost(advertised, rate, holders)
    row = [sites, colluders, least, advertised, rate, holders.count, holders.threshold]
    return [*row, f"{total:.1f}", f"{lost:.1e}", f"{masks:.0f}"]


def bound_table() -> str:
    """The default number of colluders, and fewer; 5% and 10% of the sites missing."""
    rows = []
    for sites in (100, 200, 500, 1000):
        for colluders in (thresholds.default_colluders(sites), sites // 10):
            least = thresholds.default_threshold(sites, colluders)
            for rate in (0.05, 0.1):
                rows.append(bounds(sites, colluders, least, sites, rate))
            rows.append(bounds(sites, colluders, least, sites * 9 // 10, 0.1))
    head = [
        "n",
        "c",
        "t",
        "m",
        "`dropout_rate`",
        "k",
        "τ",
        "log2 of (3), 16 attempts",
        "sum lost",
        "neighbours",
    ]
    return table(head, rows)


def found(sites: int, colluders: int, least: int, holders: Holders, random_: random.Random) -> bool:
    """Whether one drawn graph has a part that a server could have summed by itself."""
    everybody = [str(site) for site in range(sites)]
    honest, bad = everybody[colluders:], frozenset(everybody[:colluders])
    chosen = {
        one: draw([name for name in everybody if name != one], holders.count, random_.randrange)
        for one in honest
    }
    return any(
        all(len(chosen[one] & (bad | set(part))) >= holders.threshold for one in part)
        for size in range(1, least - colluders)
        for part in combinations(honest, size)
    )


def simulated_table(tries: int = 2000) -> str:
    """Measured beside the bound, for cohorts small enough to search."""
    random_, rows = random.Random(20), []
    for sites, colluders, least, holders in (
        (10, 3, 7, Holders(5, 4)),
        (10, 2, 7, Holders(5, 4)),
        (12, 3, 8, Holders(6, 5)),
        (12, 4, 9, Holders(5, 4)),
        (13, 4, 9, Holders(6, 5)),
    ):
        parts = [log2_part(sites, colluders, sites, holders, size) for size in range(1, least - colluders)]
        bound = math.fsum(2.0**part for part in parts)
        measured = sum(found(sites, colluders, least, holders, random_) for _ in range(tries)) / tries
        row: list[object] = [sites, colluders, least, holders.count, holders.threshold]
        rows.append([*row, f"{measured:.4f}", f"{bound:.4f}"])
    return table(["n = m", "c", "t", "k", "τ", f"measured, {tries} graphs", "bound (3)"], rows)


def table(head: list[str], rows: list[list[object]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> None:
    """Print, or write into the page."""
    text = (
        "`python benchmarks/graph_failure.py --write`: what sites compute, and the bounds that follow for an "
        "attempt with m of\nn sites advertised. Neighbours are expected ones.\n\n" + bound_table() + "\n\n"
        "At parameters too weak to be used, where failures are frequent: graphs in which some set of honest "
        "sites satisfies (2),\nfound by trying all sets.\n\n" + simulated_table()
    )
    if "--write" not in sys.argv:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARK[0])
    after = rest.partition(MARK[1])[2] if MARK[1] in rest else rest
    PAGE.write_text(f"{before}{MARK[0]}\n\n{text}\n\n{MARK[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
