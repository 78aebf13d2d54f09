"""``secfed site backup``, ``secfed site restore`` and ``secfed site confirm``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from secfed.cli.site_folders import FolderOption, at
from secfed.errors import ConfigError
from secfed.terminal.consoles import plain_text, plural

Keys = Annotated[
    bool, typer.Option("--keys", help="With the private keys: keep the file as secret as they are.")
]
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="What site backup wrote.", show_default=False)]
DataSets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[DATA_SET]...", help="Names in policy.toml.", show_default=False),
]
PolicyDecides = Annotated[
    bool,
    typer.Option("--policy-decides", help="No study from before can come again: ask no person any more."),
]


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

    What came after the backup is forgotten. So ledgers never take their place again: a data set is refused
    until its newest ledger is back, or it has another name. Approvals are asked for again, a person decides
    about every study from now on, and studies of the backup are refused if what they did is forgotten.
    """
    from secfed.deploy.admission import backup as backups
    from secfed.deploy.agent.control import make_state_folder, only_agent
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.site.lost_memory import lost_memory

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
            "another name in policy.toml, with what is left of its budget, and confirm that name: "
            "docs/operators.md, Back up and restore."
        )
    for study in done.refused:
        typer.echo(f"Refused   {plain_text(study)}: what it did here since the backup is forgotten")
    if done.written:
        typer.echo(
            "What came after the backup is forgotten, and nothing shows that nobody changed it. Check "
            f"policy.toml, approvals.json and the roster, then: secfed site status{at(folder)}"
        )
    if lost_memory(SiteFolder(folder).state) is not None:
        typer.echo("A person decides about every study now, and about every data set without a ledger in the")
        typer.echo(f"backup: secfed site confirm NAME{at(folder)}")


def confirm(
    data_sets: DataSets = None,
    folder: FolderOption = Path(),
    policy_decides: PolicyDecides = False,
) -> None:
    """After memory was lost: say for which data sets the budget in policy.toml is what is left.

    That is so if the ledger in the state folder is the newest one, if nothing was ever paid, or if the budget
    was lowered by all that was paid. Where a backup has a ledger, that one must come back first.
    """
    from secfed.deploy.enrolment.site_folder import SiteFolder
    from secfed.site.lost_memory import confirm_data_set, let_policy_decide, lost_memory

    site = SiteFolder(folder)
    known = {data.name for data in site.policy.load().data}
    for name in data_sets or ():
        if name not in known:
            named = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{name}: no data set of policy.toml", remedy=f"there are: {named}")
        confirm_data_set(site.state, name)
        typer.echo(f"Confirmed {name}: its budget in policy.toml counts as what is left.")
    if policy_decides:
        let_policy_decide(site.state)
        typer.echo("The policy decides about studies again.")
    lost = lost_memory(site.state)
    if lost is None:
        typer.echo("This site has lost nothing.")
    elif not data_sets and not policy_decides:
        typer.echo(f"Confirmed: {', '.join(lost.data_sets) or 'no data set'}.")
        typer.echo(f"About studies {'the policy' if lost.policy_decides else 'a person'} decides.")
