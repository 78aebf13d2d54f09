"""``secfed site``: what a hospital's administrator does to take part."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from secfed.cli import site_backup, site_check
from secfed.cli.asking import confirm, new_passphrase, passphrase_of
from secfed.cli.options import AsJson, Compared, NewFolder, NewPassphrase
from secfed.cli.site_folders import FolderArgument, at, chosen, located
from secfed.cli.site_folders import FolderOption as Folder
from secfed.crypto.identity import Roster, fingerprint, grouped
from secfed.crypto.identity import fingerprint as of_key
from secfed.deploy.admission.decision_recorder import record_now
from secfed.deploy.enrolment import messages
from secfed.deploy.enrolment.rosters import check_digest
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_status import Level, StatusItem, site_status
from secfed.errors import ConfigError, RosterError, SecfedError
from secfed.records.roster_file import read_roster
from secfed.storage import private_files
from secfed.terminal.consoles import plain_text, print_json, say, say_check, stdout
from secfed.terminal.tables import first_that_fits, new_table

site_app = typer.Typer(no_args_is_help=True, help="Make keys, join a consortium, pin its roster.")
site_app.command()(site_check.check)
site_app.command()(site_backup.backup)
site_app.command()(site_backup.restore)

Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        metavar="DIGEST",
        help="The roster's digest as the study centre read it to you; pins without asking if it is equal.",
    ),
]


@site_app.command()
def init(
    folder: NewFolder,
    name: Annotated[str, typer.Option(help="Name of the site.", show_default=False)],
    passphrase: NewPassphrase = False,
) -> None:
    """Make a site's keys, settings, policy and enrolment request. Offline."""
    site = SiteFolder.create(folder, name, now=messages.utc_now(), passphrase=new_passphrase(passphrase))
    typer.echo(f"{name}  {site.request().fingerprint}")
    typer.echo(f"Give {site.request_path} to the study centre and read them this fingerprint.")
    typer.echo(f"Write down what studies may do here: {site.policy_path}")


@site_app.command()
def join(
    reply: Annotated[Path, typer.Argument(metavar="REPLY", show_default=False)],
    folder: Folder = Path(),
    roster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pin this roster too, as site trust does.")
    ] = None,
    fingerprint: Fingerprint = None,
    yes: Compared = False,
) -> None:
    """Install the study centre's reply: the first time, and after every renewal.

    With --roster, nothing is installed unless the roster is the right one.
    """
    if fingerprint is not None and roster is None:
        raise ConfigError("--fingerprint: there is no roster to compare with", remedy="add --roster FILE")
    site = SiteFolder(folder)
    checked = site.check_reply(private_files.read_json(reply, "a reply"), str(reply), messages.utc_now())
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
    yes: Compared = False,
) -> None:
    """Show every member's fingerprint and pin the roster. Any later change needs this again."""
    site = SiteFolder(folder)
    agreed = _agreed(site, roster, fingerprint, yes)
    if agreed is not None:
        _pin(site, agreed)


@site_app.command()
def renew(folder: Folder = Path()) -> None:
    """Ask for a new certificate: same identity, new TLS key. The old one works until the reply is in."""
    site = SiteFolder(folder)
    path = site.renew(now=messages.utc_now(), passphrase=passphrase_of(*site.key_paths))
    typer.echo(f"Give {path} to the study centre: secfed consortium renew {site.name} --request FILE")
    typer.echo(f"When its reply comes: secfed site join REPLY{at(folder)}")


@site_app.command()
def status(folder: FolderArgument = None, option: Folder = Path(), as_json: AsJson = False) -> None:
    """Show whether this site is ready: keys, certificate, roster, policy.

    Exits with 2 if something keeps the agent from working.
    """
    named = chosen(folder, option)
    checks = tuple(
        replace(check, remedy=located(check.remedy, named))
        for check in site_status(SiteFolder(named), messages.utc_now())
    )
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _show(checks)
    if any(check.level is Level.BAD for check in checks):
        raise typer.Exit(ConfigError.exit_code)


def _agreed(
    site: SiteFolder, path: Path, expected: str | None, yes: bool, aggregator: bytes | None = None
) -> Roster | None:
    """A roster that the administrator agreed to, before anything is changed; None if it is pinned already."""
    roster = read_roster(path)
    site.check_roster(roster)
    if aggregator is not None and roster.aggregator != aggregator:
        message = f"{path}: names another aggregator than the reply does"
        raise RosterError(message, remedy="use neither; ask the study centre")
    if expected is not None:
        check_digest(roster, expected)
    pinned = site.pinned_or_none()
    if pinned is not None and pinned.roster == roster:
        typer.echo(f"This roster is pinned already, digest {grouped(roster.digest.hex())}")
        return None
    _show_roster(site, roster, None if pinned is None else pinned.roster)
    confirm(
        "Have you compared the digest with the study centre, over another channel?",
        yes=yes or expected is not None,
        option="--fingerprint DIGEST",
    )
    return roster


def _pin(site: SiteFolder, roster: Roster) -> None:
    site.trust(roster, messages.utc_now())
    typer.echo("Pinned. Any change of the roster needs this again.")
    try:
        record_now(site)
    except SecfedError as error:  # no reason not to pin it: the agent records it, or serves no study
        typer.echo(f"Not in the decision log yet: {error}", err=True)


def _show_roster(site: SiteFolder, roster: Roster, pinned: Roster | None) -> None:
    before = roster if pinned is None else pinned
    known, rekeyed = dict(before.members), before.aggregator != roster.aggregator
    styles = {"NEW KEY": "bold red", "new": "yellow"}
    console, table = stdout(), new_table("Member", "Fingerprint", "")
    aggregator_note = Text("NEW KEY" if rekeyed else "", style="bold red")
    table.add_row("aggregator", fingerprint(roster.aggregator), aggregator_note)
    for name, public in roster.members:
        note = "this site" if name == site.name else ""
        if known.get(name) != public:
            note = "NEW KEY" if name in known else "new"
            rekeyed = rekeyed or name in known
        table.add_row(plain_text(name), fingerprint(public), Text(note, style=styles.get(note, "dim")))
    console.print(first_that_fits(console, [table]))
    console.print()
    if removed := [name for name in known if name not in roster.sites]:
        say(console, f"No longer in it: {', '.join(removed)}", "yellow")
    if rekeyed:
        say(console, "A key changed. Ask the study centre why before you pin this.", "bold red")
    say(console, f"Roster digest: {grouped(roster.digest.hex())}")


def _show(checks: tuple[StatusItem, ...]) -> None:
    marks = {Level.OK: ("✓", "green"), Level.SOON: ("!", "yellow"), Level.BAD: ("✗", "bold red")}
    console = stdout()
    for check in checks:
        say_check(console, marks[check.level], f"{check.subject:<12}", check.text, check.remedy)
