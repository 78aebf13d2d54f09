"""Which folder a hospital's command is about, and commands that name it when they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import click
import typer

from secfed.errors import ConfigError

FolderOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", envvar="SECFED_SITE_DIR", help="The site's folder.")
]
FolderArgument = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="The same as --dir.", show_default=False)
]

# A command of this program with its operands, which are written in capitals until somebody knows them.
_COMMAND: Final = re.compile(r"(?>secfed (?:site|agent) (?!init)[a-z]+(?: [A-Z]+\b)?)(?! --dir)")


def chosen(argument: Path | None, option: Path) -> Path:
    """The folder that was named, as an argument or with ``--dir``.

    Raises:
        ConfigError: both, and they differ.
    """
    if argument is None:
        return option
    source = click.get_current_context().get_parameter_source("option")
    if source is click.core.ParameterSource.COMMANDLINE and option != argument:
        raise ConfigError(f"{argument} and --dir {option}: name two folders", remedy="name one of them")
    return argument


def at(folder: Path) -> str:
    """What to add to a printed command: `` --dir FOLDER``, or nothing for the current folder."""
    return "" if folder.resolve() == Path.cwd() else f" --dir {shlex.quote(str(folder))}"


def located(text: str, folder: Path) -> str:
    """A text whose ``secfed site`` and ``secfed agent`` commands name this folder."""
    return _COMMAND.sub(lambda found: found[0] + at(folder), text)
