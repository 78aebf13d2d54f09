"""``secfed console``: pages for people, on this machine only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def console(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="A site's folder; or a consortium's folder and those of its runs; or runs alone.",
            show_default="this folder",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = 0,
) -> None:
    """Open pages for people: approve studies, see budgets and what left, watch rounds, verify records.

    Only this machine can open them, at an address that is printed here and works once. Ctrl-C ends them.

    [bold]Example:[/] secfed console site
    """
    from secfed.console.serve import opened, serve

    typer.echo("Reading the records ...", err=True)
    serve(opened(folders or [Path()]), port, _told)


def _told(address: str) -> None:
    typer.echo(f"Open this in a browser on this machine; it works once: {address}")
