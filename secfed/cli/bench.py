"""``secfed bench``: what a protection costs on this machine, beside its limit and its peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, get_args

import click
import typer
from rich.console import Console
from rich.status import Status

from secfed.bench import tables
from secfed.cli.options import OnlyJson, Params
from secfed.config.protections import Reveal
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.thresholds import default_threshold
from secfed.errors import ConfigError
from secfed.terminal.consoles import print_json
from secfed.terminal.text_table import TextTable, print_titled

bench_app = typer.Typer(
    no_args_is_help=True, help="Measure what a protection costs on this machine, as ratios within one run."
)


@bench_app.command()
def masked(
    params: Params = 1_000_000,
    sites: Annotated[int, typer.Option(min=3, max=1000, help="Hospitals.")] = 10,
    drops: Annotated[int, typer.Option(min=0, help="Hospitals that go silent before they upload.")] = 0,
    bits: Annotated[int, typer.Option(min=8, max=32, help="Lane width on the wire.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Median over this many runs.")] = 3,
    reveal: Annotated[
        Literal["aggregator", "sites"],
        typer.Option(
            click_type=click.Choice(get_args(Reveal)),
            help="Who reads the sums; sites measures closed sums, and encrypted protection beside them.",
        ),
    ] = "aggregator",
    keystream: Annotated[
        StreamCipher, typer.Option(help="Cipher of the masks; the limits of both are measured.")
    ] = StreamCipher.CHACHA20,
    flower: Annotated[
        bool, typer.Option("--flower/--no-flower", help="Also run Flower's SecAgg+ functions.")
    ] = True,
    as_json: OnlyJson = False,
) -> None:
    """Masked protection beside the bare keystream-and-add loop, plain, and Flower's SecAgg+.

    [bold]Example:[/] secfed bench masked --params 10000000 --sites 10 --drops 1
    """
    from secfed.bench.masked import measure

    needed = default_threshold(sites)
    if sites - drops < needed:
        message = f"--drops {drops}: of {sites} sites at least {needed} must survive"
        raise ConfigError(message, remedy=f"use --drops {sites - needed} or less")
    asked = partial(measure, parameters=params, sites=sites, drops=drops, bits=bits, repeats=repeats)
    title = f"masked: {params:,} parameters, {sites} sites, {bits} bits"
    title += ", closed" if reveal == "sites" else ""
    title += "" if keystream is StreamCipher.CHACHA20 else f", {keystream}"
    _run(
        partial(asked, with_flower=flower, reveal=reveal, keystream=keystream), tables.masked, title, as_json
    )


@bench_app.command()
def encrypted(
    params: Params = 1_000_000,
    sites: Annotated[int, typer.Option(min=3, max=100, help="Hospitals.")] = 8,
    value_bits: Annotated[int, typer.Option(min=4, max=28, help="Bits of one value.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Best of this many runs.")] = 3,
    processes: Annotated[int, typer.Option(min=0, help="Workers of the parallel run, 0 for none.")] = 2,
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory.")] = False,
    as_json: OnlyJson = False,
) -> None:
    """Encrypted protection beside the usual CKKS context, masked and plain.

    [bold]Example:[/] secfed bench encrypted --params 1000000 --sites 8
    """
    from secfed.bench.encrypted import measure

    asked = partial(measure, parameters=params, sites=sites, value_bits=value_bits, repeats=repeats)
    title = f"encrypted: {params:,} parameters, {sites} sites, {value_bits} value bits"
    _run(partial(asked, processes=processes, memory=memory), tables.encrypted, title, as_json)


@bench_app.command()
def link(
    params: Annotated[
        int, typer.Option(min=1, help="Elements of one frame; each site gets and sends one.")
    ] = 50_000_000,
    sites: Annotated[int, typer.Option(min=1, max=100, help="Hospitals at the same time.")] = 3,
    many: Annotated[
        int, typer.Option(min=1, max=1000, help="Hospitals of a step with small messages.")
    ] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Median over this many runs.")] = 3,
    messages: Annotated[int, typer.Option(min=1, help="Empty round trips.")] = 200,
    round_params: Annotated[
        int, typer.Option(min=0, help="Elements of a masked sum with many hospitals; 0: none.")
    ] = 1_000_000,
    as_json: OnlyJson = False,
) -> None:
    """The link between machines, over loopback, beside the same bytes over bare TLS sockets.

    [bold]Example:[/] secfed bench link --params 50000000 --sites 3
    """
    from secfed.bench.link import measure

    asked = partial(measure, parameters=params, sites=sites, many=many, repeats=repeats, messages=messages)
    title = f"link: {params:,} parameters each way, {sites} sites, loopback"
    _run(partial(asked, round_parameters=round_params), tables.link, title, as_json)


@bench_app.command()
def engines(
    sites: Annotated[int, typer.Option(min=3, max=1000, help="Hospitals.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Local epochs.")] = 4,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; the first is not counted.")] = 8,
    workers: Annotated[int, typer.Option(min=2, help="Hospitals that train at a time.")] = 2,
    as_json: OnlyJson = False,
) -> None:
    """The engines of a simulation beside each other, and beside Flower's simulation without protection.

    Driver, workers and others are processor seconds of a round; the limit is the gain of processes that have
    nothing to do with each other; start is the time from the command to its first round.

    [bold]Example:[/] secfed bench engines --sites 10 --workers 2
    """
    from secfed.bench.engines import measure

    asked = partial(measure, sites=sites, epochs=epochs, rounds=rounds, workers=workers)
    _run(asked, tables.engines, f"engines: {sites} sites, {epochs} local epochs, {workers} workers", as_json)


@bench_app.command("private-step")
def private_step(
    steps: Annotated[int, typer.Option(min=1, help="Median over this many steps of each kind.")] = 20,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny models, to see that it runs; the ratios mean nothing.")
    ] = False,
    as_json: OnlyJson = False,
) -> None:
    """A step of private training (one record) beside a plain one, and beside Opacus.

    [bold]Example:[/] secfed bench private-step --steps 20
    """
    from secfed.bench.private_step import measure

    asked = partial(measure, steps=steps, quick=quick)
    _run(asked, tables.private_step, f"private step: median of {steps}, one thread", as_json)


def _run(
    measure: Callable[..., dict[str, Any]],
    table: Callable[[dict[str, Any]], TextTable],
    title: str,
    as_json: bool,
) -> None:
    """Measure, with progress on stderr, and print the table or all numbers as JSON."""
    with Status("starting", console=Console(stderr=True, quiet=as_json)) as status:
        result = measure(progress=status.update)
    if as_json:
        print_json(result)
    else:
        print_titled(title, table(result))
