"""``secfed bench``: what a protection costs on this machine, beside its limit and its peers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

bench_app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure what a protection costs on this machine, as ratios within one run.",
)


@bench_app.callback()
def group() -> None:
    """Keep ``bench`` a group of commands."""


@bench_app.command("masked")
def masked(
    params: Annotated[int, typer.Option("--params", min=1, help="Elements of the vector.")] = 1_000_000,
    sites: Annotated[int, typer.Option("--sites", min=3, max=1000, help="Hospitals.")] = 10,
    drops: Annotated[
        int, typer.Option("--drops", min=0, help="Hospitals that go silent before they upload.")
    ] = 0,
    bits: Annotated[int, typer.Option("--bits", min=8, max=32, help="Lane width on the wire.")] = 32,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Median over this many runs.")] = 3,
    flower: Annotated[
        bool, typer.Option("--flower/--no-flower", help="Also run Flower's SecAgg+ functions.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Masked protection beside the bare keystream-and-add loop, plain, and Flower's SecAgg+.

    [bold]Example:[/] secfed bench masked --params 10000000 --sites 10 --drops 1
    """
    from rich.console import Console
    from rich.status import Status

    from secfed.bench.masked import measure
    from secfed.crypto.thresholds import default_threshold
    from secfed.errors import ConfigError

    if sites - drops < default_threshold(sites):
        raise ConfigError(
            f"--drops {drops}: of {sites} sites at least {default_threshold(sites)} must survive",
            remedy=f"use --drops {sites - default_threshold(sites)} or less",
        )
    console = Console(stderr=True, quiet=as_json)
    with Status("starting", console=console) as status:
        result = measure(
            parameters=params,
            sites=sites,
            drops=drops,
            bits=bits,
            repeats=repeats,
            with_flower=flower,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        Console().print(_table(result))


@bench_app.command("encrypted")
def encrypted(
    params: Annotated[int, typer.Option("--params", min=1, help="Elements of the vector.")] = 1_000_000,
    sites: Annotated[int, typer.Option("--sites", min=3, max=100, help="Hospitals.")] = 8,
    value_bits: Annotated[int, typer.Option("--value-bits", min=4, max=28, help="Bits of one value.")] = 16,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Best of this many runs.")] = 3,
    processes: Annotated[
        int, typer.Option("--processes", min=0, help="Workers of the parallel run, 0 for none.")
    ] = 2,
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Encrypted protection beside the usual CKKS context, masked and plain.

    [bold]Example:[/] secfed bench encrypted --params 1000000 --sites 8
    """
    from rich.console import Console
    from rich.status import Status

    from secfed.bench.encrypted import measure

    with Status("measuring", console=Console(stderr=True, quiet=as_json)):
        result = measure(
            parameters=params,
            sites=sites,
            value_bits=value_bits,
            repeats=repeats,
            processes=processes,
            memory=memory,
        )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        Console().print(_encrypted_table(result))


@bench_app.command("link")
def link(
    params: Annotated[
        int, typer.Option("--params", min=1, help="Elements of one frame; each site gets and sends one.")
    ] = 50_000_000,
    sites: Annotated[int, typer.Option("--sites", min=1, max=100, help="Hospitals at the same time.")] = 3,
    many: Annotated[
        int, typer.Option("--many", min=1, max=1000, help="Hospitals of a step with small messages.")
    ] = 100,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Median over this many runs.")] = 3,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Empty round trips.")] = 200,
    round_params: Annotated[
        int,
        typer.Option("--round-params", min=0, help="Elements of a masked sum with many hospitals; 0: none."),
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """The link between machines, over loopback, beside the same bytes over bare TLS sockets.

    [bold]Example:[/] secfed bench link --params 50000000 --sites 3
    """
    from rich.console import Console
    from rich.status import Status

    from secfed.bench.link import measure

    with Status("starting", console=Console(stderr=True, quiet=as_json)) as status:
        result = measure(
            parameters=params,
            sites=sites,
            many=many,
            repeats=repeats,
            messages=messages,
            round_parameters=round_params,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        Console().print(_link_table(result))


def _link_table(result: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"link: {result['parameters']:,} parameters each way, {result['sites']} sites, loopback",
        title_justify="left",
    )
    table.add_column("quantity")
    table.add_column("value", justify="right")
    seconds, over = result["seconds"], result["over_limit"]
    table.add_row("empty message, there and back", f"{result['latency_ms']:.1f} ms")
    table.add_row("  / bare TLS", f"{over['empty_round_trip']:.1f}x")
    table.add_row("both ways, all sites", f"{seconds['both_ways']:.2f} s, {result['mbytes_per_s']:.0f} MB/s")
    table.add_row("  / bare TLS", f"{over['both_ways']:.2f}x")
    for name, value in result["aggregator_memory"].items():
        what = "one upload at a time" if name.endswith("_one_at_a_time") else "uploads side by side"
        table.add_row(f"aggregator's extra memory / vector, {what}", f"{value:.2f}")
    table.add_row(f"a step with {result['many']} sites", f"{seconds['many_sites_step']:.2f} s")
    table.add_row("aggregator's threads then", str(result["aggregator_threads_with_many_sites"]))
    masked = result["masked_round"]
    if masked is not None:
        what = f"masked sum of {masked['parameters']:,} parameters, {masked['survivors']} sites"
        table.add_row(what, f"{masked['seconds']:.1f} s")
        table.add_row("aggregator's extra memory / vector then", f"{masked['peak_extra_over_vector']:.2f}")
    return table


def _encrypted_table(result: dict[str, Any]) -> Table:
    from rich.table import Table

    size = f"{result['params']:,} parameters, {result['sites']} sites"
    title = f"encrypted: {size}, {result['value_bits']} value bits"
    table = Table(title=title, title_justify="left")
    columns = (
        "protection",
        "bytes/parameter",
        "Mparam/s per core",
        "speed / usual CKKS",
        "tags / encryption",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "protection" else "right")
    for name, size in result["bytes_per_param"].items():
        rate, speedup = result["mparams_per_s_core"][name], result["speedup_vs_ckks"].get(name)
        shown = "" if speedup is None else f"{speedup:.1f}x"
        label, tags = "usual CKKS" if name == "ckks" else name, result["tag_to_encryption"].get(name)
        table.add_row(label, f"{size:.2f}", f"{rate:.2f}", shown, "" if tags is None else f"{tags:.0%}")
    return table


def _table(result: dict[str, Any]) -> Table:
    from rich.table import Table

    title = f"masked: {result['parameters']:,} parameters, {result['sites']} sites, {result['bits']} bits"
    table = Table(title=title, title_justify="left")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    for name, value in result["fraction_of_limit"].items():
        table.add_row(f"keystream-and-add limit / {name}", f"{value:.0%}")
    for name, value in result.get("speedup_vs_flower", {}).items():
        table.add_row(f"speed-up over Flower SecAgg+, {name}", f"{value:.1f}x")
    table.add_row("upload, bytes per parameter", f"{result['bytes_per_param']:.4f}")
    table.add_row("with the handshake", f"{result['bytes_per_param_with_handshake']:.4f}")
    table.add_row("peak extra memory at a site / vector", f"{result['peak_extra_over_vector']:.2f}")
    if "streams_per_drop_per_survivor" in result:
        table.add_row("streams per drop and survivor", f"{result['streams_per_drop_per_survivor']:.2f}")
    for name, value in result["seconds"].items():
        table.add_row(f"{name}, seconds", f"{value:.4f}")
    return table
