"""A site: turns tasks into summands, and steps of the protection into replies. Sans-I/O.

The site trains first (``local_work.py``) and runs the messages afterwards, so that an attempt's secrets live
seconds. It derives every layout from the study by itself; the server only names the exchange. One update is
computed per exchange, whatever happens to the attempts that carry it.
"""

from __future__ import annotations

from collections.abc import Callable

from secfed.algorithms.framework.base import ServerProgram, SiteProgram
from secfed.crypto.attempt import AttemptJournal, Entropy, SiteContribution, SiteLimits, SumRules
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import FinalModel, Result, Specification, peek_type
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import decode_as
from secfed.errors import Replay, SecfedError, WrongState
from secfed.protection.interface import SiteSession
from secfed.records.transcript import COMPLAINED, FOLLOWED, RELEASED, SUMMED, Complaint, SumRecord
from secfed.runs.final_model import open_final
from secfed.site.attempt_store import AttemptStore, Place
from secfed.site.local_work import LocalWork, Pending
from secfed.site.parts import Agreement, Draws, Member, Services, Standing
from secfed.site.privacy import SitePrivacy
from secfed.wire.frames import READY, Notice, Step, Task, decode
from secfed.wire.layout import Exchange, State, state_digest


class Site:
    """One hospital's side of one study; :func:`secfed.site.build.build_site` makes it from a study.

    Args:
        program: the local work, bound to this site's data.
        limits: what the site insists on.
        store: its memory; call :meth:`resume` once where that outlives a process.
        privacy: pays for the work; None for a study without differential privacy.

    Attributes:
        replica: the server program where sites hold the study's state (encrypted or closed sums).
        sums: how many sums it has taken.
    """

    replica: ServerProgram | None = None
    sums = 0

    def __init__(
        self,
        member: Member,
        agreement: Agreement,
        program: SiteProgram,
        *,
        limits: SiteLimits,
        draws: Draws,
        store: AttemptStore,
        services: Services,
        privacy: SitePrivacy | None = None,
    ) -> None:
        self._identity, self._roster = member.identity, member.roster
        self._study, self._algorithm = agreement.study, agreement.algorithm
        self._protection = agreement.protection
        self._limits, self._store, self._services, self.privacy = limits, store, services, privacy
        self._log = services.log
        self._attempt = -1
        self._session: SiteSession | None = None
        self._local = LocalWork(
            member.identity.name,
            agreement,
            program,
            draws=draws,
            store=store,
            services=services,
            privacy=privacy,
        )

    def resume(self) -> None:
        """Go on where a crash or a restart interrupted this site: read its memory again."""
        self._local.resume()
        self._rebuild()

    def _rebuild(self) -> None:
        self._attempt, self._session = -1, None
        if self._local.pending is not None:
            self._store.rebuild(self._answer, lambda: -1 if self._session is None else self._attempt)

    def close(self) -> None:
        """Stop what runs beside this process."""

    def rest(self) -> None:
        """Let go of the newest update and its attempt, since the round is over. For simulations."""
        self._session, self._local.pending = None, None

    def standing(self) -> Standing:
        """Where this site stands between two rounds. For simulations."""
        return Standing(self._local.stopped)

    def stand(self, at: Standing, state: State) -> None:  # noqa: ARG002 - of the replica, where there is one
        """Go on from :meth:`standing` and what the replica saved, in a new process. For simulations."""
        self._local.stopped = at.stopped

    def handle(self, frame: Buffer) -> Buffer:
        """Answer one frame.

        Raises:
            SecfedError: the frame is refused; the study can go on with the next exchange.
        """
        if self._store.is_behind:
            self._rebuild()
        return self._store.answer(frame, self._answer)

    def _answer(self, frame: Buffer) -> Buffer:
        decoded = decode(frame)
        if isinstance(decoded, Task):
            return self._work(decoded)
        return self._step(decoded) if isinstance(decoded, Step) else self._notice(decoded)

    def _work(self, task: Task) -> Buffer:
        broadcast = bytes(task.state)
        self._contribute(task, lambda _exchange: broadcast, state_digest(broadcast))
        return READY

    def _notice(self, notice: Notice) -> Buffer:
        if peek_type(notice.message) == FinalModel.TYPE:
            self._take_final(open_final(notice.message, self._roster, self._study))
            return READY
        raise WrongState("this study's protection has no messages outside an attempt")

    def _take_final(self, final: FinalModel) -> None:
        self._services.take_model(final)

    def _contribute(self, task: Task, broadcast: Callable[[Exchange], bytes], digest: bytes) -> None:
        if self._local.contribute(task, broadcast, digest):
            self._attempt, self._session = -1, None

    def _sum_rules(self, number: int, exchange: Exchange) -> SumRules:
        """What this site insists on about who is in the sum of an exchange."""
        planned = self._local.planned(number, exchange)
        parts = self._algorithm.contributors(number, exchange)
        return SumRules(
            roster=self._roster,
            limits=self._limits.of_exchange(len(planned)),
            planned=planned,
            contributors=tuple((frozenset(part), least) for part, least in parts),
        )

    def _step(self, step: Step) -> Buffer:
        pending = self._local.pending
        if pending is None or (step.round, step.exchange_index) != pending.here:
            raise WrongState("there is no local work for this round and exchange")
        if step.attempt < self._attempt:
            raise Replay(f"attempt {step.attempt} of round {step.round} is over")
        if step.attempt > self._attempt:
            # Only a specification that is accepted ends the attempt before it: the number alone is
            # not signed.
            signed = decode_as(Specification, step.message)
            if signed.attempt != step.attempt:
                raise Refusal.OTHER_EXCHANGE.refuse(f"attempt {step.attempt}")
            session, reply = self._begin(pending, step)
            self._attempt, self._session = step.attempt, session
            return reply
        if self._session is None:
            raise WrongState("there is no attempt to continue")
        reply = self._continue(self._session, step)
        if self._session.released is not None:
            # Recorded before the shares leave: a server that keeps the sum to itself leaves a trace here.
            self._log.append(
                RELEASED,
                {
                    "round": pending.round,
                    "exchange": pending.exchange.name,
                    "exchange_index": pending.exchange_index,
                    "attempt": self._attempt,
                    "survivors": list(self._session.released),
                    **self._witness(),
                },
            )
        if self._session.complaints:
            # Which of the two is at fault nobody can tell; the people here should know that they differ.
            complaint = Complaint(
                pending.round, pending.exchange.name, self._attempt, self._session.complaints
            )
            self._log.append(COMPLAINED, {**complaint.to_body(), "exchange_index": pending.exchange_index})
        result = self._session.result
        if result is not None:
            self._record(pending.here, pending.exchange, self._attempt, result)
            self._store.finish(pending.here)
        return reply

    def _begin(self, pending: Pending, step: Step) -> tuple[SiteSession, Buffer]:
        """Open an attempt with its specification."""
        store, number = self._store, step.attempt
        entropy = store.open(number)
        store.note(number, step.encode())
        contribution = self._contribution(pending, entropy, store.journal(number))
        session = self._protection.site(pending.exchange, contribution)
        try:
            reply = session.handle(step.message)
        except SecfedError:
            store.drop(lambda attempt: attempt == number)
            raise
        store.drop(lambda attempt: attempt < number)
        return session, reply

    def _continue(self, session: SiteSession, step: Step) -> Buffer:
        """One more message of the running attempt."""
        self._store.note(step.attempt, step.encode())
        try:
            return session.handle(step.message)
        except SecfedError:
            # The session is closed and its secrets are gone: on the disk, too.
            self._session = None
            self._store.drop(lambda attempt: attempt == step.attempt)
            raise

    def _record(self, here: Place, exchange: Exchange, attempt: int, result: Result) -> None:
        signed = result.spec_digest, result.survivors, result.totals_digest, result.signature
        record = SumRecord(here[0], exchange.name, attempt, *signed, here[1])
        left: dict[str, object] = {
            "layout": exchange.layout.digest.hex(),
            "fields": [item.name for item in exchange.layout.fields],
            **self._witness(),
        }
        kind = SUMMED if self._identity.name in result.survivors else FOLLOWED
        self._log.append(kind, {**record.to_body(), **left})

    def _witness(self) -> dict[str, object]:
        """A second witness of the ledger: an older copy of it lacks a head that is recorded here."""
        return {} if self.privacy is None else {"ledgers": self.privacy.heads()}

    def _contribution(self, pending: Pending, entropy: Entropy, journal: AttemptJournal) -> SiteContribution:
        rules = self._sum_rules(pending.round, pending.exchange)
        return SiteContribution(
            identity=self._identity,
            roster=rules.roster,
            study=self._study,
            round=pending.round,
            exchange=pending.exchange.name,
            exchange_index=pending.exchange_index,
            shape=pending.exchange.layout.shape,
            broadcast_digest=pending.broadcast_digest,
            source=self._local.source(pending),
            journal=journal,
            limits=rules.limits,
            privacy_applied=self.privacy is not None,
            planned=rules.planned,
            contributors=rules.contributors,
            entropy=entropy,
        )
