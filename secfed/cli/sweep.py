"""``secfed sweep``: one study with many settings and seeds, several runs at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from secfed.errors import SecfedError
from secfed.storage.atomic import write_atomic
from secfed.sweep.engine import rows_so_far, run_sweep, runs_of
from secfed.sweep.figure import write_figure
from secfed.sweep.file import SweepFile
from secfed.sweep.live import watching
from secfed.sweep.plan import SweepPlan, make_plan
from secfed.sweep.processes import ProcessRunner
from secfed.sweep.report import Labels, failures, spread_sentence, summary_markdown, summary_table
from secfed.sweep.results import Row, metric_names
from secfed.sweep.store import RESULTS_FILE, SUMMARY_FILE, Store, check
from secfed.terminal.consoles import plain_text, plural, say, stderr, stdout
from secfed.terminal.tables import first_that_fits


def sweep(
    context: typer.Context,
    sweep_file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", help="A study file with a table \\[sweep].", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Write every run, results.csv, summary.md and the figure to this folder.",
            show_default=False,
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", min=1, help="Run this many at the same time."),
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            "--panel",
            metavar="NAME",
            help="Start only this panel's runs, and show what is finished of the others; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, list the runs and write nothing.")
    ] = False,
) -> None:
    """Run a study with every combination of settings and seeds, and put the results side by side.

    Each run is a process with one thread. Stopped or killed, the same command continues: finished runs
    stay, failed ones are repeated. Stopped with Ctrl-C, it shows what is finished.

    [bold]Example:[/] secfed sweep examples/sweep-breast-cancer.toml --out runs/sweep --jobs 2
    """
    plan = make_plan(SweepFile.load(sweep_file))
    if dry_run:
        _list(plan, out, stdout(), panel or ())
        return
    debug = bool(context.find_root().params.get("debug"))
    runner = ProcessRunner(plan.sweep.folder, debug=debug)
    try:
        with watching(stderr()) as observer:
            at_a_time = jobs or plan.sweep.jobs
            rows = run_sweep(plan, out, jobs=at_a_time, runner=runner, observer=observer, panels=panel or ())
    except KeyboardInterrupt:  # what is finished is worth seeing; the same command goes on later
        _conclude(plan, rows_so_far(plan, out), out, stdout())
        raise
    _conclude(plan, rows, out, stdout())


def _list(plan: SweepPlan, out: Path, console: Console, panels: Sequence[str]) -> None:
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


def _conclude(plan: SweepPlan, rows: Sequence[Row], out: Path, console: Console) -> None:
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
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        reasons = "\n".join(f"  {plain_text(line)}" for line in failures(rows))
        raise SecfedError(
            f"{failed} of {plural(len(rows), 'run')} failed:\n{reasons}",
            remedy=f"see {RESULTS_FILE} and log.txt of the runs; the same command repeats what is not done",
        )
    if problem is not None:
        raise problem


def _summary(plan: SweepPlan, rows: Sequence[Row], console: Console) -> RenderableType:
    """The table with as many metrics as fit, and its notes."""
    most = max(1, len(metric_names(rows)))
    tables = (summary_table(plan, rows, most_metrics=number).for_terminal() for number in range(most, 0, -1))
    table = first_that_fits(console, tables)
    notes = [Text(plain_text(note), style="yellow") for note in Labels(plan, rows).notes]
    return Group(table, Text(spread_sentence(plan.sweep), style="dim"), *notes)
