"""``secfed transcript``: check what a run recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from secfed.crypto.identity import grouped
from secfed.errors import ConfigError, TranscriptError
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.terminal.consoles import plain_text, plural, say, say_problems, stdout
from secfed.terminal.tables import first_that_fits, new_table

if TYPE_CHECKING:
    from secfed.audit.transcript_check import Verdict  # needs torch

transcript_app = typer.Typer(no_args_is_help=True, help="Check the signed records of a run.")


@transcript_app.callback()
def _commands() -> None:
    """Keeps ``verify`` a command of its own name."""


@transcript_app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
    roster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The roster you pinned. Without it, the keys come from DIR itself, which shows that "
            "DIR is consistent, not who made it.",
        ),
    ] = None,
) -> None:
    """Verify every transcript of a run: chains, signatures, that all recorded the same sums, and the model.

    The model and the metrics in DIR must be those that the transcripts name.

    Names the file and the first bad line. Exits with 0 only if everything verifies.
    """
    from secfed.audit.transcript_check import verify_run

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder.", remedy="name the folder that --out wrote")
    beside = folder / ROSTER_FILE
    if roster is None and not beside.is_file():
        raise ConfigError(f"{beside}: no such file.", remedy="name the roster you pinned with --roster FILE")
    pinned = read_roster(beside if roster is None else roster)
    verdict = verify_run(folder, pinned)
    _show(stdout(), verdict)
    if verdict.problems:
        first, *rest = (str(problem) for problem in verdict.problems)
        more = f" ({len(rest)} more above)" if rest else ""
        raise TranscriptError(
            f"The transcripts do not verify. {first}.{more}",
            remedy="do not rely on this run's record; get untampered copies from their owners",
        )
    if roster is None:
        typer.echo(f"Keys from {beside}; compare its digest with your own:")
        typer.echo(grouped(pinned.digest.hex()))


def _show(console: Console, verdict: Verdict) -> None:
    table = new_table("Transcript", "Entries", "Sums", "Head", "Result", numbers=("Entries", "Sums"))
    bad = {problem.file: problem for problem in reversed(verdict.problems)}
    central, *sites = verdict.parties
    compared = bool(central.entries)  # without the aggregator's, nothing says what to expect
    for party in verdict.parties:
        problem = bad.get(str(party.path))
        said = ("verified" if compared else "chain verified") + (", open" if party.is_open else "")
        result = Text(said, style="green" if compared and not party.is_open else "yellow")
        if problem is not None:
            result = Text(f"line {problem.line}" if problem.line else "bad", style="bold red")
        counts, head = ("–", "–"), "–"
        if party.entries:
            expected = verdict.expected(party) if compared else "–"
            counts = (str(len(party.entries)), f"{len(party.summed)} of {expected}")
            head = party.entries[-1].hash.hex()[:16]
        table.add_row(plain_text(party.owner), *counts, head, result)
    console.print(first_that_fits(console, [table]))
    console.print()
    say_problems(console, [str(problem) for problem in verdict.problems])
    for party in sites:
        lost = verdict.expected(party) - len(party.summed)
        if party.entries and lost > 0:
            why = "it never got the result, or the end of its transcript is cut off"
            lacks = f"{party.owner} did not record {plural(lost, 'sum')} that it is in"
            say(console, f"{lacks}: {why}.", "yellow")
    if verdict.absent:
        say(console, f"Not here: {', '.join(verdict.absent)}", "dim")
    for note in verdict.notes:
        say(console, f"{note}.", "yellow")
    for model in verdict.models:
        if model.is_right:
            after = f"after round {model.record.round}"
            say(console, f"{model.path}: is the model of study {central.study!r}, {after}.", "green")
        elif not model.is_here:
            named = f"the model that {model.owner}'s transcript names"
            say(console, f"Not here: {named}, SHA-256 {model.record.sha256.hex()}", "dim")
    if not verdict.problems:
        hospitals, sums = plural(len(sites), "hospital"), plural(len(central.summed), "sum")
        say(console, f"Verified: the aggregator and {hospitals} recorded the same {sums}.", "green")
