"""What a hospital's pages show, read from its folder: nothing here asks the aggregator or the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from secfed.audit.languages import say
from secfed.audit.privacy import phrases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Report
from secfed.audit.privacy.first_page import meaning
from secfed.config.protections import CLOSED
from secfed.console.records import Departure, Records, departures
from secfed.deploy.admission import kept_offers, near_twins, waiting
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState, Decision
from secfed.deploy.admission.kept_offers import KeptOffer
from secfed.deploy.admission.near_twins import NearTwin
from secfed.deploy.agent import control
from secfed.deploy.agent.status import STATUS_FILE, read_status
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_status import StatusItem, site_status
from secfed.deploy.policy.policy import Policy
from secfed.deploy.transport.progress import now_at_hospital
from secfed.errors import ConfigError, SecfedError
from secfed.records.roster_file import PINNED_FILE
from secfed.storage import private_files

_STATES: Final = {"approved": "approved", "permitted": "permitted by the policy", "withdrawn": "refused"}
_SETTINGS_FILE: Final = "settings.json"  # near_twins.py
_RECENT: Final = 10  # payments that a forecast goes by


@dataclass(frozen=True)
class Budget:
    """One budget, with what is left of it."""

    dataset: str
    amount: Amount
    meaning: str
    forecast: str

    @property
    def share(self) -> float:
        """What is spent, in percent of the limit."""
        return min(100.0, 100 * self.amount.spent / self.amount.limit) if self.amount.limit else 0.0


@dataclass(frozen=True)
class StudyView:
    """One study, as an approver sees it."""

    decision: Decision
    _state_folder: Path

    # None of these is read for a list: who asks chooses how many studies wait, and how long they are.
    @cached_property
    def offer(self) -> KeptOffer | None:
        """Its settings; None if they are not kept here."""
        try:
            return kept_offers.kept(self._state_folder, self.decision.digest)
        except ConfigError:
            return None

    @cached_property
    def dataset(self) -> str:
        """As the policy names it; empty if that is not known."""
        return self._asked.get("data_set", "") or _begun_on(self._state_folder, self.decision.digest)

    @property
    def leaves(self) -> list[dict[str, Any]] | None:
        """What would leave, by exchange, while it waits."""
        return self._asked.get("exchanges")

    @cached_property
    def twins(self) -> tuple[NearTwin, ...]:
        """Studies that it resembles."""
        return near_twins.noted(self._state_folder, self.decision.digest)

    @cached_property
    def _asked(self) -> dict[str, Any]:
        return waiting.noted(self._state_folder, self.decision.digest) or {}

    @property
    def state(self) -> str:
        """What was decided, in a word or two."""
        if self.decision.state is ApprovalState.HELD:
            first = self.decision.by
            waits = "approved by {first}; waits for a second person" if first else "waits for you"
            return say(waits, first=first)
        return say(_STATES.get(str(self.decision.state), str(self.decision.state)))

    @property
    def waits(self) -> bool:
        """Whether a person has to decide."""
        return self.decision.state is ApprovalState.HELD

    @property
    def tables(self) -> Mapping[str, Any]:
        """The study's settings."""
        return self.offer.tables if self.offer else {}

    @property
    def columns(self) -> list[str]:
        """Of the table that it reads."""
        return self.offer.columns if self.offer else []

    @property
    def protection(self) -> str:
        """Its name, as :data:`secfed.config.protections.TRAITS` has it."""
        asked = self.tables.get("protection", {})
        closed = asked.get("name") == "masked" and asked.get("reveal") == "sites"
        return CLOSED if closed else str(asked.get("name", ""))

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Every setting as ``section.key`` and its value."""
        return [
            (f"{section}.{key}", json.dumps(value, ensure_ascii=False))
            for section, table in self.tables.items()
            if isinstance(table, Mapping)
            for key, value in table.items()
        ]


class Hospital:
    """The folder of one site."""

    def __init__(self, folder: Path) -> None:
        self.site = SiteFolder(folder)
        outside = [] if self.site.state.resolve().is_relative_to(folder.resolve()) else [self.site.state]
        self.records = Records([folder, *outside], [folder / PINNED_FILE])

    @property
    def name(self) -> str:
        """The site's."""
        return self.site.name

    def status(self) -> dict[str, Any]:
        """What the agent does; says so where it never ran."""
        content = dict.fromkeys(("study", "round", "rounds", "last_error", "last_alarm"))
        content |= read_status(self.site.state / STATUS_FILE) or {"state": "never ran"}
        content["running"] = self.site.state.is_dir() and control.running(self.site.state) is not None
        content["paused"] = control.is_paused(self.site.state)
        content["now"] = now_at_hospital(content)
        return content

    def checks(self, now: datetime | None = None) -> tuple[StatusItem, ...]:
        """Keys, certificate, CA, roster, policy."""
        return site_status(self.site, now or utc_now())

    def policy(self) -> tuple[str, str]:
        """The text of policy.toml, and what is wrong with it; empty if nothing is."""
        text = private_files.read(self.site.policy_path, "a policy").decode("utf-8", "replace")
        try:
            Policy.load(self.site.policy_path)
        except SecfedError as error:
            return text, error.message
        return text, ""

    def studies(self) -> list[StudyView]:
        """Every study that asked, those that wait for a person first, then the newest."""
        views = [StudyView(item, self.site.state) for item in Approvals(self.site.approvals_path).all()]
        return sorted(views, key=lambda view: (not view.waits, -view.decision.since.timestamp()))

    def refused_names(self) -> tuple[Decision, ...]:
        """Names that are refused whatever the settings."""
        return Approvals(self.site.approvals_path).refused_names()

    def study(self, digest: str) -> StudyView | None:
        """One study by its digest."""
        return next((view for view in self.studies() if view.decision.digest == digest), None)

    def budgets(self) -> list[Budget]:
        """Where every budget stands, computed again from the ledgers."""
        report = self.records.report()
        ledgers = [one for one in report.ledgers if one.site == self.name] if report else []
        found = [
            Budget(ledger.dataset, amount, meaning(amount), _forecast(ledger, place))
            for ledger in ledgers
            for place, amount in enumerate(ledger.amounts)
        ]
        known = {budget.dataset for budget in found}
        return found + [budget for budget in self._unused() if budget.dataset not in known]

    def _unused(self) -> Iterator[Budget]:
        """Budgets of the policy from which nothing was paid yet."""
        try:
            policy = Policy.load(self.site.policy_path)
        except SecfedError:
            return
        for data in policy.data:
            for rule in data.budgets:
                amount = Amount(
                    protects=rule.protects,
                    limit=rule.epsilon,
                    spent=0.0,
                    left=rule.epsilon,
                    delta=rule.delta,
                    period_days=rule.period_days,
                    adjacency=None,
                    accountant=None,
                    version=None,
                    relies_on="nothing",
                )
                yield Budget(data.name, amount, meaning(amount), "")

    def left(self) -> list[tuple[str, list[Departure]]]:
        """What left, by day."""
        report = self.records.report()
        return departures(report, self.name) if report else []

    def decisions(self) -> Report | None:
        """The report with the decision logs."""
        return self.records.report()


def _begun_on(state: Path, digest: str) -> str:
    """The data set of a study that was begun; empty for any other."""
    for path in state.glob(f"studies/*-{digest[:16]}/{_SETTINGS_FILE}"):
        try:
            return str(private_files.read_json(path, "settings of a study").get("data_set", ""))
        except ConfigError:
            continue
    return ""


def _forecast(ledger: LedgerFacts, place: int) -> str:
    """How long what is left lasts if the next payments are like the last ones.

    Epsilons compose to less than their sum, so the true number is rather larger.
    """
    amount = ledger.amounts[place]
    known = (one.spent_under(amount) for one in ledger.payments)
    series = [spent for spent in known if spent is not None][-(_RECENT + 1) :]
    left = amount.left
    if left is None or len(series) < 2:
        return ""
    each = (series[-1] - series[0]) / (len(series) - 1)
    if each <= 0:
        return ""
    count = int(left / each)
    if count == 0:
        return say("Another payment like the last ones does not fit.")
    more = phrases.plural(count, "more payment")
    return say("Enough for about {payments} like the last ones.", payments=more)
