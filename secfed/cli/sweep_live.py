"""Progress of a sweep for a person: a live display on a terminal, a line per finished run elsewhere."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from secfed.sweep.engine import Progress as SweepProgress
from secfed.sweep.results import Row
from secfed.terminal.consoles import plain_text, show_number, show_seconds

_MOST_RUNNING = 8  # shown one by one


class LiveSweepObserver:
    """A bar, the time left, and what each run is doing."""

    def __init__(self, console: Console) -> None:
        self._now: SweepProgress | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[left]}", style="cyan"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("preparing", total=None, left="")

    def progress(self, now: SweepProgress) -> None:
        """Move the bar."""
        self._now = now
        self._bar.update(
            self._task,
            total=now.total,
            completed=now.done + now.failed,
            description=told(now),
            left=show_left(now.left_s),
        )

    def ended(self, row: Row) -> None:
        """The bar says it."""

    def render(self) -> RenderableType:
        """What is on the screen now; called by the display's own thread."""
        now = self._now  # replaced, never changed, so this thread sees one consistent version
        running = Table.grid(padding=(0, 2), expand=True)
        running.add_column(no_wrap=True)
        running.add_column(no_wrap=True, ratio=1, overflow="ellipsis", style="dim")
        for title, doing in list(now.running.items() if now else ())[:_MOST_RUNNING]:
            running.add_row(Text(plain_text(title)), Text(plain_text(doing)))
        return Group(self._bar, running)


class LineSweepObserver:
    """One line per run that ends, for log files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now: SweepProgress | None = None
        self._began = False

    def progress(self, now: SweepProgress) -> None:
        """Say once how much there is to do."""
        self._now = now
        if not self._began:
            self._began = True
            kept = f", {now.done} finished already" if now.done else ""
            self._line(f"{now.total} different runs{kept}")

    def ended(self, row: Row) -> None:
        """Name the run and its first metric, or its error."""
        if row.status == "done":
            metrics = (f"{plain_text(name)} {show_number(value)}" for name, value in row.metrics.items())
            seconds = f"{show_seconds(row.seconds or 0.0)} s"
            self._line(", ".join([f"done: {plain_text(row.run.title)}: {seconds}", *metrics]))
        else:
            self._line(f"{row.status}: {plain_text(row.run.title)}: {row.error}: {plain_text(row.message)}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def told(now: SweepProgress) -> str:
    """``12/63 done, 2 running, 1 failed``."""
    failed = f", {now.failed} failed" if now.failed else ""
    return f"{now.done}/{now.total} done, {len(now.running)} running{failed}"


def show_left(seconds: float | None) -> str:
    """``about 3 min left``; rounded, because it is an estimate."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"
