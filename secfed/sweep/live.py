"""Progress of many jobs for a person: a live display on a terminal, a line per finished run elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from secfed.sweep import jobs
from secfed.sweep.engine import SweepObserver
from secfed.sweep.results import Row, metric_names
from secfed.terminal.consoles import live_or, plain_text, progress_bar, say, show_metric, show_seconds

_MOST_RUNNING = 8  # shown one by one
_MOST_ENDED = 8  # of those that have ended, the newest


def watching(console: Console) -> AbstractContextManager[SweepObserver]:
    """The observer that suits the console."""
    return live_or(console, LiveSweepObserver, LineSweepObserver)


class LiveSweepObserver(SweepObserver):
    """A bar, the time left, what each run is doing, and the newest results."""

    def __init__(self, console: Console) -> None:
        self._ended: tuple[Text, ...] = ()
        self._now: jobs.Progress | None = None
        self._bar = progress_bar(console, "left")
        self._task = self._bar.add_task("preparing", total=None, left="")

    def progress(self, now: jobs.Progress) -> None:
        """Move the bar."""
        self._now = now
        self._bar.update(
            self._task,
            total=now.total,
            completed=now.done + now.failed,
            description=show_progress(now),
            left=show_left(now.left_s),
        )

    def ended(self, row: Row) -> None:
        """Show its result among the newest."""
        style = "" if row.status == "done" else "red"
        text = Text(plain_text(show_ended(row)), style=style, no_wrap=True, overflow="ellipsis")
        self._ended = (*self._ended[1 - _MOST_ENDED :], text)

    def render(self) -> RenderableType:
        """What is on the screen now; called by the display's own thread."""
        now = self._now  # replaced, never changed, so this thread sees one consistent version
        running = Table.grid(padding=(0, 2), expand=True)
        running.add_column(no_wrap=True)
        running.add_column(no_wrap=True, ratio=1, overflow="ellipsis", style="dim")
        for title, doing in list(now.running.items() if now else ())[:_MOST_RUNNING]:
            running.add_row(Text(plain_text(title)), Text(plain_text(doing)))
        return Group(self._bar, running, *self._ended)


class LineSweepObserver(SweepObserver):
    """One line per run that ends, for log files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = False

    def progress(self, now: jobs.Progress) -> None:
        """Say once how much there is to do."""
        if not self._began:
            self._began = True
            finished = f", {now.done} finished already" if now.done else ""
            say(self._console, f"{now.total} different runs{finished}")

    def ended(self, row: Row) -> None:
        """Name the run and its first metric, or its error."""
        say(self._console, show_ended(row))


def show_ended(row: Row) -> str:
    """A run that has ended, and its metrics, or its error."""
    if row.status != "done":
        return f"{row.status}: {row.run.title}: {row.error}: {row.message}"
    metrics = (f"{name} {show_metric(row.metrics, name)}" for name in metric_names([row]))
    return ", ".join([f"done: {row.run.title}: {show_seconds(row.seconds or 0.0)} s", *metrics])


def show_progress(now: jobs.Progress) -> str:
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
