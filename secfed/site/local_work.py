"""A site's local work: one update per exchange, paid for before a record is touched. Sans-I/O.

    asked -> checked -> paid -> worked -> contained -> staged -> pending, until attempts have carried it

A task is done, or refused for what does not depend on records: work that fails on values adds zeros and
raises an alarm at this site only (``containment.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from secfed.algorithms.framework.base import SiteProgram
from secfed.algorithms.framework.links import needed_later, split
from secfed.crypto.lanes import VectorSource
from secfed.crypto.refusals import Refusal
from secfed.errors import BudgetExceeded, InconsistentView, Replay
from secfed.pipeline.noised_algorithm import inner_exchange, pipeline_of
from secfed.records.transcript import REFUSED
from secfed.site.attempt_store import AttemptStore, Place
from secfed.site.containment import check_broadcast, check_fits, contained
from secfed.site.parts import Agreement, Draws, Services
from secfed.site.privacy import SitePrivacy
from secfed.storage.failpoints import failpoint
from secfed.study.warm_start import check_initial_model
from secfed.wire.frames import Task, decode_state
from secfed.wire.layout import Exchange, Summands, state_digest


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
    def here(self) -> Place:
        """Round and exchange index."""
        return self.round, self.exchange_index


class LocalWork:
    """What one hospital works out in one study.

    Attributes:
        pending: the newest work; None before the first, and while other work is being done.
        stopped: whether this site works on nothing of the study any more.
    """

    def __init__(
        self,
        site: str,
        agreement: Agreement,
        program: SiteProgram,
        *,
        draws: Draws,
        store: AttemptStore,
        services: Services,
        privacy: SitePrivacy | None,
    ) -> None:
        self._site, self._agreement, self._algorithm = site, agreement, agreement.algorithm
        self._program, self._draws, self._store = program, draws, store
        self._services, self._privacy = services, privacy
        if privacy is not None:
            privacy.prepare(program)
        self.pending: Pending | None = None
        self.stopped = False
        self._taken: tuple[int, Mapping[str, bytes]] = (0, {})

    def resume(self) -> None:
        """Read what the store keeps of the newest work."""
        self.stopped, self._taken = self._store.stopped, self._store.taken()
        kept = self._store.contribution()
        if kept is not None:
            work, summands = kept
            exchange = self._algorithm.exchanges(work.round)[work.exchange_index]
            self._wait(work.here, exchange, work.broadcast_digest, summands)

    def contribute(self, task: Task, broadcast: Callable[[Exchange], bytes], digest: bytes) -> bool:
        """Do the local work of one exchange, once, and keep what it gave.

        Args:
            broadcast: gives the state that the work starts from.
            digest: what the specification must name as the broadcast's digest.

        Returns:
            Whether it was done now; False if it was there already.
        """
        if self.stopped:
            raise Refusal.OTHER_START.refuse("this site has stopped the study")
        here = (task.round, task.exchange_index)
        if task.study != self._agreement.study:
            raise InconsistentView("the task is for another study, or for other settings of this one")
        if self._is_kept(here, digest):
            self._take(task.round, self._algorithm.exchanges(task.round)[task.exchange_index], broadcast)
            return False
        plan = self._algorithm.exchanges(task.round)
        if task.exchange_index >= len(plan) or plan[task.exchange_index].name != task.exchange:
            raise InconsistentView(
                f"round {task.round} of this study has no exchange {task.exchange!r} there"
            )
        exchange = plan[task.exchange_index]
        if self._site not in self.planned(task.round, exchange):
            raise Refusal.NOT_PLANNED.refuse(self._site)
        raw = broadcast(exchange)
        links, state = split(decode_state(raw))
        self._check_links(task.round, here[1], links)
        check_broadcast(state, self._agreement.broadcast_bound)
        check_fits(self._algorithm, task.round, exchange, state)
        if task.round == 1 and not any(self._site in self.planned(1, one) for one in plan[: here[1]]):
            self._check_start(exchange, state)
        self._store.begin(here, digest)
        self.pending = None
        summands = self._work(task.round, exchange, state)  # what was refused unpaid is not taken
        self._store.keep(summands, self._program.save)
        failpoint("site: before task taken")
        self._take(task.round, exchange, lambda _: raw)  # not before: what it stands for would be lost
        self._wait(here, exchange, digest, summands)
        return True

    def source(self, pending: Pending) -> VectorSource:
        """What an attempt carries: a fresh reader over the same integers for every attempt."""
        rounding = self._draws.rounding(*pending.here)
        stages = pipeline_of(self._algorithm, pending.exchange)
        return stages.source(pending.exchange, pending.summands, rounding, pending.noise_key)

    def planned(self, number: int, exchange: Exchange) -> frozenset[str]:
        """The sites that the study asks in an exchange: nobody else may be in its sum."""
        return frozenset(self._algorithm.members(number, exchange, self._agreement.sites))

    def stop(self) -> None:
        """Work on nothing of this study any more."""
        self.stopped = True
        self._store.stop()  # a restart changes nothing about it

    def _wait(self, here: Place, exchange: Exchange, digest: bytes, summands: Summands) -> None:
        in_ring = pipeline_of(self._algorithm, exchange).after
        noise_key = self._draws.noise_key(here[0], exchange.name) if in_ring else None
        self.pending = Pending(*here, exchange, digest, summands, noise_key)

    def _check_start(self, exchange: Exchange, state: dict[str, torch.Tensor]) -> None:
        """Compare the first broadcast with the model that the study begins with.

        Another one stops the study at this site: in later rounds nothing could be compared.
        """
        begins_with = self._agreement.begins_with
        if begins_with is None:
            return
        try:
            check_initial_model(begins_with, self._algorithm.model_in(state))
        except InconsistentView as error:
            self._refused(1, exchange, error.message)
            self.stop()
            raise

    def _take(self, number: int, exchange: Exchange, broadcast: Callable[[Exchange], bytes]) -> None:
        """Note that this task was taken, if a later exchange of the round builds on it; once."""
        earlier = self._taken[1] if self._taken[0] == number else {}
        if exchange.name in earlier or exchange.name not in needed_later(self._algorithm, number, exchange):
            return
        self._taken = (number, {**earlier, exchange.name: state_digest(broadcast(exchange))})
        self._store.take(*self._taken)

    def _check_links(self, round_number: int, index: int, links: Mapping[str, bytes]) -> None:
        """Compare the broadcasts that this one builds on with those that this site took.

        All that counts is which tasks it took, and not what its work on them came to.
        """
        *plan, exchange = self._algorithm.exchanges(round_number)[: index + 1]
        if set(links) != set(self._algorithm.builds_on(round_number, exchange)):
            raise Refusal.BROADCAST_SHAPE.refuse("it does not name the broadcasts that it builds on")
        number, taken = self._taken
        for one in plan:
            if one.name not in links or self._site not in self.planned(round_number, one):
                continue
            if number != round_number or taken.get(one.name) != links[one.name]:
                raise Refusal.BUILDS_ON.refuse(one.name)

    def _is_kept(self, here: Place, broadcast_digest: bytes) -> bool:
        """Whether the work of this very task is there already: an aggregator that restarted asks again.

        Raises:
            Replay: its update has left.
        """
        pending = self.pending
        if pending is None or here != pending.here:
            return False
        if self._store.is_spent(here):
            raise Replay(f"the update of round {pending.round}, exchange {pending.exchange.name!r} has left")
        return broadcast_digest == pending.broadcast_digest

    def _work(self, number: int, exchange: Exchange, state: dict[str, torch.Tensor]) -> Summands:
        """What the program contributes, paid for, contained, and through the stages on values."""
        privacy, own = self._privacy, inner_exchange(self._algorithm, exchange)
        try:
            if privacy is not None:
                privacy.begin(number, exchange)  # paid before any record is touched
                failpoint("site: after paid")
            summands: Summands = contained(
                number,
                own,
                partial(self._program.contribute, number, own, state),
                partial(self._program.settled, number, own),
                self._services.alarm,
                only_values=self._services.only_values,
            )
        except BudgetExceeded:
            if privacy is not None:
                privacy.refused += 1
            self._refused(number, exchange, "privacy budget")
            raise
        stages = pipeline_of(self._algorithm, exchange).watched(self._services.watch)
        return stages.at_site(exchange, summands)

    def _refused(self, number: int, exchange: Exchange, reason: str) -> None:
        self._services.log.append(REFUSED, {"round": number, "exchange": exchange.name, "reason": reason})
