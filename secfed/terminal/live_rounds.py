"""Observers for a person: a live display on a terminal, plain lines elsewhere. Both write to stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.text import Text

from secfed.deploy.transport.progress import ANSWERS, Waits
from secfed.runs.run_report import WAIT, Observer, RoundReport, RunReport, SilentObserver, ordered_metrics
from secfed.terminal.consoles import (
    live_or,
    plain_text,
    plural,
    progress_bar,
    say,
    show_bytes,
    show_metric,
    show_seconds,
)
from secfed.terminal.tables import WORTH_TELLING_S, round_table
from secfed.wire.stages import STAGES

_ROWS = 8  # finished rounds under the progress bar


@contextmanager
def watching(console: Console, *, quiet: bool) -> Iterator[Observer]:
    """The observer that suits the console; none that says anything if ``quiet``."""
    if quiet:
        yield SilentObserver()
        return
    with live_or(console, LiveObserver, LineObserver) as observer:
        yield observer


class LiveObserver(Observer):
    """A progress bar, what is happening, and the last finished rounds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = Text("starting", style="bold")
        self._rounds = 0
        self._finished: dict[int, RoundReport] = {}
        self._bar = progress_bar(console, "stage")
        self._task = self._bar.add_task("preparing", total=None, stage="")

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """Show the study's name and begin counting."""
        self._rounds = rounds
        self._title = Text.assemble((plain_text(study), "bold"), f"  {plural(len(sites), 'hospital')}")
        # One more than the rounds: the closing evaluation.
        self._bar.update(self._task, total=rounds + 1, description=self._where(1))

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:
        """Move the bar; several exchanges of one round never move it back."""
        step = STAGES.index(stage) if stage in STAGES else len(STAGES) - 1
        fraction = (step + (done / total if total else 0.0)) / len(STAGES)
        reached = max(self._bar.tasks[0].completed, round_number - 1 + min(fraction, 0.99))
        what = plain_text(f"{exchange} {stage}".strip())
        # An aggregator names no exchange; a simulation has nobody to wait for.
        waits = "" if exchange else Waits(ANSWERS, done, total).describe()
        self._bar.update(
            self._task,
            completed=reached,
            description=self._where(round_number),
            stage=f"{what}: {waits}" if waits else f"{what} {done}/{total}",
        )

    def round_finished(self, report: RoundReport) -> None:
        """Show it, or complete it."""
        self._finished = {**self._finished, report.round: report}
        self._bar.update(self._task, completed=max(self._bar.tasks[0].completed, report.round))

    def finished(self, report: RunReport) -> None:  # noqa: ARG002 - the interface's
        """Fill the bar."""
        self._bar.update(self._task, completed=self._rounds + 1, description="done", stage="")

    def render(self) -> RenderableType:
        """What is on the screen now; called by the display's own thread."""
        finished = self._finished  # replaced, never changed, so this thread sees one consistent version
        last = [finished[number] for number in sorted(finished)[-_ROWS:]]
        parts: list[RenderableType] = [self._title, self._bar]
        if last:
            parts.append(round_table(self._console, last))
        return Group(*parts)

    def _where(self, round_number: int) -> str:
        if self._rounds and round_number > self._rounds:
            return "closing evaluation"
        return f"round {round_number}/{self._rounds}"


class LineObserver(Observer):
    """One short line per fact, for log files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rounds = 0
        self._seen: set[int] = set()

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """Name the study."""
        self._rounds = rounds
        say(self._console, f"{study}: {plural(len(sites), 'hospital')}, {plural(rounds, 'round')}")

    def round_finished(self, report: RoundReport) -> None:
        """One line when the round is over, one when its metrics are known."""
        facts, what = [], "model after round"  # which is measured in the next one
        if report.round not in self._seen:
            self._seen.add(report.round)
            facts, what = [self._outcome(report)], "round"
        found = report.metrics or {}
        facts += [f"{name} {show_metric(found, name)}" for name in ordered_metrics([found])]
        if facts:
            say(self._console, f"{what} {report.round}/{self._rounds}: {', '.join(facts)}")

    def _outcome(self, report: RoundReport) -> str:
        if report.aborted:
            reason = plain_text(report.aborted).removeprefix(f"round {report.round}, ").rstrip(".")
            return f"aborted: {reason}{f'; {plain_text(report.gave_up)}' if report.gave_up else ''}"
        up = show_bytes(report.bytes_up_per_site.mean)
        waited = report.seconds.get(WAIT, 0.0)
        after = f" after waiting {show_seconds(waited)} s for hospitals" if waited >= WORTH_TELLING_S else ""
        seconds = f"{show_seconds(report.busy_s)} s{after}"
        return f"{len(report.survivors)}/{len(report.asked)} survivors, {up} up per site, {seconds}"
