"""``secfed algorithms``: what a study file can name, with every option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from secfed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.text import Text

    from secfed.config.schema import Strict

_TITLES = {
    "algorithm": "Algorithms",
    "model": "Models",
    "data": "Data sets",
    "section": "Sections of a study file",
}


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this one.", show_default=False)
    ] = None,
    options: Annotated[bool, typer.Option("--options", help="Show the options of all.")] = False,
) -> None:
    """List what a study file can name: algorithms, models and data sets. With a name: its options.

    [bold]study[/], [bold]protection[/] and [bold]privacy[/] show the keys of those sections.

    Your own are named as [bold]package.module:factory[/]; docs/studies.md shows how.
    """
    from secfed.study.option_tables import tables_of
    from secfed.study.registry import KINDS
    from secfed.terminal.consoles import stdout

    console = stdout()
    known = {kind: tables_of(kind) for kind in (*KINDS, "section")}
    if name is not None:
        every = sorted({other for tables in known.values() for other in tables})
        known = {kind: {name: tables[name]} for kind, tables in known.items() if name in tables}
        if not known:
            raise ConfigError(f"there is no {name!r}.", remedy=f"known: {', '.join(every)}")
    for kind, tables in known.items():
        if name is None and not options:
            _list(console, kind, tables)
        else:
            _show(console, kind, tables)
    if name is None and not options:
        console.print("Options of one: secfed algorithms NAME. Of all: secfed algorithms --options")


def _title(kind: str) -> Text:
    from rich.text import Text

    where = "" if kind == "section" else f'  [{kind}] name = "..."'
    return Text.assemble((_TITLES.get(kind, kind), "bold"), (where, "dim"))


def _list(console: Console, kind: str, tables: Mapping[str, type[Strict]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(_title(kind))
    console.print(Padding(Text(", ".join(tables), style="cyan"), (0, 0, 1, 2)))


def _show(console: Console, kind: str, tables: Mapping[str, type[Strict]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from secfed.study.option_tables import option_rows
    from secfed.terminal.tables import new_table

    console.print(_title(kind))
    for name, options in tables.items():
        console.print(Text(f"  {name}", style="bold cyan"))
        table = new_table()
        table.show_header = False
        for header, wraps in (("key", False), ("default", True), ("meaning", True)):
            table.add_column(header, no_wrap=not wraps, overflow="fold")
        for key, default, meaning in option_rows(options):
            # As text: a meaning such as "column to [centre, spread]" is not markup.
            table.add_row(key, Text(default, style="yellow" if default == "required" else ""), Text(meaning))
        console.print(Padding(table if table.row_count else Text("no options", style="dim"), (0, 0, 0, 4)))
    console.print()
