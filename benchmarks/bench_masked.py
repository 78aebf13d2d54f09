"""Masked protection: the table and the growth figure of docs/benchmarks.md.

python benchmarks/bench_masked.py [--quick]
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import sections

from secfed.bench import tables
from secfed.bench.masked import measure
from secfed.crypto.keystream import StreamCipher

QUICK = "--quick" in sys.argv
_CURVES = (
    ("client_protect", "limit_client", "site: protect", "C0"),
    ("server_unmask", "limit_server", "server: unmask", "C1"),
)
_BOUNDS = (
    ("client_protect", "cipher; quantising (memory, one thread at a time); SHA-256"),
    ("plain_protect", "quantising and SHA-256, about equal"),
    ("server_receive", "SHA-256; with narrow lanes as much again for unpacking, in one thread"),
    ("server_unmask", "cipher"),
    ("unmask_with_drops", "cipher: one stream per survivor for each dropped site"),
    ("round_without_training", "client_protect of every site, one after the other"),
    ("limit_client, limit_server", "cipher; under AES-256 a third of it the addition, in the cache"),
)


def main() -> None:
    headline = measure(parameters=10**6 if QUICK else 10**7, sites=10, drops=1, repeats=1 if QUICK else 5)
    aes = measure(
        parameters=headline["parameters"],
        sites=10,
        drops=1,
        repeats=1 if QUICK else 5,
        keystream=StreamCipher.AES_256_CTR,
    )
    narrow = measure(
        parameters=headline["parameters"], sites=10, bits=20, repeats=1 if QUICK else 3, with_flower=False
    )
    parts = [
        "`secfed bench masked --params 10000000 --sites 10 --drops 1 --repeats 5`",
        "The limit is the time to add as many streams to a vector as the step needs, on all processors, and "
        "nothing else. At 100% a step is as fast as its limit, at 50% it takes twice as long.",
        tables.masked(headline).markdown(),
        "The same with `--keystream aes-256-ctr`:",
        tables.masked(aes).markdown(),
        "What bounds each row, the largest part first:",
        sections.table(["row", "bound by"], [list(row) for row in _BOUNDS]),
    ]
    parts += ["Narrow lanes, `--bits 20`:", tables.masked(narrow).markdown()]
    sizes = [10**5, 10**6] if QUICK else [10**5, 10**6, 10**7, 10**8]
    counts = [3, 10, 30] if QUICK else [3, 10, 30, 100]
    by_size = [_grow(parameters=size, sites=3) for size in sizes]
    by_sites = [_grow(parameters=10**6, sites=count) for count in counts]
    _figure(by_size, by_sites)
    parts += [
        "How cost grows: a site makes one stream per peer and one of its own, the server one per survivor. "
        "So both limits, dotted, are those of equally many streams, each measured beside its step.",
        "![cost over parameters and sites](figures/masked-growth.svg)",
        _growth(by_size + by_sites),
        "Threads: as many as there are processors, each with a part of the vector, which it masks, packs and "
        "hashes; only quantising is one thread's at a time. Limits are those of as many threads. Ciphers "
        "(`cryptography`), numpy and `hashlib` let go of Python's interpreter lock during their calls; on a "
        "busy machine the gain is smaller (docs/adr/032-aes-keystreams-and-every-processor.md).",
    ]
    sections.write("masked", "Masked protection", "\n\n".join(parts))


def _grow(*, parameters: int, sites: int) -> dict[str, Any]:
    # The first pass over fresh memory is slow, and it is a limit's; in a median of three it does not count.
    result = measure(parameters=parameters, sites=sites, repeats=3, with_flower=False)
    print(parameters, sites, result["seconds"], flush=True)
    return result


def _growth(results: list[dict[str, Any]]) -> str:
    names = ["client_protect", "limit_client", "server_unmask", "limit_server", "round_without_training"]
    rows = [
        [f"{r['parameters']:,}", str(r["sites"]), *(f"{r['seconds'][name]:.4f}" for name in names)]
        for r in results
    ]
    return sections.table(["parameters", "sites", *(f"{name}, s" for name in names)], rows)


def _figure(by_size: list[dict[str, Any]], by_sites: list[dict[str, Any]]) -> None:
    plt.rcParams["svg.hashsalt"] = "secfed"
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, results, key in ((axes[0], by_size, "parameters"), (axes[1], by_sites, "sites")):
        x = [result[key] for result in results]
        for name, limit, label, colour in _CURVES:
            axis.loglog(x, [result["seconds"][name] for result in results], "o-", color=colour, label=label)
            axis.loglog(
                x,
                [result["seconds"][limit] for result in results],
                ":",
                color=colour,
                label=f"{label.partition(':')[0]}: limit",
            )
        axis.set_xlabel(key)
        axis.set_ylabel("seconds")
        axis.grid(alpha=0.3)
    axes[0].set_title("3 sites")
    axes[1].set_title("1,000,000 parameters")
    axes[0].legend(frameon=False)
    figure.savefig(sections.beside(sections.FIGURES / "masked-growth.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
