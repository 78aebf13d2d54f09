"""Exchanges that build on the work of earlier ones: who adds to them did that work, from the same broadcast.

A site may keep what it made in one exchange, features or a trained model, for a later one of the round. One
that never got the earlier task has nothing and would add zeros; one that got another broadcast has something
else. By choosing who gets which task, an aggregator could leave one site's summand alone in the later sum.
So an algorithm names such exchanges (:meth:`Algorithm.builds_on`), their broadcasts hold the digests of the
earlier ones, and a site refuses a task that does not match the tasks it took. Which tasks those were depends
on no record, as what the work came to would.

Security: the masks of a sum are bound to its broadcast, and with the digests in it to the earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from secfed.algorithms.framework.base import Algorithm, Metrics, ServerProgram
from secfed.algorithms.framework.server_state import part_of
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State, Totals, state_digest

LINK: Final = "built-on/"
_KEPT: Final = "links/"
_BYTES: Final = 32


def split(state: State) -> tuple[dict[str, bytes], dict[str, torch.Tensor]]:
    """The digests that a broadcast names, by exchange, and the rest of it."""
    links = {name: value.to(torch.uint8).numpy().tobytes() for name, value in part_of(state, LINK).items()}
    return links, {name: value for name, value in state.items() if not name.startswith(LINK)}


class LinkedServer(ServerProgram):
    """A server program whose broadcasts name those that they build on."""

    def __init__(self, algorithm: Algorithm, inner: ServerProgram) -> None:
        self.inner, self._algorithm = inner, algorithm
        self._round, self._digests = 0, dict[str, torch.Tensor]()

    def begin(self, model: State) -> None:
        """As the program's."""
        self.inner.begin(model)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The program's, and the digests."""
        state = self.inner.broadcast(round_number, exchange)
        names = self._algorithm.builds_on(round_number, exchange)
        known = self._digests if self._round == round_number else {}
        none = torch.zeros(_BYTES, dtype=torch.uint8)
        return {**state, **{LINK + name: known.get(name, none).clone() for name in names}} if names else state

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Remember the broadcast if a later one builds on it; then as the program's."""
        if exchange.name in needed_later(self._algorithm, round_number, exchange):
            if self._round != round_number:
                self._round, self._digests = round_number, {}
            sent = state_digest(encode_state(self.broadcast(round_number, exchange)))
            self._digests[exchange.name] = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        self.inner.absorb(round_number, exchange, totals)

    def model(self) -> State:
        """As the program's."""
        return self.inner.model()

    def metrics(self) -> Mapping[int, Metrics]:
        """As the program's."""
        return self.inner.metrics()

    @property
    def stopped(self) -> int | None:
        """As the program's."""
        return self.inner.stopped

    def kept(self, rounds: int) -> int:
        """As the program's."""
        return self.inner.kept(rounds)

    def save(self) -> State:
        """The program's state, and the digests of the running round."""
        kept = {f"{_KEPT}{self._round}/{name}": value for name, value in self._digests.items()}
        return {**self.inner.save(), **kept}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._round, self._digests = 0, {}
        for name, value in part_of(state, _KEPT).items():
            number, _, exchange = name.partition("/")
            self._round, self._digests[exchange] = int(number), value.clone()
        self.inner.load({name: value for name, value in state.items() if not name.startswith(_KEPT)})


def needed_later(algorithm: Algorithm, round_number: int, exchange: Exchange) -> frozenset[str]:
    """The names of what this exchange's successors in the round build on."""
    plan = list(algorithm.exchanges(round_number))
    names = [one.name for one in plan]
    later = plan[names.index(exchange.name) + 1 :]
    return frozenset(name for one in later for name in algorithm.builds_on(round_number, one))
