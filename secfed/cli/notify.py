"""``secfed agent notify`` and ``secfed consortium notify``: who is told, and does it arrive?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secfed.cli.site_folders import ConsortiumArgument, ConsortiumOption, FolderArgument, FolderOption, chosen
from secfed.errors import ConfigError
from secfed.terminal.consoles import say_check, stdout

if TYPE_CHECKING:
    from secfed.deploy.notification.channels import Channel

Test = Annotated[bool, typer.Option("--test", help="Send a test message by each way.")]


def site_notify(folder: FolderArgument = None, option: FolderOption = Path(), test: Test = False) -> None:
    """Show who is told when this hospital has to act, and how many messages wait.

    With --test, exits with 23 if a server did not take the message.
    """
    from secfed.deploy.agent.site_watch import site_channels, site_outbox
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder

    site = SiteFolder(chosen(folder, option))
    channels = _some(site_channels(site), site.folder, "site.toml")
    if test:
        _try(channels, f"secfed:site:{site.name}")
        return
    waiting = site_outbox(site, channels, utc_now).waiting()
    for channel in channels:
        typer.echo(f"{channel.name:<8} {channel.where}, {waiting[channel.name]} waiting")


def centre_notify(
    folder: ConsortiumArgument = None, option: ConsortiumOption = Path(), test: Test = False
) -> None:
    """Show who is told when a run waits for long, or ends.

    With --test, exits with 23 if a server did not take the message.
    """
    from secfed.deploy.aggregator.run_watch import SETTINGS_FILE, SOURCE, centre_channels
    from secfed.deploy.enrolment.consortium import Consortium

    centre = Consortium(chosen(folder, option)).folder
    channels = _some(centre_channels(centre), centre, SETTINGS_FILE)
    if test:
        _try(channels, SOURCE)
        return
    for channel in channels:
        typer.echo(f"{channel.name:<8} {channel.where}")


def _some(channels: Sequence[Channel], folder: Path, file: str) -> Sequence[Channel]:
    if not channels:
        remedy = f"set webhook.url or email.host in {file} (docs/operators.md, be told)"
        raise ConfigError(f"{folder}: nobody is told of anything", remedy=remedy)
    return channels


def _try(channels: Sequence[Channel], source: str) -> None:
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.notification.channels import DeliveryFailed, try_all

    console, failed = stdout(), False
    for channel, said in try_all(channels, source, utc_now()):
        name = f"{channel.name:<8} "
        if isinstance(said, DeliveryFailed):
            failed = True
            say_check(console, ("✗", "bold red"), name, said.message, said.remedy)
        else:
            say_check(console, ("✓", "green"), name, f"{channel.where}: {said}", "")
    if failed:
        raise typer.Exit(DeliveryFailed.exit_code)
