"""The ``secfed`` command: options that come before a command, and the list of commands.

A command's module is imported when the command is used, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import Annotated, Any, Final, NamedTuple

import click
import typer
from typer.core import TyperCommand

from secfed import __version__
from secfed.cli.guard import GuardedGroup

_RESEARCHERS, _HOSPITAL, _CENTRE = "Researchers", "Hospital", "Study centre"
_AUDITORS: Final = "Officers and auditors"


class _Entry(NamedTuple):
    """Where ``secfed --help`` lists a command, with which words, and where the command is."""

    panel: str
    help: str
    module: str
    attribute: str


_COMMANDS: Final = {
    "simulate": _Entry(
        _RESEARCHERS,
        "Run a study on this machine: every hospital, the aggregator and the protocol between them.",
        "simulate",
        "simulate",
    ),
    "sweep": _Entry(
        _RESEARCHERS,
        "Run a study with every combination of settings and seeds, and put the results side by side.",
        "sweep",
        "sweep",
    ),
    "algorithms": _Entry(
        _RESEARCHERS,
        "List the algorithms, models and data sets that a study file can name, with their options.",
        "algorithms",
        "algorithms",
    ),
    "attack": _Entry(
        _RESEARCHERS,
        "Play a malicious aggregator, with or without hospitals that help it, against real sessions.",
        "attack",
        "attack",
    ),
    "bench": _Entry(
        _RESEARCHERS,
        "Measure what a protection costs on this machine, as ratios within one run.",
        "bench",
        "bench_app",
    ),
    "site": _Entry(_HOSPITAL, "Make keys, join a consortium, pin its roster.", "site", "site_app"),
    "agent": _Entry(_HOSPITAL, "Run the agent, watch it, approve studies.", "agent", "agent_app"),
    "consortium": _Entry(_CENTRE, "Found a consortium, admit hospitals.", "consortium", "consortium_app"),
    "aggregate": _Entry(
        _CENTRE,
        "Run a study: wait for the hospitals, carry the rounds, keep everything that a restart needs.",
        "aggregate",
        "aggregate",
    ),
    "audit": _Entry(
        _AUDITORS,
        "Privacy spent, what left the sites, what they decided, and whether it verifies.",
        "audit",
        "audit_app",
    ),
    "transcript": _Entry(_AUDITORS, "Check the signed records of a run.", "transcript", "transcript_app"),
}


class _Commands(UserDict[str, click.Command]):
    """The commands in the order of the panels; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        entry = _COMMANDS[name]
        found = getattr(importlib.import_module(f"secfed.cli.{entry.module}"), entry.attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
            alone.command(name)(found)
            return typer.main.get_command(alone)
        found.info.name = name
        group: click.Command = typer.main.get_group(found)
        group.name = name
        return group


class _FrontDoor(GuardedGroup):
    """Imports a command only to run it or to show its own help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(dict.fromkeys(_COMMANDS, click.Command("")))
        self._listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the interface's
        """Names, in the order of the panels."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; while they are listed, only its name and what it is for."""
        if not self._listing:
            return super().get_command(ctx, cmd_name)
        entry = _COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As typer formats it."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


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


def main() -> None:
    """Entry point of the ``secfed`` command."""
    app()
