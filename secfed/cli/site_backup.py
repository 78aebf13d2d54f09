"""``secfed site backup`` and ``secfed site restore``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from secfed.cli.site_folders import FolderOption, at
from secfed.terminal.consoles import plain_text, plural

Keys = Annotated[
    bool, typer.Option("--keys", help="With the private keys: keep the file as secret as they are.")
]
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="What site backup wrote.", show_default=False)]


def backup(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.", show_default=False)],
    folder: FolderOption = Path(),
    keys: Keys = False,
) -> None:
    """Write settings, roster, decisions and records into one file; the agent may run meanwhile.

    Leaves out what must never come back: journal, unfinished work, seeds.
    """
    from secfed.deploy.admission.backup import back_up
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder

    names = back_up(SiteFolder(folder), out, utc_now(), keys=keys)
    typer.echo(f"Wrote {out}: {plural(len(names), 'file')}, {'with' if keys else 'without'} private keys.")


def restore(backup: Backup, folder: FolderOption = Path()) -> None:
    """Put back what is missing in a site's folder; what is there stays as it is.

    A ledger never takes its place again, as the newest payments could be forgotten: its data set is refused
    until the newest copy is back, or it has another name. Approvals are asked for again. Studies that were
    under way are refused if the journal is gone: nobody remembers what was answered.
    """
    from secfed.deploy.admission import backup as backups
    from secfed.deploy.agent.control import make_state_folder, only_agent
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder

    with ExitStack() as stack:
        if (folder / "site.toml").exists():
            state = SiteFolder(folder).state
            make_state_folder(state)
            stack.enter_context(only_agent(state))
        done = backups.restore(backup, folder, utc_now())
    for name in done.written:
        typer.echo(f"Restored  {plain_text(name)}")
    for name in done.kept:
        typer.echo(f"Kept      {plain_text(name)}: what is here differs, and counts")
    for path in done.aside:
        typer.echo(f"Aside     {plain_text(path)}: it may be older than what was spent, and does not count.")
    for name in done.unknown:
        typer.echo(f"Unknown   {plain_text(name)}: what was spent of its budget after the backup")
    if done.aside or done.unknown:
        typer.echo(
            "Each of these data sets is refused until its newest ledger is back. If that is lost, give it "
            "another name in policy.toml, with what is left of its budget: docs/operators.md, "
            "Back up and restore."
        )
    for study in done.refused:
        typer.echo(f"Refused   {plain_text(study)}: it was under way, and the journal is gone")
    typer.echo(f"Check approvals.json and the roster, then: secfed site status{at(folder)}")
