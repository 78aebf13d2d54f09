"""A site: turns tasks into summands, and steps of the protection into replies. Sans-I/O.

The site trains first (``local_work.py``) and runs the messages afterwards, so that an attempt's secrets live
seconds. It derives every layout from the study by itself; the server only names the exchange. One update is
computed per exchange, whatever happens to the attempts that carry it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from secfed.algorithms.framework.base import Algorithm, ServerProgram, SiteProgram, contributors
from secfed.config.sections import BROADCAST_BOUND
from secfed.crypto.attempt import AttemptJournal, Entropy, SiteContribution, SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import VectorSource
from secfed.crypto.messages import FinalModel, Result, Specification, peek_type
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import decode_as
from secfed.errors import Replay, SecfedError, WrongState
from secfed.protection.interface import Protection, SiteSession
from secfed.records.transcript import COMPLAINED, FOLLOWED, RELEASED, SUMMED, Complaint, Log, SumRecord
from secfed.runs.final_model import open_final
from secfed.site.containment import Alarm
from secfed.site.local_work import LocalWork, Pending
from secfed.wire.frames import READY, Notice, Step, Task, decode
from secfed.wire.layout import Exchange, Rounding, state_digest

if TYPE_CHECKING:
    from secfed.site.attempt_store import AttemptStore
    from secfed.site.privacy import SitePrivacy


class Site:
    """One hospital's side of one study.

    Args:
        identity: the site's signing key.
        roster: the roster its administrator pinned.
        study: study id.
        algorithm: the study's plan; layouts come from here.
        program: the local work, bound to this site's data.
        protection: the study's protection.
        journal: durable memory of attempts.
        log: the site's transcript.
        rounding: (round, exchange index) -> random words for stochastic rounding: the same for every attempt
            of an exchange, from a key that is secret and this site's own (outside simulation).
        limits: what the site insists on.
        privacy: pays for the work, and adds noise; None for a study without differential privacy.
        memory: makes the site survive a crash; None in simulations. Call :meth:`resume` once.
        sites: the study's sites in roster order; None for the whole roster.
        take_model: given the finished model, checked; by default nothing is done with it.
        begins_with: digest of the model that the first broadcast must hold; None where the seed decides.
        broadcast_bound: largest magnitude of a number in a broadcast; the study's.
        alarm: told where local work failed and added zeros. Security: what it says depends on records, and
            must stay at this site.
        only_values: contain failures of values only, and let defects of the program through; simulation only.

    Attributes:
        replica: the server program that this site replays; None where the aggregator runs it.
        sums: how many sums the replica has taken.
    """

    replica: ServerProgram | None = None
    sums: int = 0

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        study: str,
        algorithm: Algorithm,
        program: SiteProgram,
        protection: Protection,
        journal: AttemptJournal,
        log: Log,
        rounding: Callable[[int, int], Rounding],
        limits: SiteLimits,
        privacy: SitePrivacy | None = None,
        memory: AttemptStore | None = None,
        sites: tuple[str, ...] | None = None,
        take_model: Callable[[FinalModel], None] = lambda _final: None,
        begins_with: bytes | None = None,
        broadcast_bound: float = BROADCAST_BOUND,
        alarm: Alarm = lambda _failure: None,
        only_values: bool = False,
    ) -> None:
        self._identity, self._roster, self._study = identity, roster, study
        self._algorithm, self._protection, self._privacy = algorithm, protection, privacy
        self._journal, self._log, self._rounding, self._limits = journal, log, rounding, limits
        self._attempt = -1
        self._session: SiteSession | None = None
        self._memory, self._take_model = memory, take_model
        self._local = LocalWork(
            site=identity.name,
            study=study,
            algorithm=algorithm,
            program=program,
            log=log,
            privacy=privacy,
            memory=memory,
            sites=roster.sites if sites is None else sites,
            begins_with=begins_with,
            broadcast_bound=broadcast_bound,
            alarm=alarm,
            only_values=only_values,
        )

    def resume(self) -> None:
        """Go on where a crash or a restart interrupted this site: read its memory again.

        Raises:
            ConfigError, TranscriptError: the memory cannot be read, or was changed.
        """
        memory = self._memory
        if memory is None:
            return
        self._local.resume()
        if self._local.pending is not None:
            memory.rebuild(self._answer, lambda: -1 if self._session is None else self._attempt)

    def close(self) -> None:
        """Stop what runs beside this process."""

    def handle(self, frame: Buffer) -> Buffer:
        """Answer one frame.

        Raises:
            SecfedError: the frame is refused; the study can go on with the next exchange.
        """
        return self._answer(frame) if self._memory is None else self._memory.answer(frame, self._answer)

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
        """Take the finished model, which the aggregator signed."""
        self._take_model(final)

    def _contribute(self, task: Task, broadcast: Callable[[Exchange], bytes], digest: bytes) -> None:
        """Do the local work of one exchange, once."""
        if self._local.contribute(task, broadcast, digest):
            self._attempt, self._session = -1, None

    def _contributors(self, number: int, exchange: Exchange) -> tuple[tuple[frozenset[str], int], ...]:
        """For each part of the sum to which some sites add only zeros, who may add more, and the fewest."""
        parts = contributors(self._algorithm, number, exchange)
        return tuple((frozenset(part), least) for part, least in parts)

    def _step(self, step: Step) -> Buffer:
        pending = self._local.pending
        if pending is None or (step.round, step.exchange_index) != (pending.round, pending.exchange_index):
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
            self._log.append(COMPLAINED, complaint.to_body())
        result = self._session.result
        if result is not None:
            self._record(pending.round, pending.exchange, self._attempt, result)
            if self._memory is not None:
                self._memory.finish((pending.round, pending.exchange_index))
        return reply

    def _begin(self, pending: Pending, step: Step) -> tuple[SiteSession, Buffer]:
        """Open an attempt with its specification."""
        memory, number = self._memory, step.attempt
        if memory is None:
            session = self._open(pending)
            return session, session.handle(step.message)
        entropy = memory.open(number)
        memory.note(number, step.encode())
        session = self._open(pending, entropy, memory.journal(number))
        try:
            reply = session.handle(step.message)
        except SecfedError:
            memory.drop(lambda attempt: attempt == number)
            raise
        memory.drop(lambda attempt: attempt < number)
        return session, reply

    def _continue(self, session: SiteSession, step: Step) -> Buffer:
        """One more message of the running attempt."""
        memory, number = self._memory, step.attempt
        if memory is None:
            return session.handle(step.message)
        memory.note(number, step.encode())
        try:
            return session.handle(step.message)
        except SecfedError:
            # The session is closed and its secrets are gone: on the disk, too.
            self._session = None
            memory.drop(lambda attempt: attempt == number)
            raise

    def _record(self, number: int, exchange: Exchange, attempt: int, result: Result) -> None:
        record = SumRecord(
            number,
            exchange.name,
            attempt,
            result.spec_digest,
            result.survivors,
            result.totals_digest,
            result.signature,
        )
        left: dict[str, object] = {
            "layout": exchange.layout.digest.hex(),
            "fields": [item.name for item in exchange.layout.fields],
            **self._witness(),
        }
        kind = SUMMED if self._identity.name in result.survivors else FOLLOWED
        self._log.append(kind, {**record.to_body(), **left})

    def _witness(self) -> dict[str, object]:
        """A second witness of the ledger: an older copy of it lacks a head that is recorded here."""
        return {} if self._privacy is None else {"ledgers": self._privacy.heads()}

    def _open(
        self, pending: Pending, entropy: Entropy | None = None, journal: AttemptJournal | None = None
    ) -> SiteSession:
        """This site's half of a new attempt."""
        return self._protection.site(pending.exchange, self._contribution(pending, entropy, journal))

    def _contribution(
        self, pending: Pending, entropy: Entropy | None, journal: AttemptJournal | None
    ) -> SiteContribution:
        layout = pending.exchange.layout
        # A fresh reader with the same words and noise: every attempt carries the same integers.
        words = self._rounding(pending.round, pending.exchange_index)
        source: VectorSource = layout.encoder(pending.summands, words)
        noise = None if self._privacy is None else self._privacy.noise_of(pending.exchange)
        if noise is not None and pending.noise_key is not None:
            source = noise.noised(source, pending.noise_key)
        return SiteContribution(
            identity=self._identity,
            roster=self._roster,
            study=self._study,
            round=pending.round,
            exchange=pending.exchange.name,
            exchange_index=pending.exchange_index,
            shape=layout.shape,
            broadcast_digest=pending.broadcast_digest,
            source=source,
            journal=journal or self._journal,
            limits=self._limits,
            privacy_applied=self._privacy is not None,
            planned=self._local.planned(pending.round, pending.exchange),
            contributors=self._contributors(pending.round, pending.exchange),
            entropy=entropy or Entropy(),
        )
