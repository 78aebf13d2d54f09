"""``--track``: give a run to MLflow or TensorBoard while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qsl, urlsplit

import typer

from secfed.config.protections import TRAITS
from secfed.errors import ConfigError
from secfed.runs.run_report import Observer, Observers
from secfed.runs.tracking import TrackedRun, Tracker, Writer, identity_of

if TYPE_CHECKING:
    from secfed.study.study import Study  # needs torch

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="KIND:PLACE",
        help="Give rounds and metrics of sums to a tracker, too: tensorboard:DIR, or mlflow:URI (a server "
        "or a database). May be given several times. A tracker that fails costs a warning only.",
    ),
]

_SECRET_NAMES: Final = ("user", "username", "password", "passwd", "sslpassword", "token")

Warn = Callable[[str, str], None]  # the tracker, and what went wrong


def open_writers(texts: Sequence[str]) -> dict[str, Callable[[], Writer]]:
    """What opens each tracker, by what was asked for.

    ConfigError: not KIND:PLACE, named twice, a password in a URI, or a package that is not installed.
    """
    found: dict[str, Callable[[], Writer]] = {}
    for text in texts:
        if text in found:
            raise ConfigError(f"--track {text}: is there twice", remedy="name each tracker once")
        found[text] = _opener(text)
        found[text]()  # what is missing is said before anything begins
    return found


def _opener(text: str) -> Callable[[], Writer]:
    kind, _, place = text.partition(":")
    if kind == "mlflow" and place:
        _check_no_password(place)
        from secfed.runs.tracking_mlflow import MlflowWriter

        return lambda: MlflowWriter(place)
    if kind == "tensorboard" and place:
        from secfed.runs.tracking_tensorboard import TensorBoardWriter

        return lambda: TensorBoardWriter(Path(place))
    raise ConfigError(
        f"--track {kind}: not KIND:PLACE with a tracker that is known",
        remedy="write for example tensorboard:runs/board, mlflow:http://127.0.0.1:5000 or "
        "mlflow:sqlite:///runs/mlflow.db",
    )


def _check_no_password(uri: str) -> None:
    # Every account of this machine reads command lines; so the text is not repeated here either.
    # A database takes both in the query, too; and a text that cannot be split may hold anything.
    try:
        parts = urlsplit(uri)
        names = {name.strip().lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
        holds = "@" in parts.netloc or not names.isdisjoint(_SECRET_NAMES)
    except ValueError:
        holds = True
    if holds:
        raise ConfigError(
            "--track mlflow: the URI holds a name or a password, which others could read",
            remedy="leave them out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment; for PostgreSQL PGUSER and PGPASSWORD",
        )


@contextmanager
def tracking(
    writers: dict[str, Callable[[], Writer]],
    study: Study,
    out: Path | None,
    observer: Observer,
    warn: Warn,
    *,
    simulated: bool,
) -> Iterator[Observer]:
    """The observer, and every tracker beside it."""
    if not writers:
        yield observer
        return
    from secfed.study.limits import study_id

    run = TrackedRun(
        identity=identity_of(study_id(study), out),
        study=study.study.name,
        study_id=study_id(study),
        algorithm=study.algorithm.name,
        protection=study.protection.kind,
        rounds=study.rounds,
        simulated=simulated,
        reads_sums=simulated or TRAITS[study.protection.kind].aggregator_reads_sums,
    )
    with ExitStack() as stack:
        trackers = [
            stack.enter_context(Tracker(opened(), run, lambda said, text=text: warn(text, said)))  # type: ignore[misc]
            for text, opened in writers.items()
        ]
        yield Observers(observer, *trackers)
