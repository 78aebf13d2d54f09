"""A site's local work: one update per exchange, paid for before a record is touched. Sans-I/O.

    asked -> checked -> paid -> worked -> clipped -> pending, until attempts have carried it (``site.py``)

A task is done, or refused for what does not depend on records: work that fails on values adds zeros and
raises an alarm at this site only (``containment.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.crypto.refusals import Refusal
from secfed.errors import BudgetExceeded, InconsistentView, Replay
from secfed.records.transcript import REFUSED, Log
from secfed.site.containment import Alarm, check_broadcast, check_fits, contained
from secfed.storage.failpoints import failpoint
from secfed.study.warm_start import check_initial_model
from secfed.wire.frames import Task, decode_state
from secfed.wire.layout import Exchange, State, Summands

if TYPE_CHECKING:
    from secfed.site.attempt_store import AttemptStore
    from secfed.site.privacy import SitePrivacy


@dataclass(frozen=True)
class Pending:
    """The local work of one exchange, waiting for an attempt to carry it."""

    round: int
    exchange_index: int
    exchange: Exchange
    broadcast_digest: bytes
    summands: Summands = field(repr=False)
    noise_key: bytes | None = field(repr=False, default=None)

    @property
    def here(self) -> tuple[int, int]:
        """Round and exchange index."""
        return self.round, self.exchange_index


class LocalWork:
    """What one hospital works out in one study.

    Args:
        site: name of the hospital.
        sites: the study's sites in roster order.
        study, algorithm, program, log, privacy, memory, begins_with, broadcast_bound, alarm, only_values: as
            for :class:`secfed.site.session.Site`.

    Attributes:
        pending: the newest work; None before the first, and while other work is being done.
        stopped: whether this site works on nothing of the study any more.
    """

    def __init__(
        self,
        *,
        site: str,
        study: str,
        algorithm: Algorithm,
        program: SiteProgram,
        log: Log,
        privacy: SitePrivacy | None,
        memory: AttemptStore | None,
        sites: tuple[str, ...],
        begins_with: bytes | None,
        broadcast_bound: float,
        alarm: Alarm,
        only_values: bool,
    ) -> None:
        self._site, self._sites, self._study, self._algorithm = site, sites, study, algorithm
        self._program = program if privacy is None else privacy.prepare(program)
        self._log, self._privacy, self._memory = log, privacy, memory
        self._begins_with, self._broadcast_bound = begins_with, broadcast_bound
        self._alarm, self._only_values = alarm, only_values
        self.pending: Pending | None = None
        self.stopped = False

    def resume(self) -> None:
        """Read what the memory keeps of the newest work.

        Raises:
            ConfigError, TranscriptError: the memory cannot be read, or was changed.
        """
        memory = self._memory
        if memory is None:
            return
        self.stopped = memory.stopped
        memory.forget_remains()
        kept = memory.contribution()
        if kept is not None:
            work, summands = kept
            exchange = self._algorithm.exchanges(work.round)[work.exchange_index]
            privacy = self._privacy
            has_noise = privacy is not None and privacy.noise_of(exchange) is not None
            noise_key = privacy.noise_key(work.round, exchange.name) if privacy and has_noise else None
            self.pending = Pending(*work.here, exchange, work.broadcast_digest, summands, noise_key)

    def contribute(self, task: Task, broadcast: Callable[[Exchange], bytes], digest: bytes) -> bool:
        """Do the local work of one exchange, once, and keep what it gave.

        Args:
            task: which exchange.
            broadcast: gives the state that the work starts from.
            digest: what the specification must name as the broadcast's digest.

        Returns:
            Whether it was done now; False if it was there already.

        Raises:
            SecfedError: the task is refused.
        """
        if self.stopped:
            raise Refusal.OTHER_START.refuse("this site has stopped the study")
        here = (task.round, task.exchange_index)
        if task.study != self._study:
            raise InconsistentView("the task is for another study, or for other settings of this one")
        if self._memory is not None:
            if self._is_kept(here, digest):
                return False
        elif self.pending is not None and here <= self.pending.here:
            raise Replay(f"round {task.round}, exchange {task.exchange!r} was already worked on")
        plan = self._algorithm.exchanges(task.round)
        if task.exchange_index >= len(plan) or plan[task.exchange_index].name != task.exchange:
            raise InconsistentView(
                f"round {task.round} of this study has no exchange {task.exchange!r} there"
            )
        exchange = plan[task.exchange_index]
        if self._site not in self.planned(task.round, exchange):
            raise Refusal.NOT_PLANNED.refuse(self._site)
        state: dict[str, torch.Tensor] = decode_state(broadcast(exchange))
        check_broadcast(state, self._broadcast_bound)
        check_fits(self._algorithm, task.round, exchange, state)
        if here == (1, 0):
            self._check_start(exchange, state)
        if self._memory is not None:
            self._memory.begin(here, digest)
            self.pending = None
        summands, noise_key = self._work_privately(task.round, exchange, state)
        if self._memory is not None:
            self._memory.keep(summands, self._program.save())
        self.pending = Pending(*here, exchange, digest, summands, noise_key)
        return True

    def planned(self, number: int, exchange: Exchange) -> frozenset[str]:
        """The sites that the study asks in an exchange: nobody else may be in its sum."""
        return frozenset(self._algorithm.members(number, exchange, self._sites))

    def stop(self) -> None:
        """Work on nothing of this study any more."""
        self.stopped = True
        if self._memory is not None:
            self._memory.stop()  # a restart changes nothing about it

    def _check_start(self, exchange: Exchange, state: State) -> None:
        """Compare the first broadcast with the model that the study begins with.

        Another one stops the study at this site: in later rounds nothing could be compared.
        """
        if self._begins_with is None:
            return
        try:
            check_initial_model(self._begins_with, self._algorithm.model_in(state))
        except InconsistentView as error:
            self._log.append(REFUSED, {"round": 1, "exchange": exchange.name, "reason": error.message})
            self.stop()
            raise

    def _is_kept(self, here: tuple[int, int], broadcast_digest: bytes) -> bool:
        """Whether the work of this very task is there already: an aggregator that restarted asks again.

        Raises:
            Replay: its update has left.
        """
        pending = self.pending
        if pending is None or here != pending.here or self._memory is None:
            return False
        if self._memory.is_spent(here):
            raise Replay(f"the update of round {pending.round}, exchange {pending.exchange.name!r} has left")
        return broadcast_digest == pending.broadcast_digest

    def _work_privately(
        self, round_number: int, exchange: Exchange, state: dict[str, torch.Tensor]
    ) -> tuple[Summands, bytes | None]:
        """What the program contributes, paid for and clipped, and the key of the noise it will get."""
        privacy, own = self._privacy, exchange
        try:
            if privacy is not None:
                privacy.begin(round_number, exchange)  # paid before any record is touched
                failpoint("site: after paid")
                own = privacy.own_exchange(exchange)
            summands = contained(
                round_number,
                own,
                partial(self._program.contribute, round_number, own, state),
                partial(self._program.settled, round_number, own),
                self._alarm,
                only_values=self._only_values,
            )
        except BudgetExceeded:
            if privacy is not None:
                privacy.refused += 1
            self._log.append(
                REFUSED, {"round": round_number, "exchange": exchange.name, "reason": "privacy budget"}
            )
            raise
        noise = None if privacy is None else privacy.noise_of(exchange)
        if privacy is None or noise is None:
            return summands, None
        return noise.clip(summands), privacy.noise_key(round_number, exchange.name)
