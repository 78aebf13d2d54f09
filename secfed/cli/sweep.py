"""``secfed sweep``: one study with many settings and seeds, several runs at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secfed.config.plugins import own_errors_in_full
from secfed.terminal.consoles import stderr, stdout


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
        int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Run this many at the same time.")
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Start only this panel's runs, and show what is finished of the others; may be repeated.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where runs run: processes (on this machine), slurm (a job each), ray (a task each; "
            "ray://HOST:PORT joins a cluster). Other machines must see DIR under the same path.",
        ),
    ] = "processes",
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of the jobs, by submitit's names, for example timeout_min=120 or "
            "slurm_partition=gpu; may be repeated.",
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
    from secfed.cli.sweep_results import conclude, list_runs
    from secfed.sweep.clusters import make_runner
    from secfed.sweep.engine import rows_so_far, run_sweep
    from secfed.sweep.file import SweepFile
    from secfed.sweep.live import watching
    from secfed.sweep.plan import make_plan

    with own_errors_in_full():
        plan = make_plan(SweepFile.load(sweep_file))
    if dry_run:
        list_runs(plan, out, stdout(), panel or ())
        return
    debug = bool(context.find_root().params.get("debug"))
    at_a_time = jobs or plan.sweep.jobs
    runner = make_runner(engine, plan.sweep.folder, at_a_time, slurm or [], debug=debug)
    try:
        with watching(stderr()) as observer:
            rows = run_sweep(plan, out, jobs=at_a_time, runner=runner, observer=observer, panels=panel or ())
    except KeyboardInterrupt:  # what is finished is worth seeing; the same command goes on later
        conclude(plan, rows_so_far(plan, out), out, stdout())
        raise
    conclude(plan, rows, out, stdout())
