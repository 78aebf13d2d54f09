"""``secfed site``: what a hospital's administrator does to take part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secfed.cli import site_check
from secfed.cli.site_folders import FolderArgument, at, chosen, located
from secfed.cli.site_folders import FolderOption as Folder
from secfed.errors import ConfigError, RosterError, SecfedError

if TYPE_CHECKING:
    from secfed.crypto.identity import Roster
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.deploy.enrolment.site_status import StatusItem

site_app = typer.Typer(no_args_is_help=True, help="Make keys, join a consortium, pin its roster.")
site_app.command()(site_check.check)

Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        metavar="DIGEST",
        help="The roster's digest as the study centre read it to you; pins without asking if it is equal.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="The fingerprints have been compared; do not ask.")]


@site_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="Name of the site.", show_default=False)],
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Encrypt the private keys.")] = False,
) -> None:
    """Make a site's keys, settings, policy and enrolment request. Offline."""
    from secfed.cli.asking import new_passphrase
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder

    site = SiteFolder.create(folder, name, now=utc_now(), passphrase=new_passphrase(passphrase))
    typer.echo(f"{name}  {site.request().fingerprint}")
    typer.echo(f"Give {site.request_path} to the study centre and read them this fingerprint.")
    typer.echo(f"Write down what studies may do here: {site.policy_path}")


@site_app.command()
def join(
    reply: Annotated[Path, typer.Argument(metavar="REPLY", show_default=False)],
    folder: Folder = Path(),
    roster: Annotated[
        Path | None, typer.Option("--roster", metavar="FILE", help="Pin this roster too, as site trust does.")
    ] = None,
    fingerprint: Fingerprint = None,
    yes: Yes = False,
) -> None:
    """Install the study centre's reply: the first time, and after every renewal.

    With --roster, nothing is installed unless the roster is the right one.
    """
    from secfed.cli.asking import passphrase_of
    from secfed.crypto.identity import fingerprint as of_key
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.storage import private_files

    if fingerprint is not None and roster is None:
        raise ConfigError("--fingerprint: there is no roster to compare with", remedy="add --roster FILE")
    site = SiteFolder(folder)
    checked = site.check_reply(private_files.read_json(reply, "a reply"), str(reply), utc_now())
    to_pin = None
    if roster is not None:
        to_pin = _agreed(site, roster, fingerprint, yes, aggregator=checked.aggregator.identity_key)
    site.join(checked, passphrase=passphrase_of(*site.tls.key_paths))
    typer.echo(f"Joined {checked.consortium!r}; {site.name} connects to {checked.aggregator.address}.")
    typer.echo(f"Certificate until {checked.certificate.not_valid_after_utc:%Y-%m-%d}.")
    typer.echo(f"Aggregator  {of_key(checked.aggregator.identity_key)}")
    if to_pin is not None:
        _pin(site, to_pin)
    elif site.pinned() is None:
        typer.echo(f"Next: secfed site trust ROSTER{at(folder)}")


@site_app.command()
def trust(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", show_default=False)],
    folder: Folder = Path(),
    fingerprint: Fingerprint = None,
    yes: Yes = False,
) -> None:
    """Show every member's fingerprint and pin the roster. Any later change needs this again."""
    from secfed.deploy.enrolment.site_folder import SiteFolder

    site = SiteFolder(folder)
    agreed = _agreed(site, roster, fingerprint, yes)
    if agreed is not None:
        _pin(site, agreed)


@site_app.command()
def renew(folder: Folder = Path()) -> None:
    """Ask for a new certificate: same identity, new TLS key. The old one works until the reply is in."""
    from secfed.cli.asking import passphrase_of
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder

    site = SiteFolder(folder)
    path = site.renew(now=utc_now(), passphrase=passphrase_of(*site.key_paths))
    typer.echo(f"Give {path} to the study centre: secfed consortium renew {site.name} --request FILE")
    typer.echo(f"When its reply comes: secfed site join REPLY{at(folder)}")


