"""``secfed aggregate``: run a study with the hospitals of a consortium."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secfed.cli.aggregate_log import EventLog, tell_person
from secfed.cli.asking import passphrase_of
from secfed.cli.options import StudyFile
from secfed.cli.simulate import show_report
from secfed.cli.site_folders import NamedConsortium
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.transport.signals import Stopped, Stopper
from secfed.errors import ConfigError
from secfed.runs.run_report import Observer, RunReport
from secfed.terminal.consoles import stderr
from secfed.terminal.live_rounds import watching

if TYPE_CHECKING:
    from secfed.deploy.aggregator.aggregator import Service  # needs torch
    from secfed.deploy.aggregator.measured_transport import Tell


def aggregate(
    study_file: StudyFile,
    consortium: NamedConsortium,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Folder of the run: results, transcript, and what is needed to resume. The same folder "
            "resumes a run that was stopped or killed.",
            show_default=False,
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=r"Where to serve. \[default: the consortium's port]"),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=r"Begin no exchange before N hospitals are there. \[default: as many as must answer]",
        ),
    ] = None,
    sites: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Ask only these hospitals of the study.")
    ] = None,
    silent_s: Annotated[
        float,
        typer.Option(
            "--silent", min=20.0, metavar="SECONDS", help="When a silent hospital counts as missing."
        ),
    ] = 60.0,
    farewell_s: Annotated[
        float,
        typer.Option(
            "--farewell",
            min=0.0,
            metavar="SECONDS",
            help="How long to bring hospitals that were away the model, and the news that the study is over.",
        ),
    ] = 60.0,
    uploads_at_a_time: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Take N large uploads at once; the others wait unread. Each needs memory of its size, so 1 "
            r"needs least. \[default: as many as fit into 1 GiB]",
        ),
    ] = None,
    flower_socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Carry messages through Flower: its ServerApp comes to this socket (examples/flower).",
        ),
    ] = None,
    end: Annotated[
        bool,
        typer.Option(
            "--end", help="End a study that was stopped: write the model it has, and tell the sites."
        ),
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write events to stderr as JSON, one object a line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print run.json to stdout at the end.")] = False,
) -> None:
    """Run a study: wait for the hospitals, carry the rounds, keep everything that a restart needs.

    Ctrl-C stops after the message that is being handled. The same command resumes.

    [bold]Example:[/] secfed aggregate study.toml --consortium centre --out runs/first
    """
    from secfed.deploy.aggregator.aggregator import Service

    console = stderr()
    asked = _names(sites)
    service = Service(listen, quorum, asked, silent_s, farewell_s, uploads_at_a_time, flower_socket, end)
    if log_json:
        from secfed.deploy.transport.json_log import log_as_json

        log_as_json("info", sys.stderr)
        log = EventLog()
        report = _run(study_file, consortium, out, service, log, log.tell)
    else:
        with watching(console, quiet=False) as observer:
            report = _run(study_file, consortium, out, service, observer, tell_person(console))
    if as_json or not log_json:
        show_report(report, out, as_json=as_json)
    else:
        from secfed.runs.figures import write_figures
        from secfed.runs.run_folder import FIGURES_FOLDER

        write_figures(report, out / FIGURES_FOLDER)


def _run(
    study_file: Path, folder: Path, out: Path, service: Service, observer: Observer, tell: Tell
) -> RunReport:
    from secfed.deploy.aggregator.aggregator import Aggregator
    from secfed.study.study import Study

    study = Study.load(study_file)
    text = study_file.read_text(encoding="utf-8")
    # What was checked, and is run here, must be what the hospitals are sent.
    if Study.parse(text, source=str(study_file)).tables() != study.tables():
        raise ConfigError(f"{study_file}: was changed while it was read", remedy="start again")
    centre = Consortium(folder)
    stopper = Stopper()
    aggregator = Aggregator(
        study,
        text,
        centre,
        out,
        passphrase=passphrase_of(*centre.aggregator_key_paths),
        service=service,
        observer=observer,
        tell=tell,
        stopper=stopper,
    )
    try:
        with stopper.installed():
            return aggregator.run()
    except Stopped as error:
        raise Stopped(error.message, remedy=f"start it again with --out {out} to resume") from None


def _names(sites: str | None) -> tuple[str, ...] | None:
    if sites is None:
        return None
    names = tuple(name.strip() for name in sites.split(","))
    if not all(names):
        raise ConfigError(f"--sites {sites}: an empty name", remedy="separate names by single commas")
    return names
