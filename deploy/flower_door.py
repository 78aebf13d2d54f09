"""A hospital's half of the link over Flower: the agent listens at a socket, and Flower's app brings letters.

Flower takes the code that runs at a hospital from the study centre's bundle. So that code is given nothing
but a socket: keys, data, journal and ledger are the agent's, in a process and under an account of its own.
The agent believes no letter that is not signed by the aggregator of the pinned roster.

    letter comes -> signed by the aggregator? -> offer: here, or declined
                                              -> request: wait for the agent's answer -> reply or refused

Security: who may connect to the socket can withhold letters, and see what they carry; it can hold all
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
from secfed.deploy import letters, local_socket
from secfed.deploy.letters import Head
from secfed.deploy.link_limits import ClientLimits
from secfed.deploy.link_messages import ACCEPTED, MAX_SETTINGS_BYTES, OVER, HelloReply, HelloRequest, Refusal
from secfed.deploy.parcels import Parcel
from secfed.deploy.serving import CallFailed, Request, ServingLink, told
from secfed.errors import MalformedMessage, SecfedError

_MAX_OFFER_BYTES: Final = MAX_SETTINGS_BYTES + 1024
_CONNECTIONS: Final = 16
_POLL_S: Final = 45.0  # after so long without a request, the agent looks at the newest offer
T = TypeVar("T")


@dataclass
class _Answer:
    """What the agent says to a request; ``sent`` once a courier has all of it.

    It is kept until the next request comes: the courier's way back can fail, too.
    """

    request_id: bytes
    kind: int
    parcel: Parcel = field(repr=False)
    sent: bool = False


class FlowerDoor:
    """Where Flower's app brings letters to an agent.

    Args:
        path: of the socket.
        identity: the site's signing key.
        roster: the pinned roster, as it is on the disk now.
        software: name and version, for the operator of the aggregator.
        limits: timeouts.

    Raises:
        ConfigError: the socket cannot be made.
    """

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
        self.link: DoorLink | None = None
        self.declined: tuple[str, Refusal] | None = None  # of a study
        self.request: Request | None = None  # to be taken by the agent
        self.newest = b""  # id of the request that came last
        self.bearer: object = None  # the connection that waits for its answer
        self.answer: _Answer | None = None
        self._listener = local_socket.Listener(path, self._bring, most=_CONNECTIONS)

    def dial(self, study: str, max_frame_bytes: int) -> DoorLink:
        """The agent's end, for one study; it ends the one before."""
        link = DoorLink(self, study, max_frame_bytes)
        with self.changed:
            self.link = link
            self.changed.notify_all()
        return link

    def close(self) -> None:
        """End all connections, and remove the socket."""
        self._listener.close()

    # --- what a courier meets, in a thread per connection ----------------------------------------------

    def _bring(self, connection: socket.socket) -> None:
        """One letter, and the answer to it; a connection that brings anything else just ends."""
        connection.settimeout(self.limits.part_timeout_s)
        try:
            head = Head.decode(local_socket.receive(connection, letters.MAX_HEAD_BYTES))
            head.check(self._roster().aggregator, "the aggregator")
            size = local_socket.announced(connection)
            if head.kind == letters.OFFER:
                head.check_size(size, _MAX_OFFER_BYTES)
                self._send(connection, head, *self._take_offer(self._frame(connection, head)))
            elif head.kind == letters.REQUEST and head.site == self._identity.name:
                self._take_request(connection, head, size)
        except SecfedError:
            return  # forged, too long or broken off: who is honest comes again

    def _take_offer(self, frame: memoryview) -> tuple[int, bytes]:
        offer = HelloReply.decode(frame)
        with self.changed:
            self.offer = offer
            self.changed.notify_all()
            return self._standing(offer.study)

    def _standing(self, study: str) -> tuple[int, bytes]:
        """What the courier is told of a study: that the site is there, or why it does not serve it."""
        if self.declined is not None and self.declined[0] == study:
            return letters.DECLINED, self.declined[1].encode()
        return letters.HERE, HelloRequest(study, self._software).encode()

    def _take_request(self, connection: socket.socket, head: Head, size: int) -> None:
        study, request_id = head.header.study, head.header.request_id
        cap = self._cap(study)
        if cap is None:
            with self.changed:
                kind, standing = self._standing(study)
            # An agent that was just started has not seen the offer: without an answer it will come again.
            if kind == letters.DECLINED:
                local_socket.skip(connection, size)
                self._send(connection, head, kind, standing)
            return
        head.check_size(size, cap)
        frame = self._frame(connection, head)
        with self.changed:
            self.bearer = connection
            if request_id != self.newest:  # or it came again, because its courier got lost
                self.newest, self.request, self.answer = request_id, Request(study, request_id, frame), None
            self.changed.notify_all()
        del frame
        answer = self._wait_for_answer(connection, request_id)
        if answer is None:
            return
        self._send_parcel(connection, head, answer.kind, answer.parcel)
        with self.changed:
            answer.sent = True
            self.changed.notify_all()

    def _cap(self, study: str) -> int | None:
        """Longest request of a study, as soon as the agent serves it; None if it does not."""
        end = time.monotonic() + self.limits.call_s
        with self.changed:
            while self.offer is not None and self.offer.study == study:
                if self.declined is not None and self.declined[0] == study:
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

    def _frame(self, connection: socket.socket, head: Head) -> memoryview:
        frame = memoryview(local_socket.read(connection, head.header.total_bytes)).toreadonly()
        head.check_frame(frame)
        return frame

    def _send(self, connection: socket.socket, asked: Head, kind: int, frame: Buffer) -> None:
        parcel = Parcel.wrap(asked.header.study, asked.header.request_id, frame)
        self._send_parcel(connection, asked, kind, parcel)

    def _send_parcel(self, connection: socket.socket, asked: Head, kind: int, parcel: Parcel) -> None:
        if kind not in letters.ANSWERS_TO[asked.kind]:
            raise MalformedMessage("no answer to such a letter")
        head = Head.sign(self._identity, kind, self._identity.name, parcel)
        local_socket.send(connection, head.encode())
        local_socket.send(connection, parcel.frame)


