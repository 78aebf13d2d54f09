"""What the agent and the command line write into the site's decision log, and when they go on without it.

What a study needs before it runs is recorded first, or it does not run: roster, policy, every decision that
holds, and that it was begun. What was refused stays refused whether or not it can be recorded; the log counts
what it lacks as soon as it can be written again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from secfed.crypto.identity import Identity, Roster
from secfed.crypto.refusals import Refusal
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import STUDY_ID, SiteFolder
from secfed.deploy.pki import key_files
from secfed.errors import BudgetExceeded, PolicyRefused, ProtocolError, SecfedError
from secfed.records.decision_log import Decide, DecisionLog
from secfed.records.decision_state import (
    ALARM,
    BUDGET,
    MISSED,
    REFUSAL,
    ByPerson,
    Place,
    Repeats,
    alarm_facts,
    is_told,
    refusal_facts,
    where,
)
from secfed.records.hash_chain import canonical_json
from secfed.runs.run_folder import DECISIONS_FILE, MODEL_FILE, study_folder

if TYPE_CHECKING:  # they bring torch, for which nobody who approves a study should wait
    from secfed.algorithms.framework.base import Algorithm
    from secfed.records.transcript import Complaint
    from secfed.site.containment import Failure
    from secfed.site.terms import Terms
    from secfed.study.study import Study
    from secfed.wire.frames import Notice, Step, Task

log = logging.getLogger("secfed.agent")


class SiteDecisions:
    """The decisions of one site, on their way into its decision log."""

    def __init__(self, site: SiteFolder, identity: Identity, now: Callable[[], datetime] = utc_now) -> None:
        self._site = site
        self._log = DecisionLog(
            site.state / DECISIONS_FILE, identity, clock=lambda: now().timestamp(), lock_timeout_s=10.0
        )
        self._repeats = Repeats()
        self._missed = 0  # entries that could not be written
        self._failing = False  # the last try failed, and the log says so

    def looked(self, roster: Roster | None = None, *, policy_too: bool = True) -> None:
        """Record the policy, persons' decisions and the pinned roster, as far as they are new.

        Only the agent knows which policy is in force: while the file is not valid, it is an earlier one.
        """
        digest = roster.digest.hex() if roster is not None else ""
        policy = self._site.policy.sha256() if policy_too else ""
        persons = [
            ByPerson(
                item.digest,
                item.name,
                item.state is ApprovalState.APPROVED,
                int(item.since.timestamp()),
                item.by,
                item.subjects,
            )
            for item in Approvals(self._site.approvals_path).decided()
        ]
        self._note(lambda state, _now_s: state.site(digest, policy, persons))

    def permits(self, study: Study, roster: Roster) -> None:
        """A study may work now: record that, and under what, before it does."""
        self.looked(roster)
        digest = study.digest().hex()
        self._note(lambda state, now_s: state.accepts(digest, study.name, now_s))

    def declines(self, study: str, error: SecfedError, roster: Roster | None = None) -> None:
        """A study is not served. Recorded is what somebody decided, and neither a pause nor a failure."""
        named = STUDY_ID.fullmatch(study)
        if named is not None and isinstance(error, PolicyRefused) and error.keys:
            name, digest, keys = named[1], named[2], error.keys
            self._go_on(lambda: self.looked(roster))  # the policy that refused it
            self._go_on(
                lambda: self._note(lambda known, now_s: known.refuses(digest, name, keys, now_s)), of=1
            )

    def refuses(self, terms: Terms, frame: Task | Step | Notice, error: SecfedError) -> None:
        """A message of a running study is refused."""
        refusal = Refusal.of(error)
        study, place = terms.study, _place(terms.algorithm, terms.study.rounds, frame)
        if refusal is not None or isinstance(error, ProtocolError):
            kind, facts = REFUSAL, refusal_facts(refusal, error, place)
        elif isinstance(error, BudgetExceeded):
            kind, facts = BUDGET, where(place)
        else:
            self.declines(terms.study_id, error)
            return
        self._count(study, kind, facts, hashlib.sha256(frame.encode()).digest())

    def alarms(self, study: Study, failure: Failure) -> None:
        """Local work of an exchange failed, and added nothing."""
        facts = alarm_facts(failure.fields, failure.kind, (failure.round, failure.exchange, 0))
        self._count(study, ALARM, facts, hashlib.sha256(str(failure).encode()).digest())

    def complains(self, study: Study, complaint: Complaint) -> None:
        """Envelopes of other hospitals cannot be used: the one refusal that says whose."""
        refusal, whose = Refusal.ENVELOPE_SEALED, ", ".join(complaint.of)
        facts = {"number": refusal.number, "text": f"{refusal.text} ({whose})", **where(complaint.place)}
        self._count(study, REFUSAL, facts, canonical_json(complaint.to_body()))

    def _count(self, study: Study, kind: str, facts: Mapping[str, Any], what: bytes) -> None:
        """Count what happened again, and record the counts that say something."""
        digest, number = study.digest().hex(), int(facts.get("number", 0))

        def record() -> None:
            before = self._log.state().count(digest, kind, number)
            count = self._repeats.again(digest, kind, number, what, before)
            if is_told(count):
                self._note(lambda state, now_s: state.stops(kind, digest, study.name, facts, count, now_s))

        self._go_on(record, of=1)

    def ends(self, study: str) -> None:
        """A study is over, as the aggregator says."""
        named = STUDY_ID.fullmatch(study)
        if named is not None:
            name, digest = named[1], named[2]
            with_model = (study_folder(self._site.state, study) / MODEL_FILE).exists()
            self._go_on(
                lambda: self._note(lambda known, _: known.ends(digest, name, with_model=with_model)), of=1
            )

    def _note(self, decide: Decide) -> None:
        """Write what follows, and what was missed before."""
        if self._missed:
            missed = self._missed
            self._log.note(lambda _state, _now_s: [(MISSED, {"entries": missed})])
            self._missed = 0
        self._log.note(decide)
        self._failing = False

    def _go_on(self, record: Callable[[], None], *, of: int = 0) -> None:
        """Record, or say once that it cannot be recorded."""
        try:
            record()
        except (SecfedError, OSError) as error:
            self._missed += of
            if not self._failing:  # once, not with every message for as long as the disk is full
                log.error("not in the decision log, and the agent goes on: %s", error)
            self._failing = True


def record_now(site: SiteFolder) -> bool:
    """Record what was just decided on the command line, if an agent ran here and no passphrase is needed.

    Otherwise (False) the agent records it, before any study works that it concerns.
    """
    if not site.state.is_dir():
        return False  # it is the agent's to make
    secret = None
    if key_files.is_encrypted(site.key_paths[0]) and (secret := key_files.passphrase_from_file()) is None:
        return False
    pinned = site.pinned_or_none()
    decisions = SiteDecisions(site, site.identity(secret))
    decisions.looked(None if pinned is None else pinned.roster, policy_too=False)
    return True


def _place(algorithm: Algorithm, rounds: int, frame: Task | Step | Notice) -> Place:
    """Where a frame belongs; the name of an exchange that the study does not have is not kept."""
    from secfed.wire.frames import Notice, Step

    if isinstance(frame, Notice):
        return 0, "", 0
    plan = algorithm.exchanges(frame.round) if 1 <= frame.round <= rounds + 1 else ()
    known = frame.exchange_index < len(plan)
    attempt = frame.attempt if isinstance(frame, Step) else 0
    return frame.round, plan[frame.exchange_index].name if known else "", attempt
