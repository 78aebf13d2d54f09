"""``secfed algorithms``: what a study file can name, with every option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from secfed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from secfed.algorithms.framework.registry import RegistryEntry

_TITLES = {"algorithm": "Algorithms", "model": "Models", "data": "Data sets"}


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this one.", show_default=False)
    ] = None,
    options: Annotated[bool, typer.Option("--options", help="Show the options of all.")] = False,
) -> None:
    """List what a study file can name: algorithms, models and data sets. With a name: its options.

    Your own are named as [bold]package.module:factory[/]; docs/studies.md shows how.
    """
    from secfed.study.registry import KINDS
    from secfed.terminal.consoles import stdout

    console = stdout()
    known = {kind: entries for kind, (entries, _) in KINDS.items()}
    if name is not None:
        known = {kind: {name: entries[name]} for kind, entries in known.items() if name in entries}
        if not known:
            every = sorted({other for entries, _ in KINDS.values() for other in entries})
            raise ConfigError(f"there is no {name!r}.", remedy=f"known: {', '.join(every)}")
    for kind, entries in known.items():
        if name is None and not options:
            _list(console, kind, entries)
        else:
            _show(console, kind, entries)
    if name is None and not options:
        console.print("Options of one: secfed algorithms NAME. Of all: secfed algorithms --options")


def _list(console: Console, kind: str, entries: Mapping[str, RegistryEntry]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text.assemble((_TITLES[kind], "bold"), (f'  [{kind}] name = "..."', "dim")))
    console.print(Padding(Text(", ".join(entries), style="cyan"), (0, 0, 1, 2)))


def _show(console: Console, kind: str, entries: Mapping[str, RegistryEntry]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from secfed.study.option_tables import option_rows
    from secfed.terminal.tables import new_table

    console.print(Text.assemble((_TITLES.get(kind, kind), "bold"), (f'  [{kind}] name = "..."', "dim")))
    for name, entry in entries.items():
        console.print(Text(f"  {name}", style="bold cyan"))
        table = new_table()
        table.show_header = False
        for header, wraps in (("key", False), ("default", True), ("meaning", True)):
            table.add_column(header, no_wrap=not wraps, overflow="fold")
        for key, default, meaning in option_rows(entry.options):
            # As text: a meaning such as "column to [centre, spread]" is not markup.
            table.add_row(key, Text(default, style="yellow" if default == "required" else ""), Text(meaning))
        console.print(Padding(table if table.row_count else Text("no options", style="dim"), (0, 0, 0, 4)))
    console.print()
