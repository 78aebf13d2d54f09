"""What the people of a hospital should know, read from what the agent keeps and publishes anyway.

held       a study waits for a person (``approvals.json``)
refused    the policy, or a person, does not permit the study that is served (the status)
failed     something here has to be put right before it runs (the status)
budget     less than a set share of a data set's budget is left (the newest payment in its ledger)
certificate  of this site, or of the consortium's CA, ends within four weeks, or has ended
silent     no call to the aggregator succeeds for longer than is set (the status)

It reads and never writes, and what it cannot read is not over.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secfed.deploy.admission import near_twins
from secfed.deploy.admission.approvals import Approvals, ApprovalState
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.channels import Channel, channels_of
from secfed.deploy.notification.message import Event, Fact
from secfed.deploy.notification.notifier import LOOK_S, Notifier
from secfed.deploy.notification.outbox import OUTBOX_FILE, Outbox, Seen
from secfed.deploy.pki.certificate_checks import Expiry, Urgency
from secfed.deploy.policy.policy import Policy
from secfed.dp.ledger.ledger import SPENT
from secfed.errors import SecfedError
from secfed.runs.run_folder import ledger_file

if TYPE_CHECKING:
    from secfed.dp.accounting.budget import Budget

log = logging.getLogger("secfed.notification")

_ENOUGH: Final = 1.25  # a budget that is this much above the mark is no longer low: it may waver at the mark
_UNREADABLE: Final = (SecfedError, OSError, ValueError, TypeError, KeyError)  # half written, or damaged
_TAIL_BYTES: Final = 1 << 16  # of a ledger; its newest payment is near the end
_ABSENT: Final = ("refused", "failed")
_TEMPORARY: Final = ("Remedy: wait", "Remedy: at the site: secfed agent approve")  # no refusal for good


class SiteWatch:
    """Looks at one hospital's agent; ``now`` is for certificates, ``clock`` counts seconds of silence."""

    def __init__(
        self,
        site: SiteFolder,
        board: StatusBoard,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._board, self._now, self._clock = site, board, now, clock
        self._settings = site.settings.notifications
        self._heard_s = clock()  # when the aggregator was last known to be there
        self._payments: dict[Path, tuple[tuple[int, int], Mapping[str, Any]]] = {}

    def look(self) -> Seen:
        """Everything that holds now."""
        status, seen = self._board.snapshot(), Seen()
        parts: tuple[Callable[[], Seen], ...] = (
            self._held,
            lambda: self._absent(status),
            self._budgets,
            self._certificates,
            lambda: self._silence(status),
        )
        for part in parts:
            try:
                seen += part()
            except _UNREADABLE as error:  # the agent itself says so
                log.debug("not looked at: %s", error)
        return seen

    def _held(self) -> Seen:
        holds = {}
        for item in Approvals(self._site.approvals_path).all():
            if item.state is not ApprovalState.HELD:
                continue
            key = f"held/{item.digest}/{int(item.since.timestamp())}"
            twins = len(near_twins.noted(self._site.state, item.digest))
            more = f"; it resembles {twins} earlier on the same data set" if twins else ""
            holds[key] = Event(
                "study.held",
                item.name,
                f"study {item.name} waits for your approval{more}",
                f"secfed agent show {item.digest[:16]} says what it asks for; then: secfed agent approve "
                f"{item.digest[:16]}, or: secfed agent refuse {item.digest[:16]}",
                {"study": item.name, "digest": item.digest, "near_twins": twins},
            )
        return Seen(holds, ("held/",))

    def _absent(self, status: Mapping[str, Any]) -> Seen:
        """Of the study that the status is about, once it is refused, fails, is served or has ended.

        What was told of others stays as it is, and so it does in any state that will pass by itself.
        """
        study, state, why = status["study"], status["state"], str(status["why"] or "")
        if not study or state not in (*_ABSENT, "serving", "finished"):
            return Seen()
        if state in _ABSENT and any(words in why for words in _TEMPORARY):
            return Seen()
        name, _, digest = study.rpartition("-")
        facts = {"study": name, "digest": digest}
        over = [f"{other}/{study}/" for other in _ABSENT]
        if state not in _ABSENT:
            return Seen({}, over)
        if state == "refused":  # its words are the policy's, which the study centre reads, too
            event = Event(
                "study.refused",
                name,
                f"study {name} is refused here: {why}",
                "nothing, if that is intended; otherwise change policy.toml, or: secfed agent approve",
                facts,
            )
        else:  # the words of other errors can say more about this site than a mail should
            text = f"study {name} cannot run here until something is put right"
            event = Event("study.failed", name, text, "see: secfed agent status, secfed site check", facts)
        return Seen({f"{state}/{study}/": event}, over)

    def _budgets(self) -> Seen:
        """The policy's budgets as they are now, against what the newest payment says was spent of each."""
        holds, over, mark = {}, [], self._settings.low_budget
        policy = Policy.load(self._site.policy_path)
        for data in policy.data:
            payment = self._payment(ledger_file(self._site.state, data.name))
            for budget in policy.budgets(data.name) if payment else ():
                if budget.epsilon is None:
                    continue
                left, limit = budget.epsilon - self._spent(payment, budget), budget.epsilon
                days, protects = budget.period_days, budget.protects
                key = f"budget/{data.name}/{protects}/{budget.delta:g}/{days}/"  # also with another limit
                if left < mark * limit:
                    percent = max(0, math.floor(100 * left / limit))
                    span = "in all" if days is None else f"in {days} days"
                    text = f"{percent} % is left of a budget of data set {data.name}: epsilon {limit:g} "
                    holds[key] = Event(
                        "budget.low",
                        data.name,
                        f"{text}for each {protects} {span}",
                        "secfed agent status shows it; studies that need more will be refused",
                        {"data": data.name, "left_percent": percent, "epsilon": limit, "period_days": days},
                    )
                elif left >= min(1.0, _ENOUGH * mark) * limit:
                    over.append(key)
        return Seen(holds, over)

    def _spent(self, payment: Mapping[str, Any], budget: Budget) -> float:
        """What counts of a budget: all of it until its period has passed since the newest payment."""
        days, paid_s = budget.period_days, payment.get("time_s", 0)
        if days is not None and self._now().timestamp() - paid_s > days * 86_400:
            return 0.0
        same = (str(budget.protects), days, budget.delta)
        spent = 0.0
        for one in payment.get("after", ()):
            if (one.get("protects"), one.get("period_days"), one.get("delta")) == same and one.get("spent"):
                spent = max(spent, float(one["spent"]["epsilon"]))
        return spent

    def _payment(self, path: Path) -> Mapping[str, Any]:
        """The newest payment in a ledger; read again when the file has changed.

        Not verified: the agent verifies it with each payment, and here nothing is decided by it.
        """
        try:
            found = path.stat()
        except FileNotFoundError:
            return {}
        version = (found.st_mtime_ns, found.st_size)
        known = self._payments.get(path)
        if known is None or known[0] != version:
            known = self._payments[path] = version, newest_payment(path)
        return known[1]

    def _certificates(self) -> Seen:
        now, holds = self._now(), {}
        own, joined = self._site.tls.certificate(), self._site.consortium()
        known = (
            ("this site", own, "secfed site renew, then give request.json to the study centre"),
            ("the consortium's CA", joined and joined[1], "ask the study centre to found a new consortium"),
        )
        for owner, certificate, remedy in known:
            expiry = None if certificate is None else Expiry.of(certificate, now)
            if certificate is None or expiry is None or expiry.urgency is Urgency.FINE:
                continue
            is_over = expiry.urgency is Urgency.EXPIRED
            kind = "certificate.expired" if is_over else "certificate.ending"
            text = f"the certificate of {owner} {'' if is_over else 'is valid '}{expiry.describe()}"
            facts: dict[str, Fact] = {
                "end": f"{expiry.end:%Y-%m-%dT%H:%M:%SZ}",
                "days_left": expiry.days_left,
            }
            holds[f"certificate/{kind}/{certificate.serial_number:x}"] = Event(
                kind, owner, text, remedy, {"owner": owner, **facts}
            )
        return Seen(holds, ("certificate/",))

    def _silence(self, status: Mapping[str, Any]) -> Seen:
        """When a study is over, its aggregator may go: that is no silence."""
        if status["connection"] == "connected" or status["state"] == "finished":
            self._heard_s = self._clock()
            return Seen({}, ("silent",))
        silent_s = self._clock() - self._heard_s
        if silent_s < self._settings.silent_s or status["connection"] == "closed":
            return Seen()
        event = Event(
            "aggregator.silent",
            "aggregator",
            f"no call to the aggregator has succeeded for {silent_s / 60:.0f} minutes",
            "secfed site check goes through the way out; else ask the study centre whether it is up",
            {"silent_s": int(silent_s)},
        )
        return Seen({"silent": event})


def newest_payment(path: Path) -> Mapping[str, Any]:
    """The newest payment in a ledger; empty before the first."""
    with path.open("rb") as stream:
        end = stream.seek(0, 2)
        size = _TAIL_BYTES
        while True:
            start = stream.seek(max(0, end - size))
            for line in reversed(stream.read(end - start).splitlines()):
                try:
                    entry = json.loads(line)
                    if entry["kind"] == SPENT and isinstance(entry["body"], dict):
                        return entry["body"]
                except (ValueError, KeyError, TypeError):
                    continue  # the first line of a part, or one that is half written
            if start == 0:
                return {}
            size *= 4


def site_channels(site: SiteFolder) -> tuple[Channel, ...]:
    """The ways that ``site.toml`` names; ``ConfigError`` where one cannot be used."""
    settings = site.settings
    return channels_of(site.folder, settings.notifications, settings.webhook, settings.email)


def site_outbox(
    site: SiteFolder,
    channels: Sequence[Channel],
    now: Callable[[], datetime],
    lost: Callable[[int], None] = lambda _: None,
) -> Outbox:
    """What was told and what waits at a site."""
    names = [channel.name for channel in channels]
    return Outbox(site.state / OUTBOX_FILE, f"secfed:site:{site.name}", names, now, lost)


def notifier_of(
    site: SiteFolder, board: StatusBoard, now: Callable[[], datetime], look_s: float = LOOK_S
) -> Notifier | None:
    """What tells the people of a site; None where ``site.toml`` names nobody, or wrongly."""
    try:
        channels = site_channels(site)
    except SecfedError as error:  # the agent works without
        board.count(notification_failures=1)
        log.error("nobody is told of anything: %s", error)
        return None
    if not channels:
        return None
    outbox = site_outbox(site, channels, now, lambda lost: board.count(notifications_lost=lost))
    watch = SiteWatch(site, board, now)
    return Notifier(outbox, channels, watch.look, count=lambda what: board.count(**{what: 1}), look_s=look_s)
