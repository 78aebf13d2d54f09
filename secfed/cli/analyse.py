"""``secfed analyse``: tables, regressions and survival curves of a study of statistics."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.measure import Measurement
from rich.text import Text

from secfed.cli.imports import quick_imports
from secfed.cli.options import OnlyJson, StudyFile
from secfed.errors import ConfigError, DataError, MalformedMessage
from secfed.runs.run_folder import MODEL_FILE, is_unfinished, prepare
from secfed.simulation.dropouts import Dropout
from secfed.terminal.consoles import plain_text, say, stderr, stdout
from secfed.terminal.live_rounds import watching
from secfed.terminal.text_table import TextTable

_WIDEST: Final = 10_000

if TYPE_CHECKING:
    from collections.abc import Sequence

    from secfed.algorithms.statistics.results import Reported
    from secfed.study.study import Study  # needs torch


def analyse(
    study_file: StudyFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Write analysis.json, analysis.html, a CSV file for each table, and the records of the run.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="FILE",
            help="Show what a finished study found, from its model.safetensors, instead of running it here.",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE@STAGE[:ROUND]", help="Let a hospital go silent, as in simulate."),
    ] = None,
    as_json: OnlyJson = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in DIR.")] = False,
) -> None:
    """Run the analyses of a study on this machine, through the same protected sums as between hospitals.

    Between machines the same study runs with secfed aggregate and secfed agent; --model shows its results.

    [bold]Example:[/] secfed analyse study.toml --out runs/first
    """
    drops = [Dropout.parse(text) for text in drop or []]
    with quick_imports():
        from secfed.runs.analysis_files import analysis_json, write_analysis
        from secfed.study.study import Study

    study = Study.load(study_file)
    if study.algorithm.name != "statistics":
        raise ConfigError(
            f"algorithm.name: {study.algorithm.name!r} trains a model, and analyses nothing",
            remedy='set algorithm.name = "statistics" and name analyses, or use: secfed simulate',
        )
    if model is not None:
        if out is not None and model.resolve().is_relative_to(out.resolve()):
            raise ConfigError(
                f"--out {out}: holds the run whose model is analysed; it would be removed",
                remedy="name another folder",
            )
        reported, sites = _read(study, model)
        if out is not None:
            prepare(out, overwrite=overwrite)
    elif out is not None:
        reported, sites = _run(study, out, drops, quiet=as_json, overwrite=overwrite)
    else:
        with tempfile.TemporaryDirectory() as folder:
            reported, sites = _run(study, Path(folder) / "run", drops, quiet=as_json, overwrite=False)
    if out is not None:
        write_analysis(out, study.name, reported, sites)
    if as_json:
        typer.echo(analysis_json(reported), nl=False)
    else:
        _show(reported, sites)


def _run(
    study: Study, out: Path, drops: Sequence[Dropout], *, quiet: bool, overwrite: bool
) -> tuple[tuple[Reported, ...], int]:
    from secfed.simulation.simulate import simulate
    from secfed.study.limits import study_id

    prepare(out, overwrite=overwrite or is_unfinished(out, study_id(study)))
    with watching(stderr(), quiet=quiet) as observer:
        simulate(study, out=out, drops=drops, observer=observer)
    return _read(study, out / MODEL_FILE)


def _read(study: Study, model: Path) -> tuple[tuple[Reported, ...], int]:
    from secfed.algorithms.statistics.algorithm import Statistics
    from secfed.algorithms.statistics.report import report_of
    from secfed.study.build import build
    from secfed.wire.frames import decode_state

    algorithm = build(study)
    if not isinstance(algorithm, Statistics):
        raise ConfigError("algorithm.name: analyses nothing", remedy='set algorithm.name = "statistics"')
    try:
        found = decode_state(model.read_bytes())
        grouped = study.privacy is not None and study.privacy.unit != "record"
        reported = report_of(algorithm.analyses, found, algorithm.setting.sites, grouped=grouped)
    except OSError as error:
        raise ConfigError(
            f"--model {model}: {error.strerror}", remedy="name a finished study's model"
        ) from None
    except (DataError, KeyError, MalformedMessage) as error:
        raise DataError(
            f"--model {model}: is not of this study", remedy="name the study file that it was run with"
        ) from error
    return reported, len(algorithm.setting.sites)


def _show(reported: Sequence[Reported], sites: int) -> None:
    from secfed.runs.analysis_files import covered, shown

    console = stdout()
    width = console.width
    for one in reported:
        console.print(Text.assemble((plain_text(one.name), "bold cyan"), f"  {one.kind}"))
        say(console, covered(one, sites), "dim")
        if one.withheld is not None:
            say(console, f"withheld: {one.withheld}", "yellow")
        for table in one.result.tables:
            say(console, table.title, "bold")
            rows = [[shown(*cell) for cell in zip(row, table.columns, strict=True)] for row in table.rows]
            drawn = TextTable(table.columns, rows).for_terminal()
            whole = console.options.update(max_width=_WIDEST)
            # A number is never cut: a terminal that is too narrow folds the line.
            console.width = max(width, Measurement.get(console, whole, drawn).maximum)
            console.print(drawn)
            console.width = width
        for note in one.result.notes:
            say(console, note, "dim")
        console.print()
