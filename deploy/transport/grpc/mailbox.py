"""One site's state at the aggregator: what it is asked, and what it is doing about it.

A request stays until it is answered, refused or withdrawn, so that a poll after a lost connection gets it
again. Of two polls, or two uploads, of one site the newer counts: the older is a connection that died
unnoticed. Only the thread of the server's event loop touches a mailbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.limits import Allowance, ServerLimits
from secfed.deploy.transport.study_server import SiteState

T = TypeVar("T")


class Superseded(Exception):
    """The call was given up for a newer one, or its request was withdrawn."""


class Turn:
    """At most one coroutine at a time: a newer one ends the older."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def take(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``, ending what ran before."""
        self.end()
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._task = task
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise  # the call itself was cancelled: the site has hung up
            raise Superseded from None
        finally:
            task.cancel()
            if self._task is task:
                self._task = None

    def end(self) -> None:
        """End what runs, if anything does."""
        if self._task is not None:
            self._task.cancel()
            self._task = None


@dataclass(eq=False)
class Stay:
    """One reply that is coming in."""

    until_s: float  # loop time after which it has to make room for others that wait
    end: Callable[[], None]  # gives it up


class Room:
    """Memory for large replies, given out in the order of asking; a single one may exceed what there is.

    A reply slower than ``turn_bytes_per_s`` gives way where another waits, and its site begins again at the
    end of the line. Every time it may stay twice as long: where all lines are slow, each comes through in the
    end.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._used = self._held = 0
        self._line, self._freed = asyncio.Lock(), asyncio.Event()  # the lock serves first come, first
        self._stays: set[Stay] = set()

    async def take(self, size_bytes: int, end: Callable[[], None], gave_way: int = 0) -> Stay:
        """Wait until there is room. ``end`` gives the reply up if others wait; it did ``gave_way`` times."""
        now_s, limits = asyncio.get_running_loop().time, self._limits
        async with self._line:
            while self._held and (
                self._used + size_bytes > limits.answers_bytes
                if limits.answers is None
                else self._held >= limits.answers
            ):
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min((one.until_s for one in self._stays), default=None)):
                        await self._freed.wait()
                for one in [one for one in self._stays if one.until_s <= now_s()]:
                    self.received(one)
                    one.end()
            self._used += size_bytes
            self._held += 1
        turn_s = limits.turn_s + size_bytes / limits.turn_bytes_per_s
        stay = Stay(now_s() + turn_s * 2.0 ** min(gave_way, 32), end)
        self._stays.add(stay)
        return stay

    def received(self, stay: Stay) -> None:
        """A reply is complete, or was given up: from now on it makes room when it is given back."""
        self._stays.discard(stay)

    def give_back(self, size_bytes: int) -> None:
        """It is free again. In the event loop's thread."""
        self._used -= size_bytes
        self._held -= 1
        self._freed.set()


class Mailbox(SiteState):
    """What one site is asked."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__()
        self.allowance = allowance
        self.fetched = False  # all of the request was sent at least once
        self.sending = False  # it is being sent
        self.accepted = b""  # id of the last request whose reply or refusal was taken
        self.polls, self.uploads = Turn(), Turn()  # of the two long calls
        self.open_calls = 0  # calls that are running
        self.signs = 0  # those of them that show that the site is there
        self.gave_way = 0  # how often the reply to the open request made room for another site's
        self._has_request = asyncio.Event()
        self._over = False

    @property
    def calling(self) -> bool:
        """Whether one of its calls shows that the site is there."""
        return self.signs > 0

    def ask(self, request: ChunkedFrame) -> None:
        """Ask the site something."""
        self.withdraw()
        self.request, self.fetched, self.gave_way = request, False, 0
        self._has_request.set()

    def give_way(self) -> None:
        """Give up the upload that is coming in; the site begins it again."""
        self.gave_way += 1
        self.uploads.end()

    def withdraw(self) -> None:
        """Ask nothing any more; an upload under way ends, and its memory is free."""
        self.request = None
        self._has_request.clear()
        self.uploads.end()

    def take(self, request_id: bytes) -> None:
        """The open request was answered or refused."""
        self.accepted = request_id
        self.request = None
        if not self._over:
            self._has_request.clear()

    def finish(self, last: ChunkedFrame | None = None) -> None:
        """Ask nothing any more but ``last``; polls that have nothing to wait for end at once."""
        self.withdraw()
        self._over = True
        self.request, self.fetched = last, False
        self._has_request.set()

    async def wait(self, patience_s: float) -> ChunkedFrame | None:
        """The open request, as soon as there is one; None when patience ends."""
        try:
            async with asyncio.timeout(patience_s):
                await self._has_request.wait()
        except TimeoutError:
            return None
        return self.request

    def waits_for(self, request_id: bytes) -> bool:
        """Whether this request is open."""
        return self.request is not None and self.request.header.request_id == request_id
