"""``secfed new``: a folder with an own algorithm, model or data set that works, to be changed."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import click
import typer

from secfed.cli.templates import FILES, rendered
from secfed.errors import ConfigError
from secfed.storage.atomic import unwritable_errors
from secfed.terminal.consoles import say, stdout

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)


def new(
    kind: Annotated[
        Literal["algorithm", "model", "data"],
        typer.Argument(click_type=click.Choice(list(FILES)), show_default=False),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the folder and the module in it.")],
) -> None:
    """Write an algorithm, a model or a data set of your own that works: a module, a study and a test.

    [bold]Example:[/] secfed new algorithm mine && secfed simulate mine/study.toml
    """
    folder = Path(name)
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a module.",
            remedy="use lower-case letters, digits and _, beginning with a letter",
        )
    if folder.exists():
        raise ConfigError(f"{name}: exists already.", remedy="choose another name, or another folder")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is the name of an installed module.", remedy="choose another name")
    with unwritable_errors(folder):
        folder.mkdir()
        for file, text in rendered(kind, name).items():
            (folder / file).write_text(text, encoding="utf-8")
    console = stdout()
    say(console, f"Written to {name}: {', '.join(rendered(kind, name))}")
    say(console, f"Try it:  secfed simulate {name}/study.toml")
    say(console, f"Test it: python -m pytest {name}")
