"""The link between machines: the table of docs/benchmarks.md.

python benchmarks/bench_link.py [--quick]
"""

from __future__ import annotations

import sys

import sections

from secfed.bench.link import measure

QUICK = "--quick" in sys.argv


def main() -> None:
    """Measure, print, and rewrite the section."""
    size = 10**6 if QUICK else 5 * 10**7
    result = measure(
        parameters=size,
        sites=3,
        many=10 if QUICK else 100,
        repeats=1 if QUICK else 3,
        round_parameters=10**5 if QUICK else 10**6,
        progress=lambda text: print(text, flush=True),
    )
    latency = f"{result['latency_ms']:.1f} ms"
    seconds, over, memory = result["seconds"], result["over_limit"], result["aggregator_memory"]
    masked = result["masked_round"]
    per_site_mb = masked["peak_extra_over_vector"] * 4 * masked["parameters"] / 1e6 / masked["sites"]
    rows = [
        [
            "empty message, there and back",
            latency,
            f"{over['empty_round_trip']:.1f}x",
        ],
        [
            f"{size:,} parameters to 3 sites and back",
            f"{seconds['both_ways']:.2f} s, {result['mbytes_per_s']:.0f} MB/s",
            f"{over['both_ways']:.2f}x",
        ],
        [f"a step with {result['many']} sites, 1 kB each way", f"{seconds['many_sites_step']:.2f} s", ""],
        ["aggregator's threads meanwhile", str(result["aggregator_threads_with_many_sites"]), ""],
        [
            f"masked sum, {masked['sites']} sites x {masked['parameters']:,} parameters "
            f"({masked['survivors']} survivors)",
            f"{masked['seconds']:.1f} s",
            "",
        ],
    ]
    held = [
        ["uploads side by side (up to 1 GiB of them)", f"{memory['peak_extra_over_vector']:.2f}"],
        ["one large upload at a time", f"{memory['peak_extra_over_vector_one_at_a_time']:.2f}"],
        [
            f"masked sum of {masked['parameters']:,} parameters with {masked['sites']} sites",
            f"{masked['peak_extra_over_vector']:.2f} ({per_site_mb:.1f} MB per site: buffers of its "
            "connection)",
        ],
    ]
    parts = [
        "`secfed bench link --params 50000000 --sites 3 --many 100 --round-params 1000000`",
        sections.table(["over loopback with mutual TLS 1.3", "measured", "over bare TLS sockets"], rows),
        "The aggregator's memory above what it had, as a multiple of one vector:",
        sections.table(["", "vectors"], held),
        "The aggregator is one process, all sites are threads of a second one, so two cores do the work of "
        "the whole consortium. Bare TLS moves the same bytes between the same processes with the same "
        "certificates, without frames, hashes or names; both are measured in one run.",
    ]
    sections.write("link", "The link between machines", "\n\n".join(parts))


if __name__ == "__main__":
    main()
