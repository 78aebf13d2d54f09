"""``secfed aggregate``: run a study with the hospitals of a consortium."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secfed.cli.aggregate_log import EventLog, tell_person
from secfed.cli.asking import passphrase_of
from secfed.cli.simulate import show_report
from secfed.cli.site_folders import NamedConsortium
from secfed.cli.systems import linux_only
from secfed.cli.track import Track, open_writers, tracking
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.transport.signals import Stopped, Stopper
from secfed.errors import ConfigError
from secfed.runs.run_report import Observer
from secfed.terminal.consoles import stderr
from secfed.terminal.live_rounds import watching

if TYPE_CHECKING:
    from secfed.deploy.aggregator.aggregator import Aggregator, Service  # needs torch
    from secfed.deploy.aggregator.measured_transport import Tell


def aggregate(
    studies: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY...",
            help="Study files, or folders of them; several are served one after another.",
            show_default=False,
        ),
    ],
    consortium: NamedConsortium,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Folder of the run: results, transcript, and what is needed to resume. The same folder "
            "resumes a run that was stopped or killed. Of several studies each gets a folder in it.",
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
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience",
            min=1.0,
            metavar="SECONDS",
            help="Of several studies, how long one waits for hospitals before another one has its turn.",
        ),
    ] = 600.0,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve metrics for Prometheus on this port of this machine; 0: none.",
        ),
    ] = 0,
    track: Track = None,
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

    Several studies wait for each other: the next begins when one has ended, is paused with
    [bold]secfed consortium pause[/], or has waited too long for hospitals. Ctrl-C stops after the message
    that is being handled. The same command resumes.

    [bold]Example:[/] secfed aggregate study.toml --consortium centre --out runs/first
    """
    linux_only("An aggregator")
    from secfed.deploy.aggregator.aggregator import Service
    from secfed.deploy.aggregator.metrics import CentreMetrics
    from secfed.deploy.aggregator.queue import QueuedStudy, StudyQueue
    from secfed.deploy.transport.metrics_server import MetricsServer
    from secfed.study.study import Study

    asked, writers = _names(sites), open_writers(track or [])
    centre, stopper, console = Consortium(consortium), Stopper(), stderr()
    log = EventLog() if log_json else None
    if log is not None:
        from secfed.deploy.transport.json_log import log_as_json

        log_as_json("info", sys.stderr)
    metrics, told = CentreMetrics(centre, silent_s), tell_person(console) if log is None else log.tell

    def tell(event: str, **facts: Any) -> None:
        metrics.tell(event, **facts)
        told(event, **facts)

    def warn(tracker: str, said: str) -> None:
        told("untracked", tracker=tracker, reason=said)

    queue = StudyQueue(studies, out, lambda name: name in centre.paused(), tell, stopper, patience_s)
    if not queue.is_single and (end or as_json):
        raise ConfigError("--end, --json: are for a single study", remedy="name one study file")
    service = Service(
        listen, quorum, asked, silent_s, farewell_s, uploads_at_a_time, flower_socket, end, queue.has_more
    )

    def serve(one: QueuedStudy, gives_way: Callable[[float], bool]) -> None:
        watched = nullcontext(log) if log is not None else watching(console, quiet=False)
        study = Study.load(one.file)
        with watched as shown, tracking(writers, study, one.out, shown, warn, simulated=False) as observer:
            aggregator = _open(one.file, centre, one.out, service, observer, tell, stopper, gives_way)
            metrics.watch(aggregator.seen)
            try:
                report = aggregator.run()
            finally:
                metrics.watch(None)
        if as_json or log is None:
            show_report(report, one.out, as_json=as_json)
        else:
            from secfed.runs.figures import write_figures
            from secfed.runs.run_folder import FIGURES_FOLDER

            write_figures(report, one.out / FIGURES_FOLDER)

    server = MetricsServer(metrics_port, metrics, setting="--metrics-port") if metrics_port else None
    try:
        with stopper.installed():
            queue.run(serve)
    except Stopped as error:
        raise Stopped(error.message, remedy=f"start it again with --out {out} to resume") from None
    finally:
        if server is not None:
            server.close()


def _open(
    study_file: Path,
    centre: Consortium,
    out: Path,
    service: Service,
    observer: Observer,
    tell: Tell,
    stopper: Stopper,
    gives_way: Callable[[float], bool],
) -> Aggregator:
    from secfed.deploy.aggregator.aggregator import Aggregator
    from secfed.study.study import Study

    study = Study.load(study_file)
    text = study_file.read_text(encoding="utf-8")
    # What was checked, and is run here, must be what the hospitals are sent.
    if Study.parse(text, source=str(study_file)).tables() != study.tables():
        raise ConfigError(f"{study_file}: was changed while it was read", remedy="start again")
    return Aggregator(
        study,
        text,
        centre,
        out,
        passphrase=passphrase_of(*centre.aggregator_key_paths),
        service=service,
        observer=observer,
        tell=tell,
        stopper=stopper,
        gives_way=gives_way,
    )


def _names(sites: str | None) -> tuple[str, ...] | None:
    if sites is None:
        return None
    names = tuple(name.strip() for name in sites.split(","))
    if not all(names):
        raise ConfigError(f"--sites {sites}: an empty name", remedy="separate names by single commas")
    return names
