"""A hospital's half of the link over Flower: the agent listens at a socket for Flower's app.

The app is code of the study centre's bundle, so it is given nothing but a socket. The agent believes no
envelope that is not signed by the aggregator of the pinned roster: an offer is answered by "here" or
"declined", a request by the agent's reply or refusal.

Security: who may connect to the socket can withhold envelopes, and see what they carry; it can hold all
connections, and so keep this hospital out of a study. It cannot make the agent work.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.client import CallFailed, LinkRequest, SiteConnection, refusal_message
from secfed.deploy.transport.flower import envelope, unix_socket
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.messages import (
    ACCEPTED,
    ANOTHER_STUDY,
    MAX_SETTINGS_BYTES,
    OVER,
    HelloReply,
    HelloRequest,
    RefusalMessage,
)
from secfed.errors import SecfedError

_MAX_OFFER_BYTES: Final = MAX_SETTINGS_BYTES + 1024
_CONNECTIONS: Final = 16
_POLL_S: Final = 45.0  # after so long without a request, the agent looks at the newest offer
T = TypeVar("T")


@dataclass
class _Answer:
    """What the agent says to a request, kept until the next comes: the courier's way back can fail, too."""

    request_id: bytes
    kind: int
    chunked: ChunkedFrame = field(repr=False)
    sent: bool = False  # a courier has all of it


class FlowerClient:
    """Where Flower's app brings envelopes to an agent; ``roster`` reads the pinned roster from the disk."""

    def __init__(
        self,
        path: Path,
        identity: Identity,
        roster: Callable[[], Roster],
        *,
        software: str = "",
        limits: ClientLimits | None = None,
    ) -> None:
        self._identity, self._roster = identity, roster
        self._software, self.limits = software, limits or ClientLimits()
        self.changed = threading.Condition()  # guards everything below
        self.offer: HelloReply | None = None
        self.link: FlowerSiteConnection | None = None
        self.declined: RefusalMessage | None = None  # of a study
        self.request: LinkRequest | None = None  # to be taken by the agent
        self.newest = b""  # id of the request that came last
        self.bearer: object = None  # the connection that waits for its answer
        self.answer: _Answer | None = None
        self._path, self.address = path, str(path)
        self._listener: unix_socket.UnixSocketListener | None = None

    def listen(self) -> None:
        """Make the socket, unless it is there."""
        if self._listener is None:
            self._listener = unix_socket.UnixSocketListener(self._path, self._bring, most=_CONNECTIONS)

    def dial(self, study: str, max_frame_bytes: int) -> FlowerSiteConnection:
        """The agent's end, for one study; it ends the one before."""
        self.listen()
        link = FlowerSiteConnection(self, study, max_frame_bytes)
        with self.changed:
            self.link = link
            self.changed.notify_all()
        return link

    def close(self) -> None:
        """End all connections, and remove the socket."""
        if self._listener is not None:
            self._listener.close()

    def _bring(self, connection: socket.socket) -> None:
        """One envelope, and the answer to it; a connection that brings anything else just ends."""
        connection.settimeout(self.limits.part_timeout_s)
        try:
            head = EnvelopeHeader.decode(unix_socket.receive(connection, envelope.MAX_HEAD_BYTES))
            head.check(self._roster().aggregator, "the aggregator")
            size = unix_socket.announced(connection)
            if head.kind == envelope.OFFER:
                head.check_size(size, _MAX_OFFER_BYTES)
                offer = HelloReply.decode(self._frame(connection, head))
                with self.changed:
                    self.offer = offer
                    self.changed.notify_all()
                    refusal = self.declines(offer.study)
                if refusal is None:
                    here = HelloRequest(offer.study, self._software)
                    self._send(connection, head, envelope.HERE, here.encode())
                else:
                    self._send(connection, head, envelope.DECLINED, refusal.encode())
            elif head.kind == envelope.REQUEST and head.site == self._identity.name:
                self._take_request(connection, head, size)
        except SecfedError:
            return  # forged, too long or broken off: who is honest comes again

    def declines(self, study: str) -> RefusalMessage | None:
        """Why the agent does not serve this study, if it said so; the caller holds the lock."""
        return self.declined if self.declined is not None and self.declined.study == study else None

    def _take_request(self, connection: socket.socket, head: EnvelopeHeader, size: int) -> None:
        study, request_id = head.header.study, head.header.request_id
        cap = self._cap(study)
        if cap is None:
            with self.changed:
                refusal = self.declines(study)
            # An agent that was just started has not seen the offer: without an answer it will come again.
            if refusal is not None:
                unix_socket.skip(connection, size)
                self._send(connection, head, envelope.DECLINED, refusal.encode())
            return
        head.check_size(size, cap)
        frame = self._frame(connection, head)
        with self.changed:
            self.bearer = connection
            if request_id != self.newest:  # or it came again, because its courier got lost
                self.newest, self.answer = request_id, None
                self.request = LinkRequest(study, request_id, frame)
            self.changed.notify_all()
        del frame
        answer = self._wait_for_answer(connection, request_id)
        if answer is None:
            return
        self._send(connection, head, answer.kind, answer.chunked)
        with self.changed:
            answer.sent = True
            self.changed.notify_all()

    def _cap(self, study: str) -> int | None:
        """Longest request of a study, as soon as the agent serves it; None if it does not."""
        end = time.monotonic() + self.limits.call_s
        with self.changed:
            while self.offer is not None and self.offer.study == study:
                if self.declines(study):
                    return None
                link = self.link
                if link is not None and link.study == study and link.serving and not link.closed:
                    return link.max_frame_bytes
                if not self.changed.wait(max(0.0, end - time.monotonic())):
                    return None
        return None

    def _wait_for_answer(self, connection: socket.socket, request_id: bytes) -> _Answer | None:
        """The agent's answer; None if it will not come, or if another connection waits for it now."""
        with self.changed:
            while self.newest == request_id and self.bearer is connection:
                if self.answer is not None and self.answer.request_id == request_id:
                    return self.answer
                if self.link is None or self.link.closed:
                    return None
                self.changed.wait()
        return None

    def _frame(self, connection: socket.socket, head: EnvelopeHeader) -> memoryview:
        frame = memoryview(unix_socket.read(connection, head.header.total_bytes)).toreadonly()
        head.check_frame(frame)
        return frame

    def _send(
        self, connection: socket.socket, asked: EnvelopeHeader, kind: int, answer: Buffer | ChunkedFrame
    ) -> None:
        if not isinstance(answer, ChunkedFrame):
            answer = ChunkedFrame.wrap(asked.header.study, asked.header.request_id, answer)
        head = EnvelopeHeader.sign(self._identity, kind, self._identity.name, answer)
        unix_socket.send(connection, head.encode(), answer.frame)


