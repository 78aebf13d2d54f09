"""Where output goes, how lines and numbers look, and live displays: results to stdout, the rest to stderr."""

from __future__ import annotations

import json
import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE, error_of, is_withheld


def stdout() -> Console:
    """For results."""
    return Console(highlight=False)


def stderr() -> Console:
    """For progress, notes and errors."""
    return Console(stderr=True, highlight=False)


def plain_text(text: str) -> str:
    """Text from a file or a study without control characters, which could act on the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(console: Console, text: str, style: str = "") -> None:
    """One line, however long, of a text that may come from a file or a study."""
    console.print(Text(plain_text(text), style=style), soft_wrap=True)


def say_problems(console: Console, problems: Sequence[str], most: int = 20) -> None:
    """A line for each problem; a wrong roster breaks every file, so only so many."""
    for problem in problems[:most]:
        console.print(Text.assemble(("✗ ", "red"), plain_text(problem)), soft_wrap=True)
    if len(problems) > most:
        say(console, f"... and {len(problems) - most} more")


def say_check(console: Console, mark: tuple[str, str], subject: str, text: str, remedy: str) -> None:
    """The answer to one question: ``mark`` is a sign and its style, ``subject`` padded as a column."""
    console.print(Text.assemble(mark, f" {subject}", plain_text(text)), soft_wrap=True)
    if remedy:
        say(console, f"  {'':<{len(subject)}}{remedy}", "dim")


def print_json(content: object) -> None:
    """For programs, to standard output."""
    print(json.dumps(content, indent=2))


def show_number(value: float | None) -> str:
    """A metric: four decimals, or four digits when it is large or tiny."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.4f}"


def show_metric(metrics: Mapping[str, float | None], name: str) -> str:
    """A metric with the error that noise gave it, if any: ``0.8400 ± 0.0300``, or that it is withheld."""
    if is_withheld(metrics, name):
        return "withheld"
    error = error_of(metrics, name)
    return show_number(metrics.get(name)) + ("" if error is None else f" ± {show_number(error)}")


def explain_errors(metrics: Iterable[Mapping[str, float | None] | None]) -> str:
    """What ± and "withheld" mean; nothing where no metric carries noise."""
    found = [(one, name) for one in metrics for name in one or {} if error_of(one or {}, name) is not None]
    if not found:
        return ""
    text = "± is the error at 95 % that the noise of privacy gives a metric."
    errors = [error_of(one or {}, name) or 0.0 for one, name in found if is_withheld(one or {}, name)]
    if errors:
        text += f" Withheld: error above {WITHHELD_ABOVE:g} (here {show_number(max(errors))})."
    return text


def show_bytes(size: float) -> str:
    """A size in decimal units: ``812 B``, ``40.0 MB``."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def show_seconds(seconds: float) -> str:
    """A duration in seconds, without the unit."""
    if seconds >= 100:
        return f"{seconds:.0f}"
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.3f}"


def plural(count: int, noun: str) -> str:
    """``1 hospital``, ``4 hospitals``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def system_error(error: OSError) -> tuple[str, str]:
    """Path and reason of an error of the operating system, not its own text; and a remedy."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    path = f"{error.filename}: " if error.filename else ""
    return f"{path}{reason}", "check the path, its permissions and the space left"


def where(error: BaseException) -> str:
    """Where an exception arose, and what it came from.

    Security: without its text, notes and local values, which could quote a record; people send this on.
    """
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and not any(found is one for one in chain):
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    parts = []
    for one in reversed(chain):
        frames = "".join(traceback.format_tb(one.__traceback__))
        name = f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.")
        parts.append(f"Traceback (most recent call last):\n{frames}{name} (its text is left out)\n")
    return "\nwhich led to:\n\n".join(parts)


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
    """A bar, the time, a description and the text of a field: what varies in length comes last."""
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        BarColumn(bar_width=max(8, min(console.width // 3, console.width - 72))),
        TimeElapsedColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        TextColumn(f"{{task.fields[{field}]}}", style="cyan", table_column=rest),
        console=console,
        expand=True,
    )
