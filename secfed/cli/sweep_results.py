"""What ``secfed sweep`` prints and writes: the runs of a plan, and what came out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from secfed.errors import RoundAborted, SecfedError
from secfed.storage.atomic import write_atomic
from secfed.sweep.engine import runs_of
from secfed.sweep.figure import write_figure
from secfed.sweep.plan import SweepPlan
from secfed.sweep.report import Labels, failures, losses, spread_sentence, summary_markdown, summary_table
from secfed.sweep.results import Row, metric_names
from secfed.sweep.store import RESULTS_FILE, SUMMARY_FILE, Store, check
from secfed.terminal.consoles import plain_text, plural, say
from secfed.terminal.tables import first_that_fits


def list_runs(plan: SweepPlan, out: Path, console: Console, panels: Sequence[str]) -> None:
    """What would run, and what is finished already."""
    runs = runs_of(plan, panels)
    check(out)
    store = Store(out)
    counts = Counter[str]()
    for run in runs:
        state = "missing" if run.unavailable else "finished" if store.finished(run.digest) else "to run"
        counts[state] += 1
        say(console, f"{state:9} {run.title}")
    for name, why in plan.missing.items():
        say(console, f"{name} is missing: {why}")
    different = len({run.digest for run in runs if run.digest})
    equal = sum(bool(run.digest) for run in runs) - different
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    same = f"; {plural(equal, 'run')} equal to another and done once" if equal else ""
    console.print(f"{plural(len(runs), 'run')}: {states}{same}.")


def conclude(plan: SweepPlan, rows: Sequence[Row], out: Path, console: Console) -> None:
    """Write the summary, show it, and fail if a run failed."""
    problem: SecfedError | None = None
    written: tuple[Path, ...] = ()
    try:
        written = write_figure(plan, rows, out)
    except SecfedError as error:  # the table is still worth having
        problem = error
    summary = summary_markdown(plan, rows, figure=bool(written))
    write_atomic(out / SUMMARY_FILE, summary.encode())
    console.print(_summary(plan, rows, console))
    console.print(Text(f"Written to {out}: {RESULTS_FILE}, {SUMMARY_FILE}, runs/", style="dim"))
    lost = [row for row in rows if row.lost]
    if lost:
        reasons = "\n".join(f"  {plain_text(line)}" for line in failures(rows))
        aborted = all(row.status == "aborted" for row in lost)
        kind, how = (RoundAborted, "came to nothing") if aborted else (SecfedError, "failed")
        raise kind(
            f"{len(lost)} of {plural(len(rows), 'run')} {how}:\n{reasons}",
            remedy=f"see {RESULTS_FILE} and log.txt of the runs; the same command repeats what is not done",
        )
    if problem is not None:
        raise problem


def _summary(plan: SweepPlan, rows: Sequence[Row], console: Console) -> RenderableType:
    """The table with as many metrics as fit, and its notes."""
    most = max(1, len(metric_names(rows)))
    tables = (summary_table(plan, rows, most_metrics=number).for_terminal() for number in range(most, 0, -1))
    table = first_that_fits(console, tables)
    told = [*Labels(plan, rows).notes, *losses(rows)]
    notes = [Text(plain_text(note), style="yellow") for note in told]
    return Group(table, Text(spread_sentence(plan.sweep, rows), style="dim"), *notes)
