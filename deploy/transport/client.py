"""A site's half of a link, whatever carries it: ask what there is to do, do it, answer, again.

    hello -> (next -> handle -> answer or refuse)*

Every call may be repeated: the aggregator hands out the same request until it is answered, and takes one
reply once. So whatever fails on the way is tried again after a pause that grows.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.limits import Backoff, ClientLimits
from secfed.deploy.transport.messages import MAX_KIND_BYTES, MAX_REASON_BYTES, HelloReply, RefusalMessage
from secfed.errors import LinkError, PolicyRefused, Replay, SecfedError
from secfed.wire.refusal_codes import outgoing

_LASTING_FAILURES: Final = 8  # such a failure counts as so many: the pause is long at once
T = TypeVar("T")


class CallFailed(LinkError):
    """A call that failed.

    ``lasting``: trying again will not help until somebody changes something. ``unfit``: the aggregator
    refused the reply itself.
    """

    def __init__(self, message: str, *, remedy: str = "", lasting: bool = False, unfit: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.lasting, self.unfit = lasting, unfit


@dataclass(frozen=True)
class LinkRequest:
    """What the aggregator asks: a frame, and the id of this asking."""

    study: str
    request_id: bytes
    frame: memoryview = field(repr=False)


class SiteConnection(ABC):
    """One site's connection to the aggregator; ``study`` is empty until its settings were asked for."""

    def __init__(self, study: str, max_frame_bytes: int, limits: ClientLimits) -> None:
        self.study, self.max_frame_bytes, self._limits = study, max_frame_bytes, limits
        self._stopped = threading.Event()

    @abstractmethod
    def hello(self) -> HelloReply:
        """Show that the site is there, and ask what is served; with its settings if no study is set."""

    @abstractmethod
    def next(self) -> LinkRequest | None:
        """Wait for the next request; None when there is nothing to do for now."""

    @abstractmethod
    def answer(self, request_id: bytes, reply: Buffer) -> int:
        """Deliver a reply; the outcome of the receipt. May be repeated."""

    @abstractmethod
    def refuse(self, request_id: bytes, error: SecfedError) -> int:
        """Say that a request (or with an empty id: the study) is refused. May be repeated."""

    @abstractmethod
    def alive(self) -> AbstractContextManager[None]:
        """While the site works, say from time to time that it is there."""

    @abstractmethod
    def close(self) -> None:
        """End every call and :meth:`serve`; from any thread."""

    def serve(
        self,
        handle: Callable[[LinkRequest], Buffer],
        *,
        failed: Callable[[CallFailed], None] = lambda _: None,
        recovered: Callable[[], None] = lambda: None,
        said: Callable[[HelloReply], None] = lambda _: None,
        leaves: Callable[[SecfedError], bool] = lambda _: False,
    ) -> bool:
        """Answer requests until :meth:`close` or the study's end, whatever happens to the connection.

        ``handle`` does the work; a :class:`SecfedError` becomes a refusal, any other error ends this call.
        After a restart a request comes again: a handler that must not work twice keeps the reply by
        ``request_id``. ``failed`` is told of every failure before the pause, ``recovered`` when a call
        succeeds after one, ``said`` what the aggregator says when it asks for nothing. Where it ``leaves``
        after a refusal, the result is False.
        """
        backoff = Backoff(self._limits.backoff_s, self._limits.backoff_cap_s)
        last = b""

        def insist(call: Callable[[], T]) -> T | None:
            """Call until it succeeds; None if the link was closed, or the call makes no sense any more."""
            while not self._stopped.is_set():
                try:
                    value = call()
                except CallFailed as error:
                    if error.unfit:
                        raise
                    if not self._stopped.is_set():
                        failed(error)
                    if error.lasting:
                        backoff.failures = max(backoff.failures, _LASTING_FAILURES)
                    self._stopped.wait(backoff.next_s())
                    if error.lasting:
                        return None
                    continue
                if backoff.failures:
                    backoff.failures = 0
                    recovered()
                return value
            return None

        while not self._stopped.is_set():
            request = insist(self.next)
            if request is None:
                heard = insist(self.hello)
                if heard is not None and heard.finished:
                    return True
                if heard is not None:
                    said(heard)
                continue
            request_id = request.request_id
            try:
                if request_id == last:
                    raise Replay("a request that was answered came again")
                with self.alive():
                    reply = handle(request)
                del request  # its frame can be as large as the reply
                insist(partial(self.answer, request_id, reply))
                del reply
            except SecfedError as error:
                insist(partial(self.refuse, request_id, error))
                if leaves(error):
                    return False
            last = request_id
        return False


def refusal_message(study: str, request_id: bytes, error: SecfedError) -> RefusalMessage:
    """What the aggregator learns about the refusal of a request, or with an empty id of the study.

    Security: a request is refused with a code of :mod:`secfed.wire.refusal_codes`, and so is a study for any
    other reason than the policy. The words of a policy must name no number that comes out of records: before
    a broadcast was seen they follow from the study's settings, and its author needs them.
    """
    kind, reason = outgoing(error)
    if not request_id and isinstance(error, PolicyRefused):
        reason = error.message
    cut = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    return RefusalMessage(study, request_id, kind[:MAX_KIND_BYTES], cut)
