"""The state of a site's folder, one line per question, without a passphrase and without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.pki import certificate_checks, key_files
from secfed.deploy.pki.certificate_checks import Expiry, Urgency
from secfed.deploy.policy.policy import Policy
from secfed.errors import SecfedError
from secfed.site.lost_memory import asks_person, check_ledger, warning
from secfed.storage import private_files


class Level(StrEnum):
    """How good the answer is."""

    OK = "ok"
    SOON = "soon"  # works today; an administrator has to act before a date
    BAD = "bad"  # the agent cannot work like this


@dataclass(frozen=True)
class StatusItem:
    """One question about the folder."""

    subject: str
    level: Level
    text: str
    remedy: str = ""


def site_status(site: SiteFolder, now: datetime) -> tuple[StatusItem, ...]:
    """Everything that an administrator should know about this folder."""
    questions: dict[str, Callable[[], list[StatusItem]]] = {
        "keys": lambda: [_keys(site)],
        "certificate": lambda: [_certificate(site, now)],
        "CA": lambda: [_ca(site, now)],
        "roster": lambda: [_roster(site)],
        "policy": lambda: [_policy(site)],
        "memory": lambda: _memory(site),
        "payments": lambda: _spent_for_nothing(site),
    }
    found = []
    for subject, question in questions.items():
        try:
            found += question()
        except SecfedError as error:
            found.append(StatusItem(subject, Level.BAD, error.message, error.remedy))
    return tuple(found)


def _keys(site: SiteFolder) -> StatusItem:
    site.request()  # its signature shows that nobody exchanged the public keys
    for path in site.key_paths:
        private_files.check_private(path)
    readable = not any(map(key_files.is_encrypted, site.key_paths))  # else only site check can look into them
    if readable:
        site.identity(None)
    certificate = site.tls.certificate()
    if certificate is not None and (readable or not site.tls.key_paths):
        site.tls.key_in_use(certificate, None)
    return StatusItem("keys", Level.OK, f"site {site.name}, {site.request().fingerprint}")


def _certificate(site: SiteFolder, now: datetime) -> StatusItem:
    certificate, joined = site.tls.certificate(), site.consortium()
    if certificate is None or joined is None:
        remedy = f"give {site.request_path} to the study centre, then: secfed site join REPLY"
        return StatusItem("certificate", Level.BAD, "none yet", remedy)
    name, ca, aggregator = joined
    expiry = Expiry.of(certificate, now)
    if expiry.urgency is not Urgency.EXPIRED:
        certificate_checks.check_issued(certificate, ca, now)
    level, remedy = _renewal(expiry, f"secfed site renew, then give {site.request_path} to the study centre")
    return StatusItem("certificate", level, f"{expiry.describe()}, {name}, {aggregator.address}", remedy)


def _ca(site: SiteFolder, now: datetime) -> StatusItem:
    joined = site.consortium()
    if joined is None:
        return StatusItem("CA", Level.BAD, "none yet", "secfed site join REPLY")
    expiry = Expiry.of(joined[1], now)
    level, remedy = _renewal(expiry, "ask the study centre to found a new consortium")
    return StatusItem("CA", level, expiry.describe(), remedy)


def _roster(site: SiteFolder) -> StatusItem:
    roster, pinned = site.roster(), site.pinned()
    site.check_roster(roster)
    since = "" if pinned is None else f" since {pinned.since:%Y-%m-%d}"
    sites = f"{len(roster.sites)} site{'s' if len(roster.sites) != 1 else ''}"
    return StatusItem("roster", Level.OK, f"{sites}, pinned{since}, digest {roster.digest.hex()[:16]}")


def _policy(site: SiteFolder) -> StatusItem:
    policy = Policy.load(site.policy_path)
    permitted = bool(policy.algorithms and policy.models and policy.data)
    if not permitted or not (policy.studies.names or policy.studies.digests):
        remedy = f"name studies, algorithms, models and data in {site.policy_path}"
        return StatusItem("policy", Level.SOON, "valid; it permits no study yet", remedy)
    for item in policy.data:
        if item.path is not None and not (site.folder / item.path).exists():  # as admission.py
            text = f"data set {item.name!r}: its file is not there"
            return StatusItem("policy", Level.BAD, text, f"check {item.path}")
    by_person = policy.approve == "manual" or asks_person(site.state)
    how = "a person approves each study" if by_person else "studies are approved by the file"
    return StatusItem("policy", Level.OK, f"valid, {how}")


def _memory(site: SiteFolder) -> list[StatusItem]:
    """Nothing of a site that lost none."""
    if not (text := warning(site.state)):
        return []
    for item in Policy.load(site.policy_path).data:
        check_ledger(site.state, item.name)
    remedy = "see docs/operators.md, back up and restore"
    return [StatusItem("memory", Level.SOON, text, remedy)] if asks_person(site.state) else []


def _spent_for_nothing(site: SiteFolder) -> list[StatusItem]:
    from secfed.deploy.enrolment.site_payments import wasted  # reads all ledgers and transcripts

    remedy = "it stays spent; ask the study centre why these rounds were given up"
    return [
        StatusItem("payments", Level.SOON, f"study {study}: {shown}", remedy) for study, shown in wasted(site)
    ]


def _renewal(expiry: Expiry, remedy: str) -> tuple[Level, str]:
    levels = {Urgency.FINE: Level.OK, Urgency.SOON: Level.SOON, Urgency.EXPIRED: Level.BAD}
    level = levels[expiry.urgency]
    return level, "" if level is Level.OK else remedy