@site_app.command()
def status(
    folder: FolderArgument = None,
    option: Folder = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show whether this site is ready: keys, certificate, roster, policy.

    Exits with 2 if something keeps the agent from working.
    """
    from dataclasses import asdict, replace

    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.deploy.enrolment.site_status import Level, site_status

    named = chosen(folder, option)
    checks = tuple(
        replace(check, remedy=located(check.remedy, named))
        for check in site_status(SiteFolder(named), utc_now())
    )
    if as_json:
        import json

        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _show(checks)
    if any(check.level is Level.BAD for check in checks):
        raise typer.Exit(ConfigError.exit_code)


def _agreed(
    site: SiteFolder, path: Path, expected: str | None, yes: bool, aggregator: bytes | None = None
) -> Roster | None:
    """A roster that the administrator agreed to, before anything is changed; None if it is pinned already.

    Raises:
        RosterError: it is not the roster of this site, of this aggregator, or of this digest.
        ConfigError: unreadable, or nobody is there to agree.
    """
    from secfed.cli.asking import confirm
    from secfed.deploy.enrolment.trust_store import check_digest
    from secfed.records.roster_file import read_roster

    roster = read_roster(path)
    site.check_roster(roster)
    if aggregator is not None and roster.aggregator != aggregator:
        raise RosterError(
            f"{path}: names another aggregator than the reply does",
            remedy="use neither; ask the study centre",
        )
    if expected is not None:
        check_digest(roster, expected)
    pinned = site.pinned_or_none()
    if pinned is not None and pinned.roster == roster:
        typer.echo(f"This roster is pinned already, digest {roster.digest.hex()}")
        return None
    _show_roster(site, roster, None if pinned is None else pinned.roster)
    confirm(
        "Have you compared the digest with the study centre, over another channel?",
        yes=yes or expected is not None,
        option="--fingerprint DIGEST",
    )
    return roster


def _pin(site: SiteFolder, roster: Roster) -> None:
    from secfed.deploy.admission.decision_recorder import record_now
    from secfed.deploy.enrolment.messages import utc_now

    site.trust(roster, utc_now())
    typer.echo("Pinned. Any change of the roster needs this again.")
    try:
        record_now(site)
    except SecfedError as error:  # no reason not to pin it: the agent records it, or serves no study
        typer.echo(f"Not in the decision log yet: {error}", err=True)


def _show_roster(site: SiteFolder, roster: Roster, pinned: Roster | None) -> None:
    from rich.text import Text

    from secfed.crypto.identity import fingerprint
    from secfed.deploy.enrolment.rosters import Changes
    from secfed.terminal.consoles import plain_text, stdout
    from secfed.terminal.tables import new_table

    changes = Changes() if pinned is None else Changes.between(pinned, roster)
    notes = dict.fromkeys(changes.added, "new") | dict.fromkeys(changes.rekeyed, "NEW KEY")
    console, table = stdout(), new_table()
    for header in ("Member", "Fingerprint", ""):
        table.add_column(header)
    aggregator_note = "NEW KEY" if changes.aggregator else ""
    table.add_row("aggregator", fingerprint(roster.aggregator), Text(aggregator_note, style="bold red"))
    for name, public in roster.members:
        note = notes.get(name, "this site" if name == site.name else "")
        style = "bold red" if note == "NEW KEY" else "yellow" if note == "new" else "dim"
        table.add_row(plain_text(name), fingerprint(public), Text(note, style=style))
    console.print(table)
    console.print()
    if changes.removed:
        gone = plain_text(", ".join(changes.removed))
        console.print(Text(f"No longer in it: {gone}", style="yellow"), soft_wrap=True)
    if changes.rekeyed or changes.aggregator:
        warning = "A key changed. Ask the study centre why before you pin this."
        console.print(Text(warning, style="bold red"), soft_wrap=True)
    console.print(f"Roster digest: {roster.digest.hex()}", soft_wrap=True)


def _show(checks: tuple[StatusItem, ...]) -> None:
    from rich.text import Text

    from secfed.deploy.enrolment.site_status import Level
    from secfed.terminal.consoles import plain_text, stdout

    marks = {Level.OK: ("✓", "green"), Level.SOON: ("!", "yellow"), Level.BAD: ("✗", "bold red")}
    console = stdout()
    for check in checks:
        mark, style = marks[check.level]
        line = Text.assemble((mark, style), f" {check.subject:<12}", plain_text(check.text))
        console.print(line, soft_wrap=True)
        if check.remedy:
            console.print(Text(f"  {'':<12}{plain_text(check.remedy)}", style="dim"), soft_wrap=True)
