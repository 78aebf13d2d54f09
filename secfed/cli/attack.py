"""``secfed attack``: try to break the protection, and see what that brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar, get_args

import click
import typer
from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.text import Text

from secfed.attack.attack import Attack, AttackSetting, Protection
from secfed.attack.catalogue import Outcome, attacks_on, run_attacks
from secfed.cli.options import OnlyJson
from secfed.config.protections import Reveal
from secfed.config.schema import suggestion
from secfed.config.sections import PROTECTIONS
from secfed.errors import ConfigError
from secfed.terminal.consoles import plural, print_json
from secfed.terminal.tables import first_that_fits, new_table

if TYPE_CHECKING:
    from secfed.attack.privacy import PrivacyAttack, PrivacyOutcome  # needs torch

_AnyAttack = TypeVar("_AnyAttack", "Attack", "PrivacyAttack")

_HOSPITALS: Final = 5


def attack(
    protection: Annotated[
        Protection | None,
        typer.Option(
            "--protection",
            "-p",
            click_type=click.Choice(PROTECTIONS),
            help="What is attacked; masked by default.",
        ),
    ] = None,
    reveal: Annotated[
        Literal["aggregator", "sites"],
        typer.Option(
            click_type=click.Choice(get_args(Reveal)),
            help="Of masked sums: those that the aggregator reads, or closed ones (sites).",
        ),
    ] = "aggregator",
    privacy: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Attack noise for this epsilon instead.")
    ] = None,
    hospitals: Annotated[
        int | None, typer.Option(min=3, max=100, help="In the consortium; 5 by default.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this attack; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Decides the hospitals' updates.")] = None,
    as_json: OnlyJson = False,
) -> None:
    """Play a malicious aggregator, with or without hospitals that help it, against real sessions.

    Attacks go for one hospital's update, a vector of 4096 random numbers; for one of its records, through
    what it answers; or for an exchange and who is blamed for its end. The table says what stopped each and
    what was learned beyond the sum. Some attacks succeed: SECURITY.md says so, under the heading that the
    table names. Exit code 1 if any attack ends in another way than the documents say.

    With --privacy the goal is to tell whether one record, or one hospital, took part: the epsilon that
    guesses prove, beside the one that is claimed. Exit code 1 if they prove more.

    [bold]Example:[/] secfed attack --protection masked --hospitals 8

    [bold]Example:[/] secfed attack --privacy 8
    """
    status = Status("", console=Console(stderr=True, quiet=as_json))

    def progress(one: Attack | PrivacyAttack) -> None:
        status.update(f"{one.name}: {one.who} {one.what}")

    if privacy is not None:
        for name, value in (("protection", protection), ("hospitals", hospitals), ("seed", seed)):
            if value is not None:
                message = f"--{name}: has no effect beside --privacy"
                raise ConfigError(message, remedy="leave one of the two out")
        from secfed.attack.privacy import PRIVACY_ATTACKS, run_privacy_attacks

        selected = _select(PRIVACY_ATTACKS, only, "privacy")
        with status:
            shown = run_privacy_attacks(privacy, attacks=selected, progress=progress)
        good = all(outcome.sound for outcome in shown)
        if as_json:
            print_json([_privacy_record(outcome) for outcome in shown])
        else:
            _show_privacy(shown)
    else:
        target: Protection = protection or "masked"
        if reveal == "sites":
            if target != "masked":
                message = f"--reveal sites: has no effect on {target} sums"
                raise ConfigError(message, remedy="leave one of the two out")
            target = "closed"
        setting = AttackSetting(_HOSPITALS if hospitals is None else hospitals, seed or 0)
        with status:
            outcomes = run_attacks(_select(attacks_on(target), only, target), setting, progress)
        good = all(outcome.as_documented for outcome in outcomes)
        if as_json:
            print_json([_record(outcome) for outcome in outcomes])
        else:
            _show(outcomes, target, setting.hospitals)
    if not good:
        raise typer.Exit(1)


def _select(attacks: Sequence[_AnyAttack], only: list[str] | None, target: str) -> list[_AnyAttack]:
    known = [one.name for one in attacks]
    for name in only or ():
        if name not in known:
            message = f"--only {name}: there is no such attack on {target}"
            raise ConfigError(message, remedy=suggestion(name, known))
    return [one for one in attacks if only is None or one.name in only]


def _record(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.attack.name,
        "expected": f"{outcome.attack.expected} learned",
        "outcome": outcome.ended,
        "learned": outcome.evidence.learned if outcome.evidence else None,
        "documented_in": outcome.attack.limit,
    }


def _show(outcomes: list[Outcome], protection: str, hospitals: int) -> None:
    console = Console()
    stopped = [outcome for outcome in outcomes if outcome.attack.limit is None]
    limits = [outcome for outcome in outcomes if outcome.attack.limit is not None]
    if stopped:
        console.print(f"[bold]Attacks on one of {hospitals} hospitals, {protection}[/]\n")
        _print_table(console, stopped, "Stopped by")
    if limits:
        console.print("[bold]What does succeed, as SECURITY.md says[/]\n")
        _print_table(console, limits, "SECURITY.md")
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


def _print_table(console: Console, outcomes: list[Outcome], last: str) -> None:
    table = new_table("Attack", "Learned of one hospital", last, whole=["Attack"])
    for outcome in outcomes:
        table.add_row(outcome.attack.name, _learned(outcome), _end(outcome))
    console.print(first_that_fits(console, [table]), "")
    _explain(console, [outcome.attack for outcome in outcomes])


def _explain(console: Console, attacks: Sequence[Attack | PrivacyAttack]) -> None:
    """Who does what, below the table: as a column of it, this would be a word wide."""
    for attack in attacks:
        text = Text.assemble((attack.name, "bold"), f": {attack.who} {attack.what}.")
        console.print(Padding(text, (0, 0, 0, 2)))
    console.print()


def _learned(outcome: Outcome) -> str:
    evidence = outcome.evidence
    if evidence is None:
        return outcome.reason
    if evidence.learned == "everything":
        return f"[red]everything[/]: {evidence.measured}"
    colour = "green" if evidence.learned == "nothing" else "red"
    return f"[{colour}]{evidence.learned}[/] ({evidence.measured})"


def _end(outcome: Outcome) -> str:
    if outcome.attack.limit is not None:
        return outcome.attack.limit
    if outcome.evidence is None:
        return "-"
    numbers = ", ".join(str(number) for number in sorted(outcome.evidence.refusals))
    return f"refusal {numbers}" if numbers else outcome.attack.defence


def _privacy_record(outcome: PrivacyOutcome) -> dict[str, object]:
    claim = f"no epsilon above {outcome.claimed:g}"
    numbers = ("claimed", "delta", "shown", "shown_of_any", "trials", "sound")
    return {
        "name": outcome.attack.name,
        "expected": claim,
        "outcome": claim if outcome.sound else f"epsilon is above {outcome.claimed:g}",
        "learned": outcome.shown,
        "documented_in": "Differential privacy",
        "relation": outcome.attack.relation.value,
        **{name: getattr(outcome, name) for name in numbers},
    }


def _show_privacy(outcomes: list[PrivacyOutcome]) -> None:
    from secfed.attack.privacy import CONFIDENCE

    console, first, numbers = Console(), outcomes[0], ("Claimed", "Shown")
    table = new_table("Attack", "Relation", *numbers, numbers=numbers, whole=["Attack"])
    for outcome in outcomes:
        attack, colour = outcome.attack, "green" if outcome.sound else "red"
        shown = f"[{colour}]{outcome.shown:.2f}[/]"
        table.add_row(attack.name, attack.relation.value, f"{outcome.claimed:g}", shown)
    shown_by = f"claimed, and shown by {first.trials:,} guesses"
    console.print(f"[bold]Epsilon of one release at delta {first.delta:g}: {shown_by}[/]\n")
    console.print(first_that_fits(console, [table]), "")
    _explain(console, [outcome.attack for outcome in outcomes])
    bad = [outcome.attack.name for outcome in outcomes if not outcome.sound]
    if bad:
        console.print(f"[bold red]More was shown than is claimed: {', '.join(bad)}.[/]")
        return
    console.print(
        f"Nothing shown is above the claim. Shown: a lower bound at {CONFIDENCE:.1%} confidence, for "
        "Gaussian noise, from the best guesses against the worst record."
    )
