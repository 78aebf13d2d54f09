"""Which folder a command is about, and commands that name it when they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import click
import typer

from secfed.errors import ConfigError

_T = TypeVar("_T")


# What was named is noted under these keys; an argument is stronger than an option.
_SITE: Final = ("secfed.site.session.argument", "secfed.site.session.option")
_CONSORTIUM: Final = ("secfed.consortium.argument", "secfed.consortium.option")


def _noted(key: str) -> Callable[[typer.Context, _T], _T]:
    def note(context: typer.Context, value: _T) -> _T:
        context.meta[key] = value  # shared by all contexts of a command line
        return value

    return note


def _argument(key: str) -> Any:
    return typer.Argument(
        metavar="[DIR]", help="The same as --dir.", show_default=False, callback=_noted(key)
    )


def _option(name: str, variable: str, text: str, key: str, **more: Any) -> Any:
    return typer.Option(name, metavar="DIR", envvar=variable, help=text, callback=_noted(key), **more)


_OF_CENTRE: Final = ("SECFED_CONSORTIUM_DIR", "The consortium's folder.", _CONSORTIUM[1])

FolderArgument = Annotated[Path | None, _argument(_SITE[0])]
FolderOption = Annotated[Path, _option("--dir", "SECFED_SITE_DIR", "The site's folder.", _SITE[1])]
ConsortiumArgument = Annotated[Path | None, _argument(_CONSORTIUM[0])]
ConsortiumOption = Annotated[Path, _option("--dir", *_OF_CENTRE)]
# Of commands that are about more than the consortium.
NamedConsortium = Annotated[Path, _option("--consortium", *_OF_CENTRE, show_default=False)]

# Commands of this program with their operand: in capitals until somebody knows it, or a digest, or a name.
_AT_A_SITE: Final = re.compile(
    r"(?>secfed (?:site|agent) (?!init)[a-z]+(?: (?:[A-Z]+|[0-9a-f]{8,64})\b)?)(?! --dir)"
)
_AT_THE_CENTRE: Final = re.compile(r"(?>secfed consortium (?!init)[a-z]+(?: [\w.-]+)?)(?! --dir)")


def chosen(argument: Path | None, option: Path) -> Path:
    """The folder that was named, as an argument or with ``--dir``; ConfigError if both were and differ."""
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
    return _AT_A_SITE.sub(lambda match: match[0] + at(folder), text)


def located_here(text: str, context: click.Context) -> str:
    """A text whose commands name the folders that this command line named."""
    for keys, commands in ((_SITE, _AT_A_SITE), (_CONSORTIUM, _AT_THE_CENTRE)):
        folder = next((context.meta[key] for key in keys if context.meta.get(key) is not None), None)
        if folder is not None:
            more = at(folder)
            text = commands.sub(lambda match, more=more: match[0] + more, text)  # type: ignore[misc]
    return text
