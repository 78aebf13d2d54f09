"""``secfed audit``: what was spent, what left and what was decided; whether it verifies; what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from secfed.audit.languages import ENGLISH, LANGUAGES, speaking
from secfed.errors import ConfigError, TranscriptError, installing
from secfed.storage.atomic import write_atomic
from secfed.terminal.consoles import plural, say, say_problems, stderr, stdout

if TYPE_CHECKING:
    from secfed.audit.privacy.evidence import Report  # needs torch, and so do tables and checks

audit_app = typer.Typer(
    no_args_is_help=True,
    help="Privacy spent, what left the sites, what they decided, and whether it verifies.",
)

_BEGINS = {"--out": b"<!doctype html>", "--json": b'{\n  "schema_version": ', "--pdf": b"%pdf-"}
_SLOW = 50  # epsilons; fewer are done before a progress bar could be read

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="Folders with transcripts, ledgers, decision logs and rosters, searched with all below them.",
        show_default=False,
    ),
]
Rosters = Annotated[
    list[Path] | None,
    typer.Option(
        "--roster",
        metavar="FILE",
        help="A roster you pinned; those in pinned-rosters beside it count, too. May be repeated. "
        "Without it, keys come from the rosters in the folders, which shows that the folders are consistent, "
        "not who made them.",
    ),
]

Seen = Annotated[
    list[str] | None,
    typer.Option(
        "--seen",
        metavar="HEAD",
        help="A head that an earlier report showed; may be repeated. It must still be in the records.",
    ),
]


@audit_app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path, typer.Option(metavar="FILE.html", help="The report: one page that needs nothing else.")
    ],
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="The same facts for programs.")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="FILE", help="The same report as PDF.")] = None,
    roster: Rosters = None,
    seen: Seen = None,
    language: Annotated[
        str, typer.Option(metavar="de|en|fr", help="The language of the page and the PDF.")
    ] = ENGLISH,
) -> None:
    """Write the audit report from signed records only: ledgers, transcripts and decision logs.

    The report is also written when something does not verify; it says so on its first line, and the command
    exits with an error.
    """
    from secfed.audit.privacy import to_json
    from secfed.audit.render.html import to_html

    if language not in LANGUAGES:
        raise ConfigError(
            f"--language {language}: is not known", remedy=f"name one of {', '.join(LANGUAGES)}"
        )
    _check_outputs({"--out": out, "--json": json, "--pdf": pdf})
    to_pdf = None if pdf is None else _pdf_writer()
    made = _made(folders, roster, seen)
    with speaking(language):
        contents = {out: to_html(made).encode()}
        if pdf is not None and to_pdf is not None:
            contents[pdf] = to_pdf(made)
    if json is not None:
        contents[json] = to_json(made).encode()
    for path, data in contents.items():
        _write(path, data)
        typer.echo(f"Wrote {path}")
    _verdict(stdout(), made)


@audit_app.command()
def verify(folders: Folders, roster: Rosters = None, seen: Seen = None) -> None:
    """Check every chain and signature, compare all records, and recompute every epsilon. Offline.

    Names the file and the first bad line. Exits with 0 only if everything verifies.
    """
    from secfed.cli import audit_tables as tables

    _print(_made(folders, roster, seen), tables.show_files, tables.show_models)


@audit_app.command()
def budget(folders: Folders, roster: Rosters = None) -> None:
    """Show what every budget allows, what is spent and what is left."""
    from secfed.cli import audit_tables as tables

    _print(_made(folders, roster), tables.show_budgets)


@audit_app.command()
def decisions(folders: Folders, roster: Rosters = None, seen: Seen = None) -> None:
    """Show what hospitals decided: studies approved or refused, policies in force, messages refused."""
    from secfed.cli import audit_tables as tables

    _print(_made(folders, roster, seen), tables.show_decisions)


def _print(made: Report, *parts: Callable[[Console, Report], None]) -> None:
    console = stdout()
    for show in parts:
        show(console, made)
    _verdict(console, made)


def _made(folders: list[Path], rosters: list[Path] | None, seen: list[str] | None = None) -> Report:
    from secfed.audit.privacy import make_report

    # A bar, once there is enough to do and somebody to watch.
    columns = (TextColumn("Recomputing epsilon"), BarColumn(), MofNCompleteColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tick(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, visible=of > _SLOW)

        return make_report(folders, rosters or (), tick=tick, seen=seen or ())


def _check_outputs(named: Mapping[str, Path | None]) -> None:
    """Refuse one file for two contents, and any file that holds no earlier report: a ledger, a roster."""
    options: dict[Path, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        first = options.setdefault(path.resolve(), option)
        if first != option:
            raise ConfigError(f"{option} {path}: is the file of {first}, too", remedy="name two files")
        if path.is_file() and not _is_earlier(option, path):
            raise ConfigError(
                f"{option} {path}: is there, and is no report of this kind", remedy="name a new file"
            )


def _is_earlier(option: str, path: Path) -> bool:
    """Whether an earlier report of this kind is in a file, or nothing and it is no chain of records."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(64)
            return begin.lower().startswith(_BEGINS[option]) or (not begin and path.suffix != ".jsonl")
    except OSError:
        return True  # writing says what is wrong


