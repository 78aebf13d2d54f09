"""``secfed agent``: the hospital's daemon, and what its administrator tells it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from secfed.cli.asking import passphrase_of
from secfed.cli.notify import site_notify
from secfed.cli.options import AsJson
from secfed.cli.site_folders import FolderArgument, FolderOption, at, chosen, located
from secfed.cli.systems import linux_only
from secfed.crypto.identity import grouped
from secfed.deploy.admission import kept_offers, near_twins, persons
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.person import Person
from secfed.deploy.agent import control
from secfed.deploy.agent.budgets import ledger_standings
from secfed.deploy.agent.control import make_state_folder, only_agent
from secfed.deploy.agent.site_metrics import SiteMetrics
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard, read_status
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.metrics_server import MetricsServer
from secfed.deploy.transport.progress import now_at_hospital
from secfed.deploy.transport.signals import called_on_signal
from secfed.errors import ConfigError, SecfedError, TranscriptError
from secfed.site.lost_memory import lost_memory, warning
from secfed.terminal.consoles import plain_text, plural, print_json, stdout

agent_app = typer.Typer(no_args_is_help=True, help="Run the agent, watch it, approve studies.")
agent_app.command("notify")(site_notify)

_SUMS_SHOWN = 5  # of the newest
_NAME = "Its name, 8 or more digits of its digest, or both as they are shown."

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help=_NAME, show_default=False)]

_STOP_S = 60.0
_LONGEST_POLL_S = 86_400.0
_STATES = {"permitted": "permitted by the policy", "withdrawn": "refused"}
_COLOURS = {"held": "yellow", "withdrawn": "red", "approved": "green"}


@agent_app.command()
def run(
    folder: FolderArgument = None,
    option: FolderOption = Path(),
    once: Annotated[bool, typer.Option("--once", help="End when a study is over.")] = False,
    poll_s: Annotated[
        float, typer.Option(min=0.1, help="Pause before asking again about a study that waits.")
    ] = 5.0,
    simulated_randomness: Annotated[bool, typer.Option("--simulated-randomness", hidden=True)] = False,
) -> None:
    """Serve studies until stopped. Only dials out.

    Says on a terminal what happens; any other standard output gets it as JSON lines.
    """
    linux_only("A hospital's agent")
    from secfed.cli.agent_log import PersonFormatter
    from secfed.deploy.admission.memory import notice_loss
    from secfed.deploy.agent.agent import Agent
    from secfed.deploy.agent.site_watch import notifier_of
    from secfed.deploy.enrolment.messages import utc_now
    from secfed.deploy.transport.json_log import log_as_json

    if not poll_s <= _LONGEST_POLL_S:  # nan, too, which would not pause at all
        message = f"--poll-s {poll_s:g}: must be from 0.1 to {_LONGEST_POLL_S:g}"
        raise ConfigError(message, remedy="leave it out for 5 seconds")
    site = SiteFolder(chosen(folder, option))
    make_state_folder(site.state)
    secret = passphrase_of(*site.key_paths)
    with only_agent(site.state):
        words = partial(located, folder=site.folder)
        handler = log_as_json(site.settings.agent.log_level, words=words)
        if _is_terminal():
            handler.setFormatter(PersonFormatter(words))
        notice_loss(site, utc_now())
        board = StatusBoard(site.state / STATUS_FILE, site.name)
        port = site.settings.agent.metrics_port
        metrics = MetricsServer(port, board, SiteMetrics(site)) if port else None
        notifier = notifier_of(site, board, utc_now)
        try:
            if notifier is not None:
                notifier.start()
            agent = Agent(
                site,
                passphrase=secret,
                board=board,
                poll_s=poll_s,
                once=once,
                simulated_randomness=simulated_randomness,
            )
            with called_on_signal(agent.stop):
                agent.run()
        except SecfedError as error:
            board.error(str(error))
            board.set(state="failed", connection="closed")
            raise
        finally:
            if notifier is not None:
                notifier.close()
            if metrics is not None:
                metrics.close()


@agent_app.command()
def status(folder: FolderArgument = None, option: FolderOption = Path(), as_json: AsJson = False) -> None:
    """Show connection, study, round, last error, what left the site, budgets, studies that wait."""
    site = SiteFolder(chosen(folder, option))
    content = _status(site)
    if as_json:
        print_json(content)
    else:
        _show(content, site.folder)


@agent_app.command()
def pause(folder: FolderArgument = None, option: FolderOption = Path()) -> None:
    """Take no new work from the next exchange on; what is under way is finished."""
    control.pause(SiteFolder(chosen(folder, option)).state)
    typer.echo("Paused. The running exchange is finished; nothing new is begun.")


@agent_app.command()
def resume(folder: FolderArgument = None, option: FolderOption = Path()) -> None:
    """Take work again."""
    control.resume(SiteFolder(chosen(folder, option)).state)
    typer.echo("Resumed.")


@agent_app.command()
def stop(folder: FolderArgument = None, option: FolderOption = Path()) -> None:
    """End the running agent. Nothing is lost; it goes on where it was when it is started again."""
    was_there = control.stop(SiteFolder(chosen(folder, option)).state, _STOP_S)
    typer.echo("Stopped." if was_there else "No agent is running.")


@agent_app.command()
def approve(
    study: StudyName,
    folder: FolderOption = Path(),
    near_twin: Annotated[
        bool, typer.Option("--near-twin", help="Although it resembles an earlier study on the same data set.")
    ] = False,
) -> None:
    """Let a study run here. Any change of its settings needs this again.

    Lifts a refusal: of a name if the name is given, and of one digest if a digest is. If the study resembles
    an earlier one, that is shown, and nothing is approved without --near-twin.
    """
    site = SiteFolder(folder)

    def show(digest: str, twins: Sequence[near_twins.NearTwin]) -> None:
        _show_offer(site, digest)
        if lost := warning(site.state):
            typer.echo(lost)
        for twin in twins:
            typer.echo(f"Near twin of {plain_text(twin.text)}")
        if twins:
            typer.echo(near_twins.WARNING)

    item = persons.approve(site, study, Person(persons.account()), despite_twins=near_twin, show=show)
    if item.state is ApprovalState.APPROVED:
        typer.echo(f"Approved {item.name}  {grouped(item.digest)}")
        _record(site, persons.APPROVED_LATER)
        return
    if item.state is ApprovalState.HELD:
        typer.echo(f"Noted: {item.by} approves {item.name}  {grouped(item.digest)}")
        typer.echo("It runs once a second person approves it, as policy.toml wants.")
        return
    typer.echo(f"No longer refused: {item.name or item.digest}. No study is approved by this.")
    for other in Approvals(site.approvals_path).all():
        if item.name and other.name == item.name:
            typer.echo(f"To approve one: secfed agent approve {other.digest[:16]}{at(folder)}")
    _record(site, persons.REFUSED_LATER)


@agent_app.command()
def refuse(
    study: StudyName,
    folder: FolderOption = Path(),
    unasked: Annotated[
        bool, typer.Option("--unasked", help="Although it has not asked yet: its name or its whole digest.")
    ] = False,
) -> None:
    """Refuse a study from now on, whatever the policy says.

    A name is refused with all settings, those that come later included; a digest only by itself.
    """
    site = SiteFolder(folder)
    approvals = Approvals(site.approvals_path)
    item = persons.refuse(site, study, Person(persons.account()), unasked=unasked)
    if item.digest:
        typer.echo(f"Refused {item.name or 'a study that has not asked yet'}  {item.digest}")
        if item.name:
            typer.echo(f"With other settings too: secfed agent refuse {item.name}{at(folder)}")
    else:
        asked = any(other.name == item.name for other in approvals.all())
        typer.echo(f"Refused {item.name}, whatever its settings{'' if asked else '; it has not asked yet'}.")
    _record(site, "the refusal holds, and the agent records it when it can")
    typer.echo(f"To take it back: secfed agent approve {item.digest[:16] or item.name}{at(folder)}")


@agent_app.command()
def show(study: StudyName, folder: FolderOption = Path()) -> None:
    """Show what a study that has asked wants here, and which earlier one it resembles. Decides nothing."""
    site = SiteFolder(folder)
    item = Approvals(site.approvals_path).find(study)
    if not _show_offer(site, item.digest):
        typer.echo(f"{item.name}  {grouped(item.digest)}: nothing more is kept of it.")
    for twin in near_twins.noted(site.state, item.digest):
        typer.echo(f"Near twin of {plain_text(twin.text)}")
    typer.echo(f"It is {_STATES.get(item.state, item.state)}, since {item.since:%Y-%m-%d %H:%M} UTC.")
    if item.state in ("held", "withdrawn"):
        typer.echo(f"To let it run: secfed agent approve {item.digest[:16]}{at(folder)}")


def _show_offer(site: SiteFolder, digest: str) -> bool:
    """What a study asks for; False if nothing of it is kept."""
    offer = kept_offers.kept(site.state, digest)
    if offer is None:
        return False
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in offer.facts():
        warns = value.startswith("NONE")
        table.add_row(name, Text(plain_text(value), style="bold red" if warns else ""))
    stdout().print(table)
    return True


def _record(site: SiteFolder, otherwise: str) -> None:
    if not persons.record(site, otherwise):
        typer.echo("The agent records this, before any study works.")


def _status(site: SiteFolder) -> dict[str, Any]:
    never: dict[str, Any] = {"site": site.name, "state": "never ran"}
    content = read_status(site.state / STATUS_FILE) or never
    content["running"] = control.running(site.state) is not None
    content["paused"] = control.is_paused(site.state)
    lost = lost_memory(site.state)
    content["memory_lost"] = None if lost is None else datetime.fromtimestamp(lost.lost_s, UTC).isoformat()
    content["now"] = now_at_hospital(content)
    try:
        content["budgets"] = ledger_standings(site)
    except ConfigError as error:  # a running agent goes on with the last valid policy
        content["budgets"], content["policy_error"] = [], str(error)
    except TranscriptError as error:  # of a ledger, which it names; the rest is what helps then
        content["budgets"], content["ledger_error"] = [], str(error)
    approvals = Approvals(site.approvals_path)
    content["studies"] = [
        {
            "name": item.name,
            "digest": item.digest,
            "state": str(item.state),
            "since": item.since.isoformat(),
            "near_twins": [twin.text for twin in near_twins.noted(site.state, item.digest)],
        }
        for item in approvals.all()
    ]
    refused = approvals.refused_names()
    content["refused_names"] = [{"name": one.name, "since": one.since.isoformat()} for one in refused]
    return content


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _ago(time_s: float) -> str:
    """How long ago; a moment ahead, by another clock, counts as now."""
    passed_s = max(0, int(time.time() - time_s))
    for unit, size_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if passed_s >= size_s:
            return f"{plural(passed_s // size_s, unit)} ago"
    return "just now"


def _show(content: dict[str, Any], folder: Path) -> None:
    console = stdout()

    def line(name: str, value: object, style: str = "") -> None:
        text = Text(plain_text(str(value)), style=style)
        if "secfed " in text.plain:  # a command is copied as one line, however long
            console.print(Text(f"{name:<12}"), text, sep="", soft_wrap=True)
            return
        row = Table.grid()
        row.add_column(width=12, style="bold")
        row.add_column(overflow="fold")
        row.add_row(name, text)
        console.print(row)

    line("Site", content["site"])
    if content["running"]:
        line("Agent", "running", "green")
    else:
        line("Agent", "not running", "yellow")
    if content["paused"]:
        line("", "paused: takes no new work", "yellow")
    if lost_at := content.get("memory_lost"):
        line("Memory", f"lost on {lost_at[:10]}: persons decide; see secfed site confirm", "yellow")
    if "connection" in content:
        line("Connection", content["connection"])
        line("Study", f"{content['study'] or 'none'} ({content['state']})")
        line("Now", located(content["now"], folder))
        if content["round"] is not None:
            line("Step", f"{content['exchange'] or ''} {content['stage'] or ''}".strip())
        if content["last_error"] is not None:
            line("Last error", located(content["last_error"]["text"], folder), "red")
            line("", _ago(content["last_error"]["time_s"]))
        if content.get("last_alarm") is not None:
            line("Last alarm", content["last_alarm"]["text"], "yellow")
            line("", _ago(content["last_alarm"]["time_s"]))
            line("", "only this hospital knows: see training.log in its state folder")
        totals = content["totals"]
        since = "since the agent was last started"
        line("Left here", f"{totals['sums']} sums, {totals['bytes_up']} bytes {since}")
        if len(content["left"]) > _SUMS_SHOWN:
            line("", f"the last {_SUMS_SHOWN}:")
        for item in content["left"][-_SUMS_SHOWN:]:
            fields = ", ".join(item.get("fields", ()))
            cohort = len(item.get("survivors", ()))
            line("", f"round {item['round']}, {item['exchange']}, {item.get('bytes_up', 0)} bytes:")
            line("", f"  in a sum over {cohort} sites: {fields}")
    if content.get("ledger_error"):
        line("Ledger", located(content["ledger_error"], folder), "red")
    if content.get("policy_error"):
        line("Policy", located(content["policy_error"], folder))
        line("", "a running agent goes on with the last valid policy; one that starts now serves nothing")
    for item in content["budgets"]:
        from secfed.audit.privacy.phrases import number_up  # it takes a while to load

        for standing in item["standings"]:
            spent = (standing.get("spent") or {}).get("epsilon", 0.0)
            limit = standing.get("epsilon")
            of = "no limit" if limit is None else limit
            line("Budget", f"{item['data']}: epsilon {number_up(spent)} of {of}")
    for item in content["studies"]:
        name = item["name"] or "not asked yet,"
        state, since_s = item["state"], datetime.fromisoformat(item["since"]).timestamp()
        told = f"{name} {item['digest'][:16]}: {_STATES.get(state, state)}, {_ago(since_s)}"
        line("Study", told, _COLOURS.get(state, ""))
        if item["state"] == "held":
            for text in item["near_twins"]:
                line("", f"near twin of {text}")
            line("", f"to let it run: secfed agent approve {item['digest'][:16]}{at(folder)}")
    for item in content["refused_names"]:
        line("Refused", f"{item['name']}, whatever its settings")
