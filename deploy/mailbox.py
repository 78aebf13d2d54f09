"""One site's state at the aggregator: what it is asked, and what it is doing about it.

A request stays until it is answered, refused or withdrawn, so that a poll after a lost connection gets it
again. Of two polls, or two uploads, of one site the newer counts: the older is a connection that died
unnoticed. Only the thread of the server's event loop touches a mailbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from secfed.deploy.link_limits import Allowance
from secfed.deploy.parcels import Parcel

T = TypeVar("T")


class Superseded(Exception):
    """The call was given up for a newer one, or its request was withdrawn."""


class Turn:
    """At most one coroutine at a time: a newer one ends the older."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def take(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``, ending what ran before.

        Raises:
            Superseded: it was itself ended.
        """
        self.end()
        task = self._task = asyncio.ensure_future(work)
        try:
            result: T = await task
            return result
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


class Room:
    """Memory for large replies, given out in the order of asking.

    Args:
        size_bytes: how much there is; a single reply may exceed it.
        most: there is room for so many replies instead, whatever their size; None counts bytes.
    """

    def __init__(self, size_bytes: int, most: int | None = None) -> None:
        self._size, self._most = size_bytes, most
        self._used = self._held = 0
        self._line, self._freed = asyncio.Lock(), asyncio.Event()  # the lock serves first come, first

    async def take(self, size_bytes: int) -> None:
        """Wait until there is room."""
        async with self._line:
            while self._held and self._is_full(size_bytes):
                self._freed.clear()
                await self._freed.wait()
            self._used += size_bytes
            self._held += 1

    def give_back(self, size_bytes: int) -> None:
        """It is free again. In the event loop's thread."""
        self._used -= size_bytes
        self._held -= 1
        self._freed.set()

    def _is_full(self, size_bytes: int) -> bool:
        if self._most is not None:
            return self._held >= self._most
        return self._used + size_bytes > self._size


class Mailbox:
    """What one site is asked.

    Attributes:
        request: the open request.
        fetched: whether all of it was sent at least once.
        sending: whether it is being sent.
        accepted: id of the last request whose reply or refusal was taken.
        polls, uploads: the turns of the two long calls.
        open_calls: calls that are running.
        signs: those of them that show that the site is there.
        seen_s: loop time of the last sign of life.
        bytes_up, bytes_down: frame bytes carried since they were last cleared.
        software: what the site says it runs.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.request: Parcel | None = None
        self.fetched = self.sending = False
        self.accepted = b""
        self.polls, self.uploads = Turn(), Turn()
        self.open_calls = self.signs = 0
        self.seen_s: float | None = None
        self.bytes_up = self.bytes_down = 0
        self.software = ""
        self._posted = asyncio.Event()
        self._over = False

    def post(self, request: Parcel) -> None:
        """Ask the site something."""
        self.withdraw()
        self.request, self.fetched = request, False
        self._posted.set()

    def withdraw(self) -> None:
        """Ask nothing any more; an upload under way ends, and its memory is free."""
        self.request = None
        self._posted.clear()
        self.uploads.end()

    def take(self, request_id: bytes) -> None:
        """The open request was answered or refused."""
        self.accepted = request_id
        self.request = None
        if not self._over:
            self._posted.clear()

    def finish(self, last: Parcel | None = None) -> None:
        """Ask nothing any more but ``last``; polls that have nothing to wait for end at once."""
        self.withdraw()
        self._over = True
        self.request, self.fetched = last, False
        self._posted.set()

    async def wait(self, patience_s: float) -> Parcel | None:
        """The open request, as soon as there is one; None when patience ends."""
        try:
            async with asyncio.timeout(patience_s):
                await self._posted.wait()
        except TimeoutError:
            return None
        return self.request

    def waits_for(self, request_id: bytes) -> bool:
        """Whether this request is open."""
        return self.request is not None and self.request.header.request_id == request_id