def _pdf_writer() -> Callable[[Report], bytes]:
    """What draws a report as PDF; ConfigError where its package is missing."""
    from secfed.audit.render.chromium import browser, print_to_pdf
    from secfed.audit.render.html import to_html

    if (program := browser()) is not None:

        def printed(report: Report) -> bytes:
            done = print_to_pdf(to_html(report), program)
            return done if done is not None else _drawer()(report)

        return printed
    return _drawer()


def _drawer() -> Callable[[Report], bytes]:
    try:
        from secfed.audit.render.pdf import to_pdf
    except ModuleNotFoundError as error:
        if error.name != "fpdf":
            raise
        raise ConfigError(
            "--pdf: neither Chromium nor the package fpdf2 is installed.",
            remedy=f"{installing('pdf')}; or print the HTML report to PDF in a browser",
        ) from None
    return to_pdf


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; a pipe or a device, /dev/stdout for example, is written to and never replaced."""
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            path.write_bytes(data)
        else:
            write_atomic(target, data)
    except OSError as error:
        message = f"{path}: {os.strerror(error.errno or 0)}."
        raise ConfigError(message, remedy="name a file that can be written") from None


def _verdict(console: Console, made: Report) -> None:
    """Print problems and notes, and fail if there is a problem."""
    from secfed.crypto.identity import grouped

    check = made.verification
    lines = [str(problem) for problem in check.problems]
    say_problems(console, lines)
    for note in check.notes:
        say(console, f"{note}.", "yellow")
    if check.is_only_unchecked:
        raise ConfigError(
            f"Not checked, for want of a roster: {plural(check.unchecked, 'file')}. {lines[0]}.",
            remedy="add --roster FILE: the pinned-roster.json of a site's folder, or the study centre's "
            "roster.json; earlier ones are in pinned-rosters beside it, by their digests",
        )
    if lines:
        more = f" ({len(lines) - 1} more above)" if len(lines) > 1 else ""
        raise TranscriptError(
            f"The records do not verify. {lines[0]}.{more}",
            remedy="do not rely on these numbers; get untampered copies from their owners",
        )
    files, epsilons = plural(len(check.files), "file"), plural(check.recomputed, "epsilon")
    style = "green" if check.pinned else "yellow"  # as in the report: whose keys they are is not known
    say(console, f"Verified: {files}; {epsilons} computed again.", style)
    if not check.pinned:
        for roster in check.rosters:
            typer.echo("Keys from the folders; compare the roster's digest with your own:")
            typer.echo(grouped(roster.digest))
