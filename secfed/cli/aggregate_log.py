"""What the operator of the aggregator is told: lines for a person, or JSON for a log collector."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from secfed.deploy.transport.progress import ANSWERS, Waits, where
from secfed.runs.run_report import Observer, RoundReport, RunReport
from secfed.terminal.consoles import plain_text, plural


def tell_person(console: Console) -> Callable[..., None]:
    """Events as sentences."""

    def tell(event: str, **facts: Any) -> None:
        software = facts.get("software", {})  # by site, but for one site's "version" a text
        named = facts.get("sites", ())
        sites = ", ".join(f"{site} ({software[site]})" if site in software else site for site in named)
        match event:
            case "started" | "resumed":
                text = f"{event}: serving at {facts['address']}"
                if not facts.get("reads_sums", True):
                    text += (
                        "; only the hospitals can read the sums, so there are no metrics and no losses here"
                    )
            case "waiting":
                text = f"waiting for {plural(facts['needed'], 'hospital')}; there now: {sites or 'none'}"
                text = f"{_where(facts)}{text}{_why(facts)}"
            case "quorum":
                text = f"there now: {sites}"
            case "version":
                text = (
                    f"warning: {facts['site']} runs {facts['software']}, this is {facts['own']}; "
                    "all parties of a study should run the same version"
                )
            case "refused":
                who = f"round {facts['round']}: {facts['site']}"
                text = f"{who} refused at {facts['stage']}: {facts['reason']}"
            case "missing":
                text = f"round {facts['round']}: {facts['site']} did not answer at {facts['stage']}"
            case "slow":
                waits = Waits(ANSWERS, facts["answered"], facts["asked"]).describe()
                text = f"{_where(facts)}{waits} at {facts['stage']}{_why(facts)}"
            case "turn":
                more = f"; after it: {', '.join(facts['queued'])}" if facts["queued"] else ""
                text = f"{facts['study']} has its turn, in {facts['out']}{more}"
            case "gave_way":
                text = f"{facts['study']} has waited long enough; another one has its turn"
            case "paused":
                text = f"{facts['study']} is paused; to go on: secfed consortium resume {facts['study']}"
            case "continued":
                text = f"{facts['study']} is no longer paused"
            case "failed":
                text = f"{facts['study']} failed, and others get their turn: {facts['reason']}"
            case "untracked":
                text = f"warning: --track {facts['tracker']}: {facts['reason']}"
            case "stopped":
                text = f"stopped: {facts['reason']}"
            case "finished":
                text = "finished; telling the hospitals, and giving them the model"
            case _:
                return
        console.print(plain_text(text), markup=False, soft_wrap=True)

    return tell


def _where(facts: Mapping[str, Any]) -> str:
    return f"{where(facts['round'], facts['rounds'])}, " if "round" in facts else ""


def _why(facts: Mapping[str, Any]) -> str:
    return "".join(f"; {site}: {reason}" for site, reason in facts.get("why", {}).items())


class EventLog(Observer):
    """An observer, and a teller, that log every event with its facts (see ``deploy/transport/json_log.py``).

    Security: names, counts, times and metrics from sums; never a value of a single site.
    """

    _log = logging.getLogger("secfed.aggregate")

    def tell(self, event: str, **facts: Any) -> None:
        """One event."""
        level = (
            logging.WARNING
            if event in ("missing", "refused", "slow", "untracked", "version")
            else logging.INFO
        )
        self._log.log(level, event, extra={"facts": facts})

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """The run begins."""
        self.tell("study", study=study, sites=list(sites), rounds=rounds)

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:  # noqa: ARG002
        """One line when a step begins and one when everybody has answered."""
        if done in (0, total):
            self.tell("step", round=round_number, stage=stage, answered=done, asked=total)

    def round_finished(self, report: RoundReport) -> None:
        """A round is over, or its metrics are known."""
        self.tell("round", **report.to_json())

    def round_kept(self, report: RoundReport) -> None:
        """Nothing: the log has its line from then."""

    def finished(self, report: RunReport) -> None:
        """The run is over."""
        content = report.to_json()
        failed = {} if report.closing_aborted is None else {"closing_aborted": report.closing_aborted}
        self.tell("results", final=content["final"], saw=report.saw, **failed)
