"""A table as text, which a terminal and a Markdown page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secfed.terminal.consoles import plain_text
from secfed.terminal.tables import new_table


@dataclass(frozen=True)
class TextTable:
    """Headers, rows of as many cells, and the first column that holds numbers, which stand to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers_from: int = 1

    def for_terminal(self, *, whole: bool = True) -> Table:
        """In the style of the command line; every cell stays on one line if the table is ``whole``."""
        headers = [plain_text(header) for header in self.headers]
        table = new_table(*headers, numbers=headers[self.numbers_from :])
        for column in table.columns:
            column.no_wrap = whole
        for cells in self.rows:
            table.add_row(*(Text(plain_text(cell)) for cell in cells))
        return table

    def markdown(self) -> str:
        """As GitHub and mkdocs read it."""
        rule = ["---" if at < self.numbers_from else "---:" for at in range(len(self.headers))]
        cells = [[escaped(cell) for cell in row] for row in self.rows]
        lines = [[escaped(header) for header in self.headers], rule, *cells]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, on one line and in a cell."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def print_titled(title: str, table: TextTable) -> None:
    """To standard output, below a title."""
    console = Console()
    console.print(Text(title, style="bold"))
    console.print(table.for_terminal(whole=False))
