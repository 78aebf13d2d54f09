"""May this study run here? Everything that is checked before a study sees data, and before every exchange.

    settings -> study (own code as the policy permits) -> names, policy, approval, roster -> Admitted

A refusal is no error of the agent: a study is asked about again, as a person or the policy may decide anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Roster
from secfed.deploy.admission import kept_offers, near_twins, waiting
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.offered import check_limits
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.sections import DataSet
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.dp.accounting.budget import Budget
from secfed.errors import DataError, MalformedMessage, PolicyRefused
from secfed.site.lost_memory import asks_person
from secfed.site.terms import Terms
from secfed.storage.failpoints import failpoint
from secfed.study.limits import study_id
from secfed.study.study import Study


@dataclass(frozen=True)
class Granted:
    """What a policy gives a study."""

    dataset: str
    path: Path | None  # as the policy spells it
    limits: SiteLimits
    budgets: tuple[Budget, ...]
    gpu: bool
    max_delta_times_records: float

    @classmethod
    def by(cls, policy: Policy, data: DataSet) -> Self:
        """What a policy gives a study that uses this data set."""
        most = policy.privacy.max_delta_times_records
        budgets = policy.budgets(data.name)
        return cls(data.name, data.path, policy.limits(), budgets, policy.compute.gpu, most)

    def opens_like(self, other: Granted) -> bool:
        """Whether a study that was opened with the other one may go on; budgets are set while it is open."""
        return replace(self, budgets=()) == replace(other, budgets=())

    @property
    def digest(self) -> bytes:
        """Alike for all that a study is opened alike with: 32 bytes."""
        return hashlib.sha256(repr(replace(self, budgets=())).encode()).digest()


@dataclass(frozen=True)
class Admitted:
    """A study that may run here, and on what terms."""

    terms: Terms
    settings: str  # the text of the study
    data: DataSet
    data_path: Path | None  # None if the study names no path
    granted: Granted
    own_code: tuple[str, ...]
    max_frame_bytes: int


def admit(site: SiteFolder, roster: Roster, named: str, settings: bytes, now: datetime) -> Admitted:
    """Check a study that an aggregator offers.

    Raises:
        PolicyRefused: the site does not permit it, or a person has not approved it yet.
        ConfigError: settings that cannot be carried out, or a policy or approvals that cannot be read.
        MalformedMessage: settings that are not those of the study that was named.
    """
    policy = site.policy.load()
    text, study = read_study(policy, settings)
    if study_id(study) != named:
        raise MalformedMessage("the study's settings do not have the digest that its id names")
    data = policy.enforce(study, now, sites=len(roster.sites))
    terms = Terms.of(study, roster, site.name)
    check_limits(terms, roster, terms.limits(policy.limits()), site.name)
    # A person decides last: what the policy refuses anyway is not worth the question.
    approvals = Approvals(site.approvals_path)
    twins = near_twins.near_twins(site, terms, data, now)
    rules = [twin.rule(policy.studies) for twin in twins]
    if refusing := sorted({key for key, rule in rules if rule == "refuse"}):
        raise PolicyRefused(
            f"study {study.name!r} resembles an earlier one at this site, and is not permitted",
            remedy="ask this site; its agent's status names the studies that it has begun",
            keys=tuple(refusing),
        )
    asks = any(rule == "ask" for _, rule in rules)
    manual = policy.approve == "manual" or asks or asks_person(site.state)
    shown = near_twins.fingerprint(twins) if asks else ""

    def keep() -> None:
        near_twins.note(site.state, study.digest().hex(), twins)
        kept_offers.keep(site.state, terms)
        waiting.note(site.state, terms, data)
        failpoint("agent: after an offer is kept")

    approvals.require(
        study.name,
        study.digest(),
        now,
        manual=manual,
        near_twins=shown,
        persons=policy.approvers,
        keep=keep,
    )
    waiting.forget(site.state, study.digest().hex())
    if not manual:  # or `secfed agent status` could not name it, and nobody refuse it by eight digits
        approvals.record(study.name, study.digest(), now)
    return Admitted(
        terms=terms,
        settings=text,
        data=data,
        data_path=data_file(site, study, data),
        granted=Granted.by(policy, data),
        own_code=tuple(sorted(policy.own_code)),
        max_frame_bytes=frame_caps(terms, roster).request_bytes,
    )


def read_study(policy: Policy, settings: bytes) -> tuple[str, Study]:
    """A study's text, and the study, as this policy lets it be read."""
    try:
        text = settings.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("the study's settings are not text") from None
    return text, Study.parse(text, own_code=policy.own_code)


def still_permitted(
    site: SiteFolder, study: Study, sites: int, now: datetime, *, at_any_hour: bool = False
) -> Granted:
    """Check a study again, before new work: hours pass, and the policy's file and approvals change.

    With ``at_any_hour`` hours do not count: what was begun within them is finished.
    """
    policy = site.policy.load()
    if at_any_hour:
        policy = replace(policy, hours=())
    data = policy.enforce(study, now, sites=sites)
    manual = policy.approve == "manual" or asks_person(site.state)
    approvals = Approvals(site.approvals_path)
    approvals.require(study.name, study.digest(), now, manual=manual, persons=policy.approvers)
    return Granted.by(policy, data)


def data_file(site: SiteFolder, study: Study, data: DataSet) -> Path | None:
    """Where a study's data set is on this machine; None if the study names no path."""
    if data.path is None or not hasattr(study.data, "path"):
        return None
    path = data.path if data.path.is_absolute() else site.folder / data.path
    if not path.exists():
        # The path itself is nobody else's business; this error's text stays at the site.
        raise DataError(
            f"{path}: the data set {data.name!r} is not there", remedy="check data.path in policy.toml"
        )
    return path.resolve()


def frame_caps(terms: Terms, roster: Roster) -> FrameCaps:
    """How long a study's frames can be."""
    sites = len(roster.sites)
    return FrameCaps.of(terms.algorithm, terms.study.rounds, sites, terms.protection)
