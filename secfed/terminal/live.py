"""A live display on a terminal, something else where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Something that changes while it is on the screen."""

    def render(self) -> RenderableType:
        """What is on the screen now; called by the display's own thread."""


_D = TypeVar("_D", bound=Display)
_O = TypeVar("_O")


@contextmanager
def live_or(
    console: Console, display: Callable[[Console], _D], otherwise: Callable[[Console], _O]
) -> Iterator[_D | _O]:
    """The display, shown until the block ends, also by an error; or what suits a log file or a pipe."""
    if console.is_terminal and not console.is_dumb_terminal:
        shown = display(console)
        with Live(get_renderable=shown.render, console=console, refresh_per_second=8, transient=True):
            yield shown
    else:
        yield otherwise(console)


def progress_bar(console: Console, field: str) -> Progress:
    """A bar between a description and the text of a field."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn(f"{{task.fields[{field}]}}", style="cyan"),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    )
