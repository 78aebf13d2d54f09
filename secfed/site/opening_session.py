"""A site of a study whose sums the sites open: it holds the state that the aggregator must not see.

The aggregator cannot read totals, so every site opens each sum and replays the server program itself.
The program is deterministic; sites that took the same sums have byte-identical states, and say so by a
signed digest. A site that was away takes the sums it missed, in order, before it works on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from secfed.algorithms.framework.base import ServerProgram, SiteProgram
from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import AnySum, KeyDelivery, KeyRequest, StateView
from secfed.crypto.encrypted.study_keys import StudyKeys
from secfed.crypto.encrypted.sum_checks import ExpectedSum, check_signed, check_sum
from secfed.crypto.keystream import derive
from secfed.crypto.message_base import signed
from secfed.crypto.messages import DIGEST_BYTES, FinalModel, Specification, Upload, peek_type
from secfed.crypto.refusals import Refusal
from secfed.errors import (
    InconsistentView,
    MalformedMessage,
    RangeError,
    Replay,
    RoundAborted,
    SecfedError,
    WrongState,
)
from secfed.protection.interface import SiteSession
from secfed.protection.opened_at_sites import ExpectedState, OpenedAtSites
from secfed.site.encrypted_store import TAKING, UPLOADED, EncryptedStore, Replica, Settled
from secfed.site.local_work import Pending
from secfed.site.parts import Agreement, Member, Standing
from secfed.site.session import Site
from secfed.storage.failpoints import failpoint
from secfed.study.warm_start import initial_server
from secfed.wire.frames import READY, Notice, Step, Task, encode_state
from secfed.wire.layout import Exchange, State, state_digest


class OpeningSession(Site):
    """One hospital's side of one study under encrypted protection, or with closed sums."""

    replica: ServerProgram

    def __init__(self, member: Member, agreement: Agreement, program: SiteProgram, **own: Any) -> None:
        if not isinstance(agreement.protection, OpenedAtSites):
            raise WrongState("this session is for protections whose sums the sites open")
        self._opening = agreement.protection.at_site(lambda: self._keys.required)
        super().__init__(member, replace(agreement, protection=self._opening), program, **own)
        files = self._store.files
        kept = self._encrypted_store = None if files is None else EncryptedStore(files)
        self._keys = StudyKeys(
            self._identity,
            self._roster,
            self._study,
            agreement.sites,
            self._opening.holder,
            self._opening.form,
        )
        if kept is not None:
            self._keys.received, self._keys.new_seal_key = kept.keep_keys, kept.new_seal_key
        is_new = kept is None or kept.replica() is None
        self.replica = initial_server(self._algorithm, self._services.initial_model() if is_new else None)
        self.sums = 0
        self._last = (0, 0)  # round and exchange index of the newest sum taken
        self._taken = b""  # digest of the newest sum taken, as it arrived
        self._taking: Settled | None = None  # the newest sum whose opening was begun
        self._uploaded: Settled | None = None  # the specification that the newest upload was made for
        self._begun = b""  # digest of the specification of the running attempt

    def resume(self) -> None:
        """Go on where this site was interrupted; see :meth:`secfed.site.session.Site.resume`."""
        store = self._encrypted_store
        if store is not None:
            self._keys.restore(*store.keys())
            if (found := store.replica()) is not None:
                replica, state = found
                self.sums, self._last, self._taken = replica.sums, replica.last, replica.taken
                self.replica.load(state)
            self._taking, self._uploaded = store.settled(TAKING), store.settled(UPLOADED)
        super().resume()

    def standing(self) -> Standing:
        """See :meth:`secfed.site.session.Site.standing`."""
        return replace(super().standing(), sums=self.sums, last=self._last, keys=self._keys.keys)

    def stand(self, at: Standing, state: State) -> None:
        """See :meth:`secfed.site.session.Site.stand`."""
        super().stand(at, state)
        self._keys.restore(at.keys, None)
        self.sums, self._last = at.sums, at.last
        if at.sums:
            self.replica.load(state)

    def close(self) -> None:
        """Stop the worker processes."""
        self._opening.close()

    def _work(self, task: Task) -> Buffer:
        expected = ExpectedState.decode(task.state)
        tag = self._state_tag()
        if self.sums == expected.sums:
            if expected.digest not in (bytes(DIGEST_BYTES), tag):
                raise InconsistentView(
                    "this site's state differs from the other sites' after the same sums",
                    remedy="check that all sites run the same secfed and torch versions, and compare "
                    "transcripts; this site cannot go on with this study",
                )
            if (task.round, task.exchange_index) <= self._last:
                # It was away then. A second sum of the exchange would be of updates on a later state.
                raise Replay("the sum of this exchange, or of a later one, was taken before")
            self._contribute(task, partial(self._broadcast, task.round), tag)
        return self._view(tag)

    def _broadcast(self, round_number: int, exchange: Exchange) -> bytes:
        """What the aggregator would have sent if it could read the state."""
        return encode_state(self.replica.broadcast(round_number, exchange))

    def handle(self, frame: Buffer) -> Buffer:
        """Answer one frame; after a sum that could not be opened, nothing is answered any more."""
        if self._local.stopped:
            raise WrongState(
                "this site has stopped the study: a sum that the aggregator signed could not be opened",
                remedy="find out why before the study is started again under a new key",
            )
        return super().handle(frame)

    def _notice(self, notice: Notice) -> Buffer:
        kind = peek_type(notice.message)
        if kind == KeyRequest.TYPE:
            request = KeyRequest.decode(notice.message)
            return self._keys.pack(request) if request.hellos else self._keys.hello()
        if kind == KeyDelivery.TYPE:
            delivery, keys = KeyDelivery.decode(notice.message), self._keys.keys
            if self._encrypted_store is None or keys is None or keys.public_key != delivery.public_key:
                self._keys.unpack(delivery)
            return READY  # also when a crash came between keeping the keys and saying so
        if kind == self._opening.sum_type.TYPE:
            self._take_once(notice.message)
            return self._view(self._state_tag())
        return super()._notice(notice)

    def _take_final(self, final: FinalModel) -> None:  # noqa: ARG002 - what it is must not matter
        """Refuse it: this site has its own model, and an aggregator that cannot read sums has none.

        Not compared: taking the own model alone would let the aggregator test guesses of it, without limit.
        """
        raise Refusal.MODEL_MISMATCH.refuse("this site computes the model itself")

    def _begin(self, pending: Pending, step: Step) -> tuple[SiteSession, Buffer]:
        session, reply = super()._begin(pending, step)
        self._begun = Specification.decode(step.message).digest
        self._note_leaving((step.round, step.exchange_index), reply)
        return session, reply

    def _continue(self, session: SiteSession, step: Step) -> Buffer:
        reply = super()._continue(session, step)
        self._note_leaving((step.round, step.exchange_index), reply)
        return reply

    def _note_leaving(self, here: tuple[int, int], reply: Buffer) -> None:
        if peek_type(reply) == Upload.TYPE:
            self._note_upload(here, self._begun)

    def _note_upload(self, here: tuple[int, int], spec_digest: bytes) -> None:
        """The sum of this exchange must be of the specification that this site signed its upload for."""
        uploaded = Settled(here, spec_digest)
        if self._encrypted_store is not None and uploaded != self._uploaded:
            failpoint("site: before upload noted")
            self._encrypted_store.settle(UPLOADED, uploaded)
        self._uploaded = uploaded
        failpoint("site: after upload noted")

    def _take_once(self, message: Buffer) -> None:
        """Take a sum; the newest one may come again after a crash and is then taken already."""
        kept = self._encrypted_store
        if kept is None:
            self._take(self._opening.sum_type.decode(message))
            return
        arrived = hashlib.sha256(message).digest()
        if arrived != self._taken:
            self._take(self._opening.sum_type.decode(message))
            self._taken = arrived
            failpoint("site: before state noted")
            kept.keep_replica(Replica(self.sums, self._last, arrived), self.replica.save())
            failpoint("site: after state noted")
        self._store.finish(self._last)

    def _take(self, summed: AnySum) -> None:
        """Open one sum and replay the server step.

        Raises:
            SecfedError: it is not the aggregator's sum of this study, not the next, not one that this site's
                rules permit, or not the one whose opening was begun; or it is not of honest uploads, and
                the site has stopped.
        """
        spec, result = summed.spec, summed.result
        check_signed(summed, self._roster, self._study)
        here = (spec.round, spec.exchange_index)
        uploaded = self._uploaded
        if here <= self._last or (uploaded is not None and here < uploaded.here):
            raise InconsistentView("the sum was taken before, or this site has worked on a later one")
        exchange = self._exchange(*here)
        rules = self._sum_rules(spec.round, exchange)
        own = uploaded.digest if uploaded is not None and uploaded.here == here else None
        me, layout = self._identity.name, exchange.layout
        floor, view = self._opening.traits.least_cohort, self._signed_view(spec.digest)
        tag = self._state_tag()
        check_sum(summed, ExpectedSum(me, rules, exchange.name, layout.digest, tag, own, floor, view))
        self._begin_taking(Settled(here, hashlib.sha256(result.body()).digest()))
        with self._stopping_at_refusal(InconsistentView):
            totals = layout.decode(self._opening.opened(exchange, summed), result.survivors)
        with self._stopping_at_refusal(SecfedError):
            self.replica.absorb(spec.round, exchange, totals)
        self.sums, self._last = self.sums + 1, here
        self._record((spec.round, spec.exchange_index), exchange, spec.attempt, result)

    def _begin_taking(self, taking: Settled) -> None:
        """Settle which sum is the one of its exchange, before anything of it is opened.

        What fails from here on for this machine's sake, or is cut off by a crash, may be tried again with the
        same sum only: another one would be a second answer for the exchange.
        """
        before = self._taking
        if before is not None and taking.here <= before.here:
            if taking != before:
                raise InconsistentView("another sum of this exchange, or of a later one, was begun before")
            return
        if self._encrypted_store is not None:
            self._encrypted_store.settle(TAKING, taking)
        self._taking = taking
        failpoint("site: after sum noted")

    @contextmanager
    def _stopping_at_refusal(self, *refusals: type[SecfedError]) -> Iterator[None]:
        """Whether a chosen ciphertext is taken tells about a key of encryption: answer once, never again.

        An honest aggregator signs no malformed sum, and honest totals divide by no zero. So whatever goes
        wrong here is an answer, also where nobody thought of it; what this machine lacks is none.
        """
        answers: tuple[type[SecfedError], ...] = (MalformedMessage, RangeError, *refusals)
        try:
            yield
        except answers:
            self._local.stop()
            raise
        except (SecfedError, MemoryError):
            raise  # a worker process died, or there is no memory
        except Exception:  # noqa: BLE001 - any other one must not be told from a refusal, nor be repeatable
            self._local.stop()
            raise RoundAborted(
                "a sum that the aggregator signed is none that honest sites can have made",
                remedy="find out why before the study is started again under a new key",
            ) from None

    def _exchange(self, number: int, index: int) -> Exchange:
        plan = self._algorithm.exchanges(number)
        if index >= len(plan):
            raise InconsistentView(f"round {number} of this study has no exchange {index}")
        return plan[index]

    def _signed_view(self, spec_digest: bytes) -> tuple[str, ...] | None:
        """The survivors that this site has signed for a specification, where it still knows."""
        session = self._session
        return session.view if session is not None and self._begun == spec_digest else None

    def _state_tag(self) -> bytes:
        """A tag of the whole state under the study key.

        The aggregator can compare states, not test guesses of one. State, round and exchange together
        determine the broadcast, so the tag stands for it in specifications.
        """
        state = state_digest(encode_state(self.replica.save()))
        return derive(self._keys.required.secret_key, labels.DERIVE_STATE_TAG, state)

    def _view(self, tag: bytes) -> bytes:
        view = StateView(self._identity.name, self.sums, tag)
        return signed(view, self._identity, labels.SIGN_STATE, self._study.encode()).encode()
