"""The numbers of the benchmarks as tables, for the command line and for docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

from secfed.terminal.text_table import TextTable

Result = dict[str, Any]


def masked(result: Result) -> TextTable:
    """Fractions of the limit, speed-ups over Flower, bytes, memory and seconds."""
    limits, flower = result["fraction_of_limit"].items(), result.get("speedup_vs_flower", {}).items()
    encrypted = result.get("speedup_vs_encrypted_symmetric", {}).items()
    rows = [
        *([f"keystream-and-add limit / {name}", f"{value:.0%}"] for name, value in limits),
        *([f"speed-up over Flower SecAgg+, {name}", f"{value:.1f}x"] for name, value in flower),
        *([f"speed-up over encrypted, symmetric keys, {name}", f"{value:.1f}x"] for name, value in encrypted),
        ["upload, bytes per parameter", f"{result['bytes_per_param']:.5f}"],
        ["all messages of a site, bytes per parameter", f"{result['bytes_per_param_with_handshake']:.5f}"],
        ["peak extra memory at a site / vector bytes", f"{result['peak_extra_over_vector']:.2f}"],
    ]
    if "streams_per_drop_per_survivor" in result:
        rows.append(["streams per drop and survivor", f"{result['streams_per_drop_per_survivor']:.2f}"])
    rows += [[f"{name}, s", f"{value:.4f}"] for name, value in result["seconds"].items()]
    return TextTable(["quantity", "value"], rows)


def encrypted(result: Result) -> TextTable:
    """A row for each variant, the usual CKKS context, masked and plain."""
    ratios = (
        ("speedup_vs_ckks", "{:.1f}x"),
        ("smaller_than_ckks", "{:.1f}x"),
        ("tag_to_encryption", "{:.0%}"),
    )
    rows = []
    for name, size in result["bytes_per_param"].items():
        row = ["usual CKKS" if name == "ckks" else name]
        row += [f"{size:.2f}", f"{result['mparams_per_s_core'][name]:.2f}"]
        row += [form.format(result[key][name]) if name in result[key] else "" for key, form in ratios]
        rows.append(row)
    columns = ["protection", "bytes per parameter", "Mparam/s per core"]
    return TextTable([*columns, "faster than CKKS", "smaller than CKKS", "tags / encryption"], rows)


def link(result: Result) -> TextTable:
    """What a message, a large frame, many sites and a masked sum take, beside bare TLS sockets."""
    seconds, over, memory = result["seconds"], result["over_limit"], result["aggregator_memory"]
    rate = f"{seconds['both_ways']:.2f} s, {result['mbytes_per_s']:.0f} MB/s"
    rows = [
        [
            "empty message, there and back",
            f"{result['latency_ms']:.1f} ms",
            f"{over['empty_round_trip']:.1f}x",
        ],
        [
            f"{result['parameters']:,} parameters to {result['sites']} sites and back",
            rate,
            f"{over['both_ways']:.2f}x",
        ],
        [f"a step with {result['many']} sites, 1 kB each way", f"{seconds['many_sites_step']:.2f} s", ""],
        ["aggregator's threads meanwhile", str(result["aggregator_threads_with_many_sites"]), ""],
    ]
    extra = {
        "uploads side by side (up to 1 GiB of them)": memory["peak_extra_over_vector"],
        "one upload at a time": memory["peak_extra_over_vector_one_at_a_time"],
    }
    one_sum = result["masked_round"]
    if one_sum is not None:
        what = f"masked sum, {one_sum['sites']} sites x {one_sum['parameters']:,} parameters"
        rows.append([f"{what} ({one_sum['survivors']} survivors)", f"{one_sum['seconds']:.1f} s", ""])
        extra["that masked sum"] = one_sum["peak_extra_over_vector"]
    rows += [
        [f"aggregator's extra memory / vector, {what}", f"{value:.2f}", ""] for what, value in extra.items()
    ]
    return TextTable(["over loopback with mutual TLS 1.3", "measured", "over bare TLS sockets"], rows)


def engines(result: Result) -> TextTable:
    """A row for each engine, the machine's limit (the same study in each process), and Flower's.

    Headers are short: 80 columns hold every engine in one line. "driver", "workers" and "others" are
    processor seconds of a round, "start" the seconds from the command to its first round.
    """
    start_s, total_s, speedup = result["start_s"], result["total_s"], {"inline": 1.0, **result["speedup"]}
    rows = [
        [
            name,
            f"{value:.2f}",
            f"{speedup[name]:.2f}x",
            *_cpu(result["cpu_s"][name]),
            f"{start_s[name]:.1f}",
            f"{total_s[name]:.1f}",
        ]
        for name, value in result["rounds_s"].items()
    ]
    rows.append(["limit", "", f"{result['limit']:.2f}x", *[""] * 5])
    if result["flower_round_s"] is not None:
        faster = result["rounds_s"]["inline"] / result["flower_round_s"]
        times = [f"{result['flower_round_s']:.2f}", f"{faster:.2f}x", *[""] * 4]
        rows.append(["Flower, plain", *times, f"{result['flower_total_s']:.1f}"])
    cpu = ["driver", "workers", "others"]
    return TextTable(["engine", "round, s", "gain", *cpu, "start, s", "total, s"], rows)


def _cpu(spent: dict[str, float]) -> list[str]:
    """Processor seconds of a round: the driver, its workers, and what else an engine brings along."""
    if not spent:
        return [""] * 3
    named = [spent.get(kind, 0.0) for kind in ("driver", "workers")]
    return [f"{seconds:.2f}" for seconds in (*named, sum(spent.values()) - sum(named))]


def private_step(result: Result) -> TextTable:
    """A row for each model: the plain step, and what it is multiplied by; at last the exact sampler's rate.

    "no noise" is the engine "ghost" without its noise.
    """
    rows = []
    for name, found in result["models"].items():
        ours = [found["ratio_to_plain"]["without_noise"], found["ratio_to_plain"]["all"]]
        ratios = [*ours, found["hooks_to_plain"], *(found["opacus"][kind] for kind in ("ghost", "hooks"))]
        rows.append(
            [name, f"{found['parameters']:,}", f"{found['plain_s'] * 1000:.2f}"]
            + ["" if ratio is None else f"{ratio:.1f}x" for ratio in ratios]
        )
    rows.append(["normals", f"{result['normals_per_s'] / 1e6:.1f} M/s", *[""] * 6])
    columns = ["model", "parameters", "plain, ms", "no noise", "ghost", "hooks"]
    return TextTable([*columns, "Opacus ghost", "Opacus hooks"], rows)
