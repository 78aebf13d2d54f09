"""The ``secfed`` command: options that come before a command, and the list of commands.

Only light modules are imported here; each command imports what it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Annotated, Final

import click
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

# Panels of --help, by who is served, and the commands in each.
_PANELS: Final = {
    "Researchers": ("simulate", "sweep", "algorithms", "attack", "bench"),
    "Hospital": ("site", "agent"),
    "Study centre": ("consortium", "aggregate"),
    "Officers and auditors": ("audit", "transcript"),
}
_PANEL_OF: Final = {name: panel for panel, names in _PANELS.items() for name in names}


class _FrontDoor(GuardedGroup):
    """Lists the commands in the order of the panels; typer would put groups last."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, ordered."""
        order = list(_PANEL_OF)
        return sorted(super().list_commands(ctx), key=order.index)


app = typer.Typer(
    name="secfed",
    cls=_FrontDoor,
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


for _name, _command in (
    ("simulate", simulate),
    ("sweep", sweep),
    ("algorithms", algorithms),
    ("attack", attack),
    ("aggregate", aggregate),
):
    app.command(_name, rich_help_panel=_PANEL_OF[_name])(_command)
for _name, _group in (
    ("bench", bench_app),
    ("site", site_app),
    ("agent", agent_app),
    ("consortium", consortium_app),
    ("audit", audit_app),
    ("transcript", transcript_app),
):
    app.add_typer(_group, name=_name, rich_help_panel=_PANEL_OF[_name])


def main() -> None:
    """Entry point of the ``secfed`` command."""
    app()
