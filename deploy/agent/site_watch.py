"""What the people of a hospital should know, read from what the agent keeps and publishes anyway.

held       a study waits for a person (``approvals.json``)
refused    the policy, or a person, does not permit the study that is served (the status)
failed     something here has to be put right before it runs (the status)
budget     less than a set share of a data set's budget is left (the newest payment in its ledger)
policy     policy.toml is not valid, or cannot be read
certificate  of this site, or of the consortium's CA, ends within four weeks, or has ended
silent     no call to the aggregator succeeds for longer than is set (the status)

It reads and never writes, and what it cannot read is not over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from secfed.deploy.admission import near_twins
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.agent.budget_watch import BudgetWatch
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.channels import Channel, channels_of
from secfed.deploy.notification.message import Event, Fact
from secfed.deploy.notification.notifier import LOOK_S, Notifier
from secfed.deploy.notification.outbox import OUTBOX_FILE, Outbox, Seen
from secfed.deploy.pki.certificate_checks import Expiry, Urgency
from secfed.deploy.policy.absence import Absence
from secfed.errors import SecfedError

log = logging.getLogger("secfed.notification")

_UNREADABLE: Final = (SecfedError, OSError, ValueError, TypeError, KeyError)  # half written, or damaged
_ABSENT: Final = (Absence.REFUSED, Absence.FAILED)


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
        self._budgets = BudgetWatch(site, now)

    def look(self) -> Seen:
        """Everything that holds now."""
        status, seen = self._board.snapshot(), Seen()
        parts: tuple[Callable[[], Seen], ...] = (
            self._held,
            lambda: self._absent(status),
            self._budgets.look,
            self._policy,
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
        name, _, digest = study.rpartition("-")
        facts = {"study": name, "digest": digest}
        over = [f"{other}/{study}/" for other in _ABSENT]
        if state not in _ABSENT:
            return Seen({}, over)
        if state == Absence.REFUSED:  # its words are the policy's, which the study centre reads, too
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

    def _policy(self) -> Seen:
        """Its words stay here: they name a path, and quote the file."""
        policy = self._site.policy
        try:
            policy.load()
            stays = "the last valid one stays in force" if policy.trouble else ""
        except SecfedError:
            stays = "no study may run"
        if not stays:
            return Seen({}, ("policy",))
        event = Event(
            "policy.invalid",
            "policy.toml",
            f"policy.toml is not valid, or cannot be read: {stays}",
            "secfed agent status and secfed site check say what is wrong with it",
            {},
        )
        return Seen({"policy": event}, ("policy",))

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
