"""The ``secfed`` command: options that come before a command, and the list of commands.

Only light modules are imported here; each command imports what it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from secfed import __version__
from secfed.cli.agent import agent_app
from secfed.cli.aggregate import aggregate
from secfed.cli.algorithms import algorithms
from secfed.cli.attack import attack
from secfed.cli.audit import audit_app
from secfed.cli.bench import bench_app
from secfed.cli.consortium import consortium_app
from secfed.cli.guard import GuardedGroup
from secfed.cli.simulate import simulate
from secfed.cli.site import site_app
from secfed.cli.sweep import sweep
from secfed.cli.transcript import transcript_app

app = typer.Typer(
    name="secfed",
    cls=GuardedGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # A traceback with local variables could print patients' data.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one model across hospitals. Only sums leave a hospital.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secfed {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            envvar="SECFED_DEBUG",
            help="Show where in the code an error arose, without its text: that could quote a record.",
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


app.command("simulate")(simulate)
app.command("sweep")(sweep)
app.command("aggregate")(aggregate)
app.command("algorithms")(algorithms)
app.command("attack")(attack)
app.add_typer(transcript_app, name="transcript")
app.add_typer(audit_app, name="audit")
app.add_typer(bench_app, name="bench")
app.add_typer(consortium_app, name="consortium")
app.add_typer(site_app, name="site")
app.add_typer(agent_app, name="agent")


def main() -> None:
    """Entry point of the ``secfed`` command."""
    app()
