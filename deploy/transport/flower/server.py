"""The aggregator's half of the link over Flower: a socket at which Flower's ServerApp fetches envelopes.

What runs as a ServerApp is chosen by whoever may submit an app, so it is given envelopes, and no key. In
turns it tells of nodes, lost envelopes and at most one answer, and gets envelopes to send and to forget,
whether the study is over, and whether another one follows. Memory: one large answer at a time, until the
round has used it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity
from secfed.deploy.transport.flower import envelope, unix_socket
from secfed.deploy.transport.flower.dispatcher import FlowerDispatcher
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.flower.unix_socket import UnixSocketListener
from secfed.deploy.transport.messages import PART_BYTES
from secfed.deploy.transport.study_server import Offer, SiteReply, StudyServer, once
from secfed.errors import LinkError, MalformedMessage, ProtocolError
from secfed.protection.interface import SiteId

_MAX_TURN_BYTES: Final = 1 << 20  # ids of some ten thousand nodes
_MAX_NODES: Final = 10_000
_LOOK_S: Final = 0.2
_FAREWELL_S: Final = 5.0  # for the app to come once more, and hear that the study is over


class FlowerServer(StudyServer):
    """Serves one study through Flower to ``members``, sites and their keys.

    ``another`` says whether a study follows here, for which the app stays.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        members: Mapping[SiteId, bytes],
        offer: Offer,
        *,
        ttl_s: float,
        another: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lock = threading.Lock()  # guards requests
        super().__init__(offer.study, self._lock)
        self._path, self.address, self._ttl_s = path, str(path), ttl_s
        self.requests: FlowerDispatcher = FlowerDispatcher(identity, members, offer)
        self._room = threading.Semaphore(1)
        self._another, self._follows = another, False
        self._over, self._away = threading.Event(), threading.Event()
        self._away.set()
        self._listener: UnixSocketListener | None = None

    def start(self) -> None:
        """Listen."""
        self._listener = UnixSocketListener(self._path, self._converse, most=1)

    def stop(self) -> None:
        """Close the socket; where the study is over, and none follows, end the app's run first."""
        self._follows = self._another()
        self._over.set()
        if self._listener is not None:
            self._away.wait(_FAREWELL_S)
            self._listener.close()
            self._listener = None

    def run(self, change: Callable[[], None]) -> None:
        """Change what sites are asked, while the app's thread does not."""
        with self._lock:
            change()

    def _converse(self, connection: socket.socket) -> None:
        """Take turns with one ServerApp until it goes, or the study is over."""
        self._away.clear()
        try:
            while self._take_turn(connection):
                pass
        finally:
            with self._lock:
                self.requests.disconnected()
            self._away.set()

    def _take_turn(self, connection: socket.socket) -> bool:
        turn = _app_turn(unix_socket.receive(connection, _MAX_TURN_BYTES))
        with self._lock:
            for tag in turn["lost"]:
                self.requests.lost(tag)
        for tag in turn["answers"]:
            self._take_answer(connection, tag)
        over = self._over.is_set()
        with self._lock:
            if over and not self.requests.finished:
                return False  # stopped, and perhaps resumed: the app waits for that
            orders = [] if over else self.requests.orders(turn["nodes"], time.monotonic())
            dropped = self.requests.dropped()
        sends = [[order.tag, order.node] for order in orders]
        reply = {"send": sends, "drop": dropped, "ttl_s": self._ttl_s}
        reply |= {"over": over, "another": self._follows}
        unix_socket.send(connection, json.dumps(reply).encode())
        for order in orders:
            unix_socket.send(connection, order.head, order.frame)
        return not over

    def _take_answer(self, connection: socket.socket, tag: int) -> None:
        """Read one answer; what is none is read and thrown away, and counts as lost."""
        said = unix_socket.receive(connection, envelope.MAX_HEAD_BYTES)
        size = unix_socket.announced(connection)
        try:
            head = EnvelopeHeader.decode(said)
            with self._lock:
                self.requests.check(tag, head, size)
        except ProtocolError:
            unix_socket.skip(connection, size)
            with self._lock:
                self.requests.lost(tag)
            return
        release = self._reserve(size)
        arrival = None
        try:
            frame = memoryview(unix_socket.read(connection, size)).toreadonly()
            head.check_frame(frame)
            with self._lock:  # so that nothing arrives after a withdrawal
                arrival = self.requests.take(tag, head, frame, release)
                if arrival is not None:
                    self.arrivals.put(arrival)
        except ProtocolError:
            with self._lock:
                self.requests.lost(tag)
        finally:
            if not isinstance(arrival, SiteReply):
                release()

    def _reserve(self, size: int) -> Callable[[], None]:
        """Wait until an answer of this size may be read; what to call when it has been used."""
        if size <= PART_BYTES:
            return lambda: None
        while not self._room.acquire(timeout=_LOOK_S):
            if self._over.is_set():
                raise LinkError("the server was stopped")
        return once(self._room.release)


def _app_turn(data: Buffer) -> dict[str, list[int]]:
    try:
        content: Any = json.loads(bytes(data))
        turn = {name: content[name] for name in ("nodes", "lost", "answers")}
        for numbers in turn.values():
            is_list = isinstance(numbers, list) and len(numbers) <= _MAX_NODES
            if not is_list or not all(isinstance(number, int) for number in numbers):
                raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise MalformedMessage("the app sent something that is not its turn") from None
    return turn
