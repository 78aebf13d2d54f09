"""`secfed site check STUDY.toml`: the study as this hospital's agent would meet it, without a trace of it.

The pieces are the agent's own: policy, derivation, and the training process, which loads the data as before
the first round. No approval is noted, no ledger opened, no log begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from secfed.audit.privacy.phrases import number_down, number_up
from secfed.crypto.identity import Roster
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.admission import data_file, frame_caps, read_study
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.offered import check_limits
from secfed.deploy.agent.control import is_paused
from secfed.deploy.agent.full_disk import room_bytes
from secfed.deploy.agent.training import TrainingProcess
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.check import Violation
from secfed.deploy.policy.policy import Policy
from secfed.deploy.policy.sections import DataSet
from secfed.deploy.preflight.checks import PreflightCheck, failed, failed_with, passed, skipped
from secfed.deploy.preflight.folder_check import LEAST_FREE_BYTES, disk_check
from secfed.dp.accounting.budget import Budget, Spent, Standing, standing
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.heads import lacking
from secfed.dp.ledger.ledger import LEDGER, has_paid, once_over, spent_of
from secfed.engine.wire import Job
from secfed.errors import BudgetExceeded, PolicyRefused, RoundAborted, SecfedError, TranscriptError
from secfed.pipeline.noised_algorithm import noise_payments
from secfed.records.chain_file import verify_whole_lines
from secfed.records.clock import refuse_ahead
from secfed.records.hash_chain import Entry
from secfed.runs.run_folder import ledger_file
from secfed.site.lost_memory import asks_person
from secfed.site.runtime import ledgers_but, recorded_heads
from secfed.site.terms import Terms
from secfed.study.limits import study_id
from secfed.study.warm_start import find_initial_model


class StudyCheck:
    """One study file against one site."""

    def __init__(self, site: SiteFolder, text: bytes, now: datetime) -> None:
        self._site, self._now = site, now
        self._policy = Policy.load(site.policy_path)
        self._text, self._study = read_study(self._policy, text)
        self.id = study_id(self._study)
        self._whole: tuple[Event, ...] | None = None  # all that this site would pay; once the data is loaded

    def checks(self) -> Iterator[PreflightCheck]:
        """One after the other, since loading the data may take long."""
        study = self._study
        begins = study.model.start_sha256
        model = f"; begins with model {begins[:16]}" if begins else ""
        yield passed(
            "study", f"{study.name}, {study.rounds} rounds, digest {study.digest().hex()[:16]}{model}"
        )
        try:
            roster = self._site.roster()
        except SecfedError:
            roster = None  # has a line of its own
        yield from self._permission(roster)
        yield from self._decision()
        terms, found = self._terms(roster)
        yield found
        broken = [item for item in self._violations(roster) if not item.temporary]
        data = self._policy.data_set(study)
        if broken or terms is None or data is None:
            yield skipped("data", "the study cannot run here as it is")
        else:
            yield self._load(data, terms)
            if study.model.start is not None and not study.protection.traits.aggregator_reads_sums:
                yield self._start(terms)
        if terms is not None and data is not None:
            yield from self._near_twins(terms, data)
        if terms is not None and roster is not None:
            yield self._space(terms, roster)
        if data is not None:
            yield from self._budgets(data)

    def _violations(self, roster: Roster | None) -> list[Violation]:
        return self._policy.check(self._study, self._now, sites=None if roster is None else len(roster.sites))

    def _permission(self, roster: Roster | None) -> Iterator[PreflightCheck]:
        found = self._violations(roster)
        for item in found:
            if item.temporary:  # the study waits, and nothing is wrong
                remedy = f"wait, or change [[hours]]: {self._site.policy_path}"
                yield passed("permission", str(item), remedy)
            else:
                remedy = f"change the study, or the policy: {self._site.policy_path}"
                yield failed("permission", str(item), remedy, PolicyRefused)
        if not found:
            yield passed("permission", "the policy permits every setting of this study")

    def _decision(self) -> Iterator[PreflightCheck]:
        """What a person has decided; nothing is noted, as the agent would."""
        study, digest = self._study, self._study.digest()
        if is_paused(self._site.state):
            yield failed("pause", "this site has paused its agent", "secfed agent resume", PolicyRefused)
        try:
            approvals = Approvals(self._site.approvals_path)
            state = approvals.state(digest)
            refused = study.name in {item.name for item in approvals.refused_names()}
            by_policy = self._policy.approve == "automatic" and not asks_person(self._site.state)
        except SecfedError as error:
            yield failed_with("approval", error)
            return
        approve = f"secfed agent approve {digest.hex()[:16]}"
        if state is ApprovalState.APPROVED and approvals.persons(digest) < self._policy.approvers:
            yield failed("approval", "one person approved it, and two have to", approve, PolicyRefused)
        elif state is ApprovalState.APPROVED:
            yield passed("approval", "exactly this study was approved here")
        elif refused or state is ApprovalState.WITHDRAWN:
            yield failed("approval", "a person refused it at this site", approve, PolicyRefused)
        elif by_policy:
            yield passed("approval", "the policy alone decides")
        elif state is ApprovalState.HELD:
            yield failed("approval", "waits for the decision of a person here", approve, PolicyRefused)
        else:
            yield passed("approval", "it has not asked yet, and will wait for a person", f"then: {approve}")

    def _near_twins(self, terms: Terms, data: DataSet) -> Iterator[PreflightCheck]:
        approve = f"secfed agent approve {terms.study.digest().hex()[:16]} --near-twin"
        for twin in near_twins.near_twins(self._site, terms, data, self._now):
            _, rule = twin.rule(self._policy.studies)
            if rule == "refuse":
                yield failed("near twin", twin.text, f"see {self._site.policy_path}", PolicyRefused)
            else:
                remedy = f"a person decides: {approve}" if rule == "ask" else near_twins.WARNING
                yield passed("near twin", twin.text, remedy)

    def _terms(self, roster: Roster | None) -> tuple[Terms | None, PreflightCheck]:
        if roster is None:
            return None, skipped("sites", "no roster is pinned")
        try:
            terms = Terms.of(self._study, roster, self._site.name)
            check_limits(terms, roster, terms.limits(self._policy.limits()), self._site.name)
        except SecfedError as error:
            return None, failed_with("sites", error)
        return terms, passed("sites", f"{len(terms.sites)}, all in the pinned roster, this one among them")

    def _start(self, terms: Terms) -> PreflightCheck:
        """Under encrypted protection the model that the study begins with has to be at home."""
        try:
            find_initial_model(terms.study, terms.algorithm, self._site.state)
        except SecfedError as error:
            return failed_with("start", error)
        return passed("start", "the model that the study begins with is here")

    def _load(self, data: DataSet, terms: Terms) -> PreflightCheck:
        """Let a training process load the data, as the agent does before the first round."""
        started = time.monotonic()
        try:
            path = data_file(self._site, self._study, data)
            job = Job(
                site=self._site.name,
                settings=self._text,
                own_code=tuple(sorted(self._policy.own_code)),
                data_path=None if path is None else str(path),
                study=self.id,
                max_delta_times_records=self._policy.privacy.max_delta_times_records,
                strict=True,  # the hospital's own people are told which value does not fit
            )
            process = TrainingProcess(
                job,
                gpu=self._policy.compute.gpu,
                log_path=Path(os.devnull),  # that of the agent is the running training's
                local_key=None,
                ledger=None,
                stored=dict,
                user=self._site.training_user(),
            )
            with closing(process):
                process.start()
                noise = noise_payments(terms.algorithm, self._study.rounds, self._site.name, terms.sites)
                self._whole = (*noise, *process.planned)
        except RoundAborted as error:
            message = error.message.partition(";")[0]
            return failed("data", message, "most often too little memory: see the kernel's log", RoundAborted)
        except SecfedError as error:
            return failed_with("data", error)
        took_s = time.monotonic() - started
        return passed("data", f"{data.name}: loaded and checked as for training, {took_s:.0f} s")

    def _space(self, terms: Terms, roster: Roster) -> PreflightCheck:
        try:
            caps = frame_caps(terms, roster)
        except SecfedError as error:
            return failed_with("room for it", error)
        return disk_check(self._site, LEAST_FREE_BYTES + room_bytes(caps), "room for it")

    def _budgets(self, data: DataSet) -> Iterator[PreflightCheck]:
        """Where the ledger stands. It is read, never opened: opening would record the budgets in it."""
        settings = self._study.privacy
        if settings is None:
            yield passed("budget", "the study has no privacy, and pays nothing")
            return
        path = ledger_file(self._site.state, data.name)
        try:
            entries: tuple[Entry, ...] = ()
            if path.is_file():
                key = self._site.request().identity_key
                entries = verify_whole_lines(path, key, LEDGER, owner=self._site.name)
            hashes = {entry.hash.hex() for entry in entries}
            missing = [one for one in recorded_heads(self._site.state, data.name) if one.head not in hashes]
            remedy = "see docs/operators.md, back up and restore"
            if missing:
                raise TranscriptError(f"{path}: {lacking(missing)}", remedy=remedy)
            refuse_ahead(path, entries, int(self._now.timestamp()), remedy)
            spent, counts = spent_of(entries), accountant(settings.accountant)
            after = None if self._whole is None else self._once_over(data, entries, self._whole)
        except SecfedError as error:
            yield failed_with("budget", error)
            return
        unlimited = Budget(None, settings.delta, protects=settings.budgeted)
        for budget in self._policy.budgets(data.name) or (unlimited,):
            now_s = int(self._now.timestamp())
            so_far = standing(budget, spent, now_s, counts).epsilon
            whole = None if after is None else standing(budget, after, now_s, counts)
            yield budget_check(data.name, budget, so_far, settings.epsilon, settings.delta, whole)

    def _once_over(
        self, data: DataSet, entries: Sequence[Entry], whole: Iterable[Event]
    ) -> list[Spent] | None:
        """What will be spent when the study is over; None if it has paid here, be it for another data set."""
        key = self._site.request().identity_key
        others = ledgers_but(self._site.state, data.name, key, self._site.name)
        if any(has_paid(paid, self.id) for _, paid in others):
            return None
        return once_over(entries, self.id, whole, int(self._now.timestamp()))


def budget_check(
    data: str, budget: Budget, spent: float, epsilon: float, delta: float, whole: Standing | None = None
) -> PreflightCheck:
    """What a study plans to spend, and what is left for it after ``spent``, an epsilon.

    ``whole`` is where the budget would stand when a study that has paid nothing yet is over; one that it does
    not cover is refused. Where that is not known, a budget that is spent is a failure, and one that the sum
    of both epsilons would exceed a warning: two studies cost less together.
    """
    plan = f"the study spends at most epsilon {epsilon:g} at delta {delta:g}"
    name = f"{data}: {budget.describe()}"
    if budget.epsilon is None:
        return passed("budget", f"{name}; {plan}")
    left = max(0.0, budget.epsilon - spent)
    detail = f"{name}: {number_up(spent)} spent, {number_down(left)} left; {plan}"
    if left <= 0.0:
        remedy = "wait until the period is over, or raise the budget in policy.toml"
        return failed("budget", detail, remedy, BudgetExceeded)
    if whole is not None:
        detail += f"; {number_up(whole.epsilon)} when it is over"
        remedy = "raise the budget in policy.toml, or lower the study's privacy.epsilon"
        return (
            failed("budget", detail, remedy, BudgetExceeded) if whole.exceeded else passed("budget", detail)
        )
    may_end = "may not last to the end of the study, unless part of it is paid: watch agent status"
    return passed("budget", detail, may_end if epsilon > left else "")