class DoorLink(ServingLink):
    """The agent's end: what :class:`~secfed.deploy.grpc_client.SiteLink` is over gRPC.

    Args:
        door: where letters come.
        study: the study this site serves; empty until its settings were asked for.
        max_frame_bytes: longest request that is accepted.

    Attributes:
        serving: whether requests are taken.
    """

    def __init__(self, door: FlowerDoor, study: str, max_frame_bytes: int) -> None:
        super().__init__(study, max_frame_bytes, door.limits)
        self._door = door
        self.serving = False

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._stopped.is_set()

    def hello(self) -> HelloReply:
        """The newest offer; waits for the first.

        Raises:
            LinkError: none came.
        """
        door = self._door
        with door.changed:
            offer = self._until(lambda: door.offer, self._limits.call_s)
        if offer is None:
            raise CallFailed(
                "nothing has come through Flower yet",
                remedy="check that this hospital's SuperNode runs, names this socket in its --node-config, "
                "and may connect to it, and that the study centre has started the app",
            )
        if self.study not in ("", offer.study):
            raise CallFailed(
                "another study is served now", remedy="nothing: the agent asks for it", lasting=True
            )
        return offer

    def next(self) -> Request | None:
        """Wait for the next request; None when there is none for a while, or the study is over."""
        door = self._door
        with door.changed:
            self.serving = True
            if door.declined is not None and door.declined[0] == self.study:
                door.declined = None
            door.changed.notify_all()
            found = self._until(self._request_or_end, _POLL_S)
            if not isinstance(found, Request):
                return None
            door.request = None
            return found

    def _request_or_end(self) -> Request | HelloReply | None:
        door = self._door
        if door.request is not None and door.request.study == self.study:
            return door.request
        is_end = door.offer is not None and (door.offer.finished or door.offer.study != self.study)
        return door.offer if is_end else None

    def answer(self, request_id: bytes, reply: Buffer) -> int:
        """Give a reply to the courier who waits for it, or who comes for it.

        Raises:
            LinkError: closed.
        """
        return self._hand_over(request_id, letters.REPLY, reply)

    def refuse(self, request_id: bytes, error: SecfedError) -> int:
        """Say that a request, or with an empty id the study, is refused.

        Raises:
            LinkError: closed.
        """
        kind, reason = told(error, declines=not request_id)
        refusal = Refusal(self.study, request_id, kind, reason)
        if request_id:
            return self._hand_over(request_id, letters.REFUSED, refusal.encode())
        with self._door.changed:
            self._door.declined = (self.study, refusal)
            self._door.changed.notify_all()
        return ACCEPTED

    def _hand_over(self, request_id: bytes, kind: int, frame: Buffer) -> int:
        door, answer = self._door, _Answer(request_id, kind, Parcel.wrap(self.study, request_id, frame))
        with door.changed:
            if door.newest == request_id:
                door.answer = answer
                door.changed.notify_all()
            while not answer.sent and door.newest == request_id and not self._is_over():
                if self.closed:
                    raise CallFailed("the connection is closed")
                door.changed.wait()
            if door.answer is answer and not answer.sent:
                door.answer = None
        return ACCEPTED if answer.sent else OVER

    def _is_over(self) -> bool:
        offer = self._door.offer
        return offer is not None and (offer.finished or offer.study != self.study)

    def _until(self, found: Callable[[], T | None], timeout_s: float) -> T | None:
        """Wait, holding the door's lock, until something is there.

        Raises:
            LinkError: closed.
        """
        end = time.monotonic() + timeout_s
        while (value := found()) is None:
            if self.closed:
                raise CallFailed("the connection is closed")
            if not self._door.changed.wait(max(0.0, end - time.monotonic())):
                return found()
        return value

    def alive(self) -> nullcontext[None]:
        """Flower's SuperNode says that it is there."""
        return nullcontext()

    def close(self) -> None:
        """See :class:`ServingLink`."""
        self._stopped.set()
        with self._door.changed:
            self._door.changed.notify_all()