class FlowerSiteConnection(SiteConnection):
    """The agent's end: what :class:`~secfed.deploy.transport.grpc.client.GrpcSiteConnection` is over gRPC."""

    def __init__(self, client: FlowerClient, study: str, max_frame_bytes: int) -> None:
        super().__init__(study, max_frame_bytes, client.limits)
        self._client = client
        self.serving = False

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._stopped.is_set()

    def hello(self) -> HelloReply:
        """The newest offer; waits for the first."""
        client = self._client
        with client.changed:
            offer = self._until(lambda: client.offer, self._limits.call_s)
        if offer is None:
            raise CallFailed(
                "nothing has come through Flower yet",
                remedy="check that this hospital's SuperNode runs, names this socket in its --node-config, "
                "and may connect to it, and that the study centre has started the app",
            )
        if self.study not in ("", offer.study):
            raise CallFailed(f"{ANOTHER_STUDY} now", remedy="nothing: the agent asks for it", lasting=True)
        return offer

    def next(self) -> LinkRequest | None:
        """Wait for the next request; None when there is none for a while, or the study is over."""
        client = self._client
        with client.changed:
            self.serving = True
            if client.declines(self.study):
                client.declined = None
            client.changed.notify_all()
            found = self._until(self._request_or_end, _POLL_S)
            if not isinstance(found, LinkRequest):
                return None
            client.request = None
            return found

    def _request_or_end(self) -> LinkRequest | HelloReply | None:
        client = self._client
        if client.request is not None and client.request.study == self.study:
            return client.request
        return client.offer if self._is_over() else None

    def answer(self, request_id: bytes, reply: Buffer) -> int:
        """Give a reply to the courier who waits for it, or who comes for it."""
        return self._hand_over(request_id, envelope.REPLY, reply)

    def refuse(self, request_id: bytes, error: SecfedError) -> int:
        """Say that a request, or with an empty id the study, is refused."""
        refusal = refusal_message(self.study, request_id, error)
        if request_id:
            return self._hand_over(request_id, envelope.REFUSED, refusal.encode())
        with self._client.changed:
            self._client.declined = refusal
            self._client.changed.notify_all()
        return ACCEPTED

    def _hand_over(self, request_id: bytes, kind: int, frame: Buffer) -> int:
        client = self._client
        answer = _Answer(request_id, kind, ChunkedFrame.wrap(self.study, request_id, frame))
        with client.changed:
            if client.newest == request_id:
                client.answer = answer
                client.changed.notify_all()
            while not answer.sent and client.newest == request_id and not self._is_over():
                if self.closed:
                    raise CallFailed("the connection is closed")
                client.changed.wait()
            if client.answer is answer and not answer.sent:
                client.answer = None
        return ACCEPTED if answer.sent else OVER

    def _is_over(self) -> bool:
        offer = self._client.offer
        return offer is not None and (offer.finished or offer.study != self.study)

    def _until(self, found: Callable[[], T | None], timeout_s: float) -> T | None:
        """Wait, holding the client's lock, until something is there."""
        self._client.changed.wait_for(lambda: self.closed or found() is not None, timeout_s)
        value = found()
        if value is None and self.closed:
            raise CallFailed("the connection is closed")
        return value

    def alive(self) -> nullcontext[None]:
        """Flower's SuperNode says that it is there."""
        return nullcontext()

    def close(self) -> None:
        """End every call and :meth:`serve`; from any thread."""
        self._stopped.set()
        with self._client.changed:
            self._client.changed.notify_all()
