"""``secfed simulate``: run a whole study on this machine."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import click
import typer
from rich.text import Text

from secfed.cli.imports import quick_imports
from secfed.cli.options import StudyFile
from secfed.cli.track import Track, open_writers, tracking
from secfed.config.plugins import own_errors_in_full
from secfed.config.protections import Reveal
from secfed.errors import ConfigError
from secfed.runs.replaced_run import replacing
from secfed.runs.run_folder import FIGURES_FOLDER, is_unfinished, prepare, run_json
from secfed.runs.run_report import RunReport
from secfed.simulation.dropouts import Dropout
from secfed.terminal.consoles import say, stderr, stdout
from secfed.terminal.live_rounds import watching
from secfed.terminal.tables import summary
from secfed.wire.stages import STAGES

if TYPE_CHECKING:
    from secfed.study.study import Study  # needs torch


def simulate(
    study_file: StudyFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Write run.json, model.safetensors, transcripts and figures to this folder.",
        ),
    ] = None,
    protection: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this protection instead of the study's.")
    ] = None,
    reveal: Annotated[
        Literal["aggregator", "sites"] | None,
        typer.Option(
            click_type=click.Choice(get_args(Reveal)),
            help="Let the aggregator read the sums of masked protection, or only the sites (closed sums).",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE@STAGE[:ROUND]",
            help=f"Let a hospital go silent at a stage ({', '.join(STAGES)}), in one round or in every "
            "round. May be given several times.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Use this seed instead of the study's.")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE=EPSILON",
            help="Let a hospital's policy allow this epsilon instead of the study's. When it is spent, the "
            "hospital leaves. May be given several times.",
        ),
    ] = None,
    compare: Annotated[
        Literal["alone", "centralised"] | None,
        typer.Option(
            click_type=click.Choice(["alone", "centralised"]),
            help="Also train each hospital by itself (alone), or one model on all records in one place "
            "(centralised), and show both. Looks at single hospitals: simulation only.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where hospitals train: inline (here, one after the other), processes (several at a time on "
            "this machine), ray (a cluster; ray://HOST:PORT joins one). The model is the same.",
        ),
    ] = "inline",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Hospitals that train at a time; by default one per processor."),
    ] = None,
    site_deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A hospital that trains for longer drops out of the round."),
    ] = None,
    gpus_per_site: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="GPUs of each hospital that trains at a time: 0.25 lets four share one. By default what the "
            "study's model needs of its memory decides.",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Threads of --engine inline. More can be quicker for large models, and change the last "
            "digits of the model; run.json says how many there were.",
        ),
    ] = 1,
    track: Track = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print run.json to stdout and nothing else.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in DIR.")] = False,
) -> None:
    """Run a study on this machine: every hospital, the aggregator and the protocol between them.

    Shows progress, then a row per round, the final metrics, and what the aggregator saw. Stopped or killed,
    the same command goes on where the run was; with --overwrite it begins again.

    [bold]Example:[/] secfed simulate study.toml --out runs/first --drop hospital-2@mask:3
    """
    drops = [Dropout.parse(text) for text in drop or []]  # before anything that takes time
    budgets = _budgets(budget or [])
    writers = open_writers(track or [])
    with quick_imports():
        from secfed.engine.options import EngineOptions
        from secfed.simulation.simulate import simulate as run_study
        from secfed.simulation.unfinished import left_in
        from secfed.study.limits import study_id
        from secfed.study.study import Study

    where = EngineOptions(engine, workers, site_deadline, gpus_per_site, threads)
    with own_errors_in_full():
        study = Study.load(study_file)
    changes = [("protection.name", protection), ("protection.reveal", reveal)]
    # Only masked sums can be closed: what closes them comes after that name, and goes before another one.
    for key, value in changes if reveal == "sites" else reversed(changes):
        if value is not None:
            study = study.replace(key, value)
    if seed is not None:
        study = study.replace("study.seed", seed)
    with ExitStack() as stack:
        folder = out
        if out is not None:
            _check_start_is_outside(study, out)
            unfinished = is_unfinished(out, study_id(study))
            if overwrite and not unfinished:
                folder = stack.enter_context(replacing(out))
            elif overwrite or not unfinished or (left := left_in(out)) is None:
                prepare(out, overwrite=unfinished)
            elif not as_json:
                say(stderr(), f"{out}: goes on after round {left.position.round - 1}")
        console = stderr()
        watched = stack.enter_context(watching(console, quiet=as_json))

        def warn(tracker: str, said: str) -> None:
            say(console, f"warning: --track {tracker}: {said}", "yellow")

        observer = stack.enter_context(tracking(writers, study, out, watched, warn, simulated=True))
        report = run_study(
            study, out=folder, drops=drops, observer=observer, compare=compare, budgets=budgets, engine=where
        )
        _draw(report, folder)
    _print(report, out, as_json=as_json)


def _budgets(texts: list[str]) -> dict[str, float]:
    budgets: dict[str, float] = {}
    for text in texts:
        site, equals, number = text.rpartition("=")
        try:
            epsilon = float(number)
        except ValueError:
            epsilon = 0.0
        if not equals or not 0 < epsilon < float("inf"):
            raise ConfigError(f"--budget {text}: not SITE=EPSILON", remedy="write for example hospital-2=3.5")
        if site in budgets:
            raise ConfigError(f"--budget {text}: {site} has one already", remedy="give each hospital one")
        budgets[site] = epsilon
    return budgets


def _check_start_is_outside(study: Study, out: Path) -> None:
    """Refuse to overwrite the model that the study begins with."""
    start = study.model.start
    if start is not None and (study.folder / start).resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            f"--out {out}: holds the model that the study begins with (model.start = {start!r})",
            remedy="name another folder",
        )


def show_report(report: RunReport, out: Path | None, *, as_json: bool) -> None:
    """Draw the figures of a run into its folder, and print its summary, or run.json."""
    _draw(report, out)
    _print(report, out, as_json=as_json)


def _draw(report: RunReport, out: Path | None) -> None:
    if out is not None:
        from secfed.runs.figures import write_figures

        write_figures(report, out / FIGURES_FOLDER)


def _print(report: RunReport, out: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(run_json(report), nl=False)
        return
    console = stdout()
    console.print(summary(console, report))
    if out is not None:
        check = shlex.join(["secfed", "audit", "verify", str(out)])
        console.print(Text(f"Written to {out}; check it with: {check}", style="dim"))
