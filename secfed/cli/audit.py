"""``secfed audit``: what was spent and what left, as a report; whether it verifies; and what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secfed.errors import ConfigError, TranscriptError

if TYPE_CHECKING:
    from rich.console import Console

    from secfed.dp.report.facts import Report

audit_app = typer.Typer(
    no_args_is_help=True, help="Privacy spent, what left the sites, and whether the records verify."
)

_SHOWN = 20  # problems; a wrong roster breaks every file
_SLOW = 50  # epsilons; fewer are done before a progress bar could be read

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="Folders with transcripts, ledgers and rosters, searched with everything below them.",
        show_default=False,
    ),
]
Rosters = Annotated[
    list[Path] | None,
    typer.Option(
        "--roster",
        metavar="FILE",
        help="A roster you pinned; may be repeated. Without it, keys come from the rosters in the folders, "
        "which shows that the folders are consistent, not who made them.",
    ),
]


@audit_app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE.html", help="The report: one page that needs nothing else."),
    ],
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="The same facts for programs.")
    ] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", metavar="FILE", help="The same report as PDF.")] = None,
    roster: Rosters = None,
) -> None:
    """Write the audit report from ledgers and transcripts only.

    The report is also written when something does not verify; it says so on its first line, and the command
    exits with an error.
    """
    from secfed.cli.consoles import stdout
    from secfed.dp.report import to_json
    from secfed.dp.report.html import to_html

    _check_outputs({"--out": out, "--json": json, "--pdf": pdf})
    made = _made(folders, roster)
    contents = {out: to_html(made).encode()}
    if json is not None:
        contents[json] = to_json(made).encode()
    if pdf is not None:
        contents[pdf] = _pdf(made)
    for path, data in contents.items():
        _write(path, data)
        typer.echo(f"Wrote {path}")
    _verdict(stdout(), made)


@audit_app.command()
def verify(folders: Folders, roster: Rosters = None) -> None:
    """Check every chain and signature, compare all records, and recompute every epsilon. Offline.

    Names the file and the first bad line. Exits with 0 only if everything verifies.
    """
    from secfed.cli.consoles import stdout

    made = _made(folders, roster)
    console = stdout()
    _show_files(console, made)
    _show_models(console, made)
    _verdict(console, made)


@audit_app.command()
def budget(folders: Folders, roster: Rosters = None) -> None:
    """Show what every budget allows, what is spent and what is left."""
    from secfed.cli.consoles import stdout

    made = _made(folders, roster)
    console = stdout()
    _show_budgets(console, made)
    _verdict(console, made)


def _made(folders: list[Path], rosters: list[Path] | None) -> Report:
    from secfed.dp.report import make_report

    with _progress() as tick:
        return make_report(folders, rosters or (), tick=tick)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, once there is enough to do and somebody to watch."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from secfed.cli.consoles import stderr

    columns = (TextColumn("Recomputing epsilon"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=stderr(), transient=True)
    task = bar.add_task("", total=None)

    def tick(done: int, of: int) -> None:
        if of > _SLOW and bar.console.is_terminal:
            bar.start()  # does nothing the second time
            bar.update(task, completed=done, total=of)

    try:
        yield tick
    finally:
        if bar.live.is_started:
            bar.stop()


def _check_outputs(named: Mapping[str, Path | None]) -> None:
    """Refuse one file for two contents: the second would silently replace the first.

    Raises:
        ConfigError: names both options.
    """
    seen: dict[Path, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        first = seen.setdefault(path.resolve(), option)
        if first != option:
            raise ConfigError(f"{option} {path}: is the file of {first}, too", remedy="name two files")


def _pdf(made: Report) -> bytes:
    try:
        from secfed.dp.report.pdf import to_pdf
    except ModuleNotFoundError as error:
        if error.name != "fpdf":
            raise
        raise ConfigError(
            "--pdf: the package fpdf2 is not installed.",
            remedy="pip install fpdf2, or print the HTML report to PDF in a browser",
        ) from None
    return to_pdf(made)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_bytes(data)
        os.replace(unfinished, path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {os.strerror(error.errno or 0)}.", remedy="name a file that can be written"
        ) from None


def _show_files(console: Console, made: Report) -> None:
    from rich.text import Text

    from secfed.cli.consoles import plain_text
    from secfed.cli.tables import new_table

    first = {item.file: item for item in reversed(made.verification.problems)}
    table = new_table()
    for header in ("File", "Kind", "Owner", "Entries", "Head", "Result"):
        table.add_column(header, justify="right" if header == "Entries" else "left", overflow="fold")
    for item in made.verification.files:
        result = Text("verified", style="green")
        if not item.verified:
            problem = first.get(item.file)
            where = f"line {problem.line}" if problem is not None and problem.line else "bad"
            result = Text(where, style="bold red")
        table.add_row(
            plain_text(item.file),
            item.kind,
            plain_text(item.owner),
            str(item.entries or ""),
            item.head[:16],
            result,
        )
    console.print(table)
    console.print()


def _show_models(console: Console, made: Report) -> None:
    from rich.text import Text

    from secfed.cli.consoles import plain_text
    from secfed.dp.report import words

    for study in made.studies:
        for model in study.models:
            after = words.after_round(model.round)
            for file in model.files:
                line = f"{file}: is the model of study {study.name!r}, {after}."
                console.print(Text(plain_text(line)), soft_wrap=True)
            if not model.files:
                line = f"Not here: the model of study {study.name!r}, {after}, SHA-256 {model.sha256}."
                console.print(Text(plain_text(line)), soft_wrap=True)
    if any(study.models for study in made.studies):
        console.print()


def _show_budgets(console: Console, made: Report) -> None:
    from secfed.cli.consoles import plain_text
    from secfed.cli.tables import new_table
    from secfed.dp.report import words

    table = new_table()
    headers = ("Site", "Data set", "Protects", "Counts", "Limit", "Spent", "Left", "Delta", "Relation")
    for header in (*headers, "Accountant"):
        table.add_column(header, justify="right" if header in ("Limit", "Spent", "Left", "Delta") else "left")
    for ledger in made.ledgers:
        for amount in ledger.amounts:
            table.add_row(
                plain_text(ledger.site),
                plain_text(ledger.dataset),
                amount.protects,
                words.period(amount),
                words.limit(amount),
                words.number_up(amount.spent),
                words.number_down(amount.left),
                words.delta(amount.delta),
                amount.adjacency or words.NOTHING,
                f"{amount.accountant}, {amount.version}" if amount.accountant else words.NOTHING,
            )
    if made.ledgers:
        console.print(table)
    else:
        console.print("No ledger that verifies: no differential privacy is recorded here.")
    console.print()


def _verdict(console: Console, made: Report) -> None:
    """Print problems and notes, and fail if there is a problem."""
    from rich.text import Text

    from secfed.cli.consoles import plain_text, plural

    check = made.verification
    lines = [
        plain_text(f"{item.file}{f', line {item.line}' if item.line else ''}: {item.why}")
        for item in check.problems
    ]
    for line in lines[:_SHOWN]:
        console.print(Text.assemble(("✗ ", "red"), line), soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(Text(f"... and {len(lines) - _SHOWN} more"))
    for note in check.notes:
        console.print(Text(f"{plain_text(note)}.", style="yellow"), soft_wrap=True)
    if lines:
        more = f" ({len(lines) - 1} more above)" if len(lines) > 1 else ""
        raise TranscriptError(
            f"The records do not verify. {lines[0]}.{more}",
            remedy="do not rely on these numbers; get untampered copies from their owners",
        )
    files, epsilons = plural(len(check.files), "file"), plural(check.recomputed, "epsilon")
    console.print(Text(f"Verified: {files}; {epsilons} computed again.", style="green"))
    if not check.pinned:
        for roster in check.rosters:
            typer.echo(f"Keys from the folders; compare the roster's digest with your own: {roster.digest}")
