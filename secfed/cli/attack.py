"""``secfed attack``: try to break the protection, and see what that brings."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from secfed.attack.catalogue import Outcome


class _Protection(StrEnum):
    PLAIN = "plain"
    MASKED = "masked"
    ENCRYPTED = "encrypted"


def attack(
    protection: Annotated[
        _Protection, typer.Option("--protection", "-p", help="What is attacked.")
    ] = _Protection.MASKED,
    hospitals: Annotated[int, typer.Option("--hospitals", min=3, max=100, help="In the consortium.")] = 5,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this attack; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides the hospitals' updates.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Play a malicious aggregator, with or without hospitals that help it, against real sessions.

    Every attack goes for one hospital's update, a vector of 4096 random numbers. The table says what stopped
    it and what was learned beyond the sum. Some attacks succeed: SECURITY.md says so, under the heading that
    the table names. Exit code 1 if any attack ends in another way than the documents say.

    [bold]Example:[/] secfed attack --protection masked --hospitals 8
    """
    from rich.console import Console
    from rich.status import Status

    from secfed.algorithms.options import suggestion
    from secfed.attack.attack import Setting
    from secfed.attack.catalogue import attacks_on, run_attacks
    from secfed.errors import ConfigError

    attacks = attacks_on(protection.value)
    known = [one.name for one in attacks]
    for name in only or ():
        if name not in known:
            raise ConfigError(
                f"--only {name}: there is no such attack on {protection}", remedy=suggestion(name, known)
            )
    chosen = [one for one in attacks if only is None or one.name in only]
    with Status("", console=Console(stderr=True, quiet=as_json)) as status:
        outcomes = run_attacks(
            chosen, Setting(hospitals, seed), lambda one: status.update(f"{one.name}: {one.who} {one.what}")
        )
    if as_json:
        typer.echo(json.dumps([_record(outcome) for outcome in outcomes], indent=2))
    else:
        _show(outcomes, protection.value, hospitals)
    if not all(outcome.as_documented for outcome in outcomes):
        raise typer.Exit(1)


def _record(outcome: Outcome) -> dict[str, object]:
    attack, evidence = outcome.attack, outcome.evidence
    return {
        "name": attack.name,
        "protection": attack.protection,
        "who": attack.who,
        "what": attack.what,
        "tried": evidence is not None,
        "refusals": sorted(evidence.refusals) if evidence else [],
        "learned": evidence.learned if evidence else None,
        "correlation": evidence.correlation if evidence else None,
        "limit": attack.limit,
        "as_documented": outcome.as_documented,
    }


def _show(outcomes: list[Outcome], protection: str, hospitals: int) -> None:
    from rich.console import Console

    from secfed.cli.consoles import plural

    console = Console()
    stopped = [outcome for outcome in outcomes if outcome.attack.limit is None]
    limits = [outcome for outcome in outcomes if outcome.attack.limit is not None]
    if stopped:
        console.print(f"[bold]Attacks on one of {hospitals} hospitals, {protection}[/]\n")
        console.print(_table(stopped, "Stopped by"), "")
    if limits:
        console.print("[bold]What does succeed, as SECURITY.md says[/]\n")
        console.print(_table(limits, "SECURITY.md"), "")
    bad = [outcome.attack.name for outcome in outcomes if not outcome.as_documented]
    if bad:
        console.print(
            f"[bold red]Not as documented: {', '.join(bad)}.[/] Please report it as SECURITY.md says."
        )
        return
    tried = sum(outcome.evidence is not None for outcome in stopped)
    if tried:
        console.print(f"{plural(tried, 'attack')} brought nothing beyond the sum.")
    if protection == "plain":
        console.print("Plain hides nothing from the aggregator; it is for simulation and comparison.")


def _table(outcomes: list[Outcome], last: str) -> Table:
    from secfed.cli.tables import new_table

    table = new_table()
    for header in ("Attack", "Adversary and what it does", "Learned of one hospital", last):
        table.add_column(header, overflow="fold")
    for outcome in outcomes:
        attack = outcome.attack
        table.add_row(attack.name, f"{attack.who} {attack.what}", _learned(outcome), _end(outcome))
    return table


def _learned(outcome: Outcome) -> str:
    if outcome.evidence is None:
        return "not possible with so few"
    learned, correlation = outcome.evidence.learned, outcome.evidence.correlation
    if learned == "everything":
        return "[red]everything[/]: the exact update"
    colour = "green" if learned == "nothing" else "red"
    return f"[{colour}]{learned}[/] (correlation {abs(correlation):.2f})"


def _end(outcome: Outcome) -> str:
    if outcome.attack.limit is not None:
        return outcome.attack.limit
    if outcome.evidence is None:
        return "-"
    numbers = ", ".join(str(number) for number in sorted(outcome.evidence.refusals))
    return (
        f"refusal {numbers}" if numbers else "masks" if outcome.attack.protection == "masked" else "the key"
    )
