"""The ``secfed`` command: options that come before a command, and the list of commands.

A command's module is imported when the command is used, so that ``--help`` is quick.
"""

from __future__ import annotations

import importlib
import logging
from collections import UserDict
from typing import Annotated, Any, Final

import click
import typer
from typer.core import TyperCommand

from secfed import __version__
from secfed.cli.guard import GuardedGroup

# Panels of --help, by who is served: each command, and what it is for. A command is a function or a group
# in the module of its name.
_PANELS: Final = {
    "Researchers": {
        "init": "Write a study and a policy for a table, and look at its records.",
        "examples": "List the studies that come with secfed, show one, copy some.",
        "simulate": "Run a study on this machine: all hospitals, the aggregator and their protocol.",
        "analyse": "Tables, regressions and survival curves of all hospitals, through protected sums.",
        "sweep": "Run a study with every combination of settings and seeds, side by side.",
        "new": "Write an algorithm, a model or a data set of your own that works, to be changed.",
        "algorithms": "List what a study file can name: algorithms, models, data sets, options.",
        "attack": "Play a malicious aggregator and its helpers against real sessions.",
        "bench": "Measure what a protection costs on this machine, as ratios within one run.",
    },
    "Hospital": {
        "site": "Make keys, join a consortium, pin its roster.",
        "agent": "Run the agent, watch it, approve studies.",
        "policy": "Propose what a hospital permits, from a study.",
    },
    "Study centre": {
        "consortium": "Found a consortium, admit hospitals.",
        "aggregate": "Run a study: wait for the hospitals, carry the rounds, keep what a restart needs.",
    },
    "Officers and auditors": {
        "audit": "Privacy spent, what left the sites, what they decided, and whether it verifies.",
        "transcript": "Check the signed records of a run.",
        "console": "Open pages for people on this machine: approve, see what left, verify.",
    },
}
_COMMANDS: Final = {
    name: TyperCommand(name, help=text, rich_help_panel=panel)
    for panel, commands in _PANELS.items()
    for name, text in commands.items()
}


class _Commands(UserDict[str, click.Command]):
    """The commands in the order of the panels; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        module = importlib.import_module(f"secfed.cli.{self.data[name].name}")
        subcommands = getattr(module, f"{name}_app", None)
        if subcommands is not None:
            group: click.Command = typer.main.get_group(subcommands)
            group.name = name
            return group
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name)(getattr(module, name))
        return typer.main.get_command(alone)


class _FrontDoor(GuardedGroup):
    """Imports a command only to run it or to show its own help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(_COMMANDS)
        self.suggest_commands = not hasattr(click, "NoSuchCommand")  # newer click suggests by itself
        self._listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the interface's
        """Names, in the order of the panels."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; while they are listed, only its name and what it is for."""
        return _COMMANDS[cmd_name] if self._listing else super().get_command(ctx, cmd_name)

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
    rich_markup_mode="rich",
    # A traceback with local variables could print patients' data.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one model across hospitals. Only sums leave a hospital.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from secfed.crypto.identity import grouped
        from secfed.storage.code_digest import code_digest

        typer.echo(f"secfed {__version__}, build {grouped(code_digest()[:16])}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print version and build."),
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
    # An account without a home, as of a service, is no news; Matplotlib takes a temporary folder then.
    logging.getLogger("matplotlib").addFilter(_is_news)
    app()


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return "MPLCONFIGDIR" not in text and "mkdir -p failed" not in text
