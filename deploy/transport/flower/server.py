"""The aggregator's half of the link over Flower: a socket at which Flower's ServerApp fetches letters.

What runs as a ServerApp is chosen by whoever may submit an app to the SuperLink. So it is given letters, and
no key. It comes with what it knows, and goes with what there is to send, in turns:

    app -> aggregator   nodes that are there, letters that got lost, and at most one answer
    aggregator -> app   letters to send, letters to forget, and whether the study is over

Memory: one large answer at a time; the next one is not read before the round has used it.
"""

from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.transport.chunking import wrap_all
from secfed.deploy.transport.flower import envelope, unix_socket
from secfed.deploy.transport.flower.dispatcher import FlowerDispatcher
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.flower.unix_socket import UnixSocketListener
from secfed.deploy.transport.link import Offer, Presence, Refused, SiteReply
from secfed.deploy.transport.messages import PART_BYTES, REQUEST_ID_BYTES
from secfed.deploy.transport.progress import Waits
from secfed.errors import LinkError, MalformedMessage, ProtocolError, SecfedError

_MAX_SAID_BYTES: Final = 1 << 20  # ids of some ten thousand nodes
_MAX_NODES: Final = 10_000
_LOOK_S: Final = 0.2
_FAREWELL_S: Final = 5.0  # for the app to come once more, and hear that the study is over


class FlowerServer:
    """Serves one study through Flower; a :class:`~secfed.deploy.transport.carriers.study_server.StudyServer`.

    Args:
        path: of the socket.
        identity: the aggregator's signing key.
        roster: of the consortium.
        offer: study, settings, and the longest reply that is accepted.
        ttl_s: after so long Flower forgets a message.

    Attributes:
        arrivals: replies and refusals, for the round's thread. Each reply must be released.
    """

    def __init__(self, path: Path, identity: Identity, roster: Roster, offer: Offer, *, ttl_s: float) -> None:
        self._path, self._study, self._ttl_s = path, offer.study, ttl_s
        self._post = FlowerDispatcher(identity, roster, offer)
        self._lock = threading.Lock()  # guards _post
        self._room = threading.Semaphore(1)
        self._over, self._away = threading.Event(), threading.Event()
        self._away.set()
        self._listener: UnixSocketListener | None = None
        self.arrivals: queue.SimpleQueue[SiteReply | Refused] = queue.SimpleQueue()

    def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the socket cannot be made.
        """
        self._listener = UnixSocketListener(self._path, self._converse, most=1)

    def stop(self) -> None:
        """Close the socket; where the study is over, end the app's run first."""
        self._over.set()
        if self._listener is not None:
            self._away.wait(_FAREWELL_S)
            self._listener.close()
            self._listener = None

    def post(self, requests: Mapping[str, Buffer]) -> bytes:
        """Ask sites; each request stays open until it is answered, refused or withdrawn."""
        request_id = secrets.token_bytes(REQUEST_ID_BYTES)
        with self._lock:
            self._post.post(wrap_all(self._study, request_id, requests))
        return request_id

    def withdraw(self) -> None:
        """Wait for no reply any more."""
        with self._lock:
            self._post.withdraw()

    def finish(self, last: Mapping[str, Buffer] | None = None) -> None:
        """The study is over; see :meth:`secfed.deploy.transport.grpc.server.LinkServer.finish`."""
        with self._lock:
            self._post.finish(wrap_all(self._study, secrets.token_bytes(REQUEST_ID_BYTES), last or {}))

    def sending(self) -> frozenset[str]:
        """Nobody: how far Flower is with a message cannot be seen from here."""
        return frozenset()

    def waits_for(self, waits: Waits) -> None:
        """What sites are told, with the next offer, about what the aggregator waits for."""
        with self._lock:
            self._post.waits = waits

    def told(self) -> frozenset[str]:
        """Sites that were told that the study is over."""
        with self._lock:
            return frozenset(self._post.told)

    def presence(self) -> dict[str, Presence]:
        """Every site of the roster: it is there while the node that leads to it is."""
        now, seen = time.monotonic(), {}
        with self._lock:
            for site, box in self._post.boxes.items():
                silent = None if box.seen_s is None else max(0.0, now - box.seen_s)
                why = None if box.declined is None else f"{box.declined.kind}: {box.declined.reason}"
                seen[site] = Presence(silent, box.node is not None, box.software, why)
        return seen

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Frame bytes up and down per site since this was last called."""
        with self._lock:
            boxes = self._post.boxes
            up = {site: box.bytes_up for site, box in boxes.items()}
            down = {site: box.bytes_down for site, box in boxes.items()}
            for box in boxes.values():
                box.bytes_up = box.bytes_down = 0
        return up, down

    # --- what the app meets, in a thread of its own -----------------------------------------------------

    def _converse(self, connection: socket.socket) -> None:
        """Take turns with one ServerApp until it goes, or the study is over."""
        self._away.clear()
        try:
            while self._take_turn(connection):
                pass
        finally:
            with self._lock:
                self._post.disconnected()
            self._away.set()

    def _take_turn(self, connection: socket.socket) -> bool:
        said = _said(unix_socket.receive(connection, _MAX_SAID_BYTES))
        with self._lock:
            for tag in said["lost"]:
                self._post.lost(tag)
        for tag in said["answers"]:
            self._take_answer(connection, tag)
        over = self._over.is_set()
        with self._lock:
            if over and not self._post.finished:
                return False  # stopped, and perhaps resumed: the app waits for that
            orders = [] if over else self._post.orders(said["nodes"], time.monotonic())
            dropped = self._post.dropped()
        sends = [[order.tag, order.node] for order in orders]
        turn = {"send": sends, "drop": dropped, "over": over, "ttl_s": self._ttl_s}
        unix_socket.send(connection, json.dumps(turn).encode())
        for order in orders:
            unix_socket.send(connection, order.head)
            unix_socket.send(connection, order.frame)
        return not over

    def _take_answer(self, connection: socket.socket, tag: int) -> None:
        """Read one answer; what is none is read and thrown away, and counts as lost."""
        said = unix_socket.receive(connection, envelope.MAX_HEAD_BYTES)
        size = unix_socket.announced(connection)
        try:
            head = EnvelopeHeader.decode(said)
            with self._lock:
                self._post.check(tag, head, size)
        except ProtocolError:
            unix_socket.skip(connection, size)
            with self._lock:
                self._post.lost(tag)
            return
        release = self._reserve(size)
        try:
            frame = memoryview(unix_socket.read(connection, size)).toreadonly()
            head.check_frame(frame)
            with self._lock:  # so that nothing arrives after a withdrawal
                arrival = self._post.take(tag, head, frame, release)
                if arrival is not None:
                    self.arrivals.put(arrival)
        except ProtocolError:
            with self._lock:
                self._post.lost(tag)
            arrival = None
        except SecfedError:
            release()
            raise
        if not isinstance(arrival, SiteReply):
            release()

    def _reserve(self, size: int) -> Callable[[], None]:
        """Wait until an answer of this size may be read; what to call when it has been used.

        Raises:
            LinkError: the server was stopped meanwhile.
        """
        if size <= PART_BYTES:
            return lambda: None
        while not self._room.acquire(timeout=_LOOK_S):
            if self._over.is_set():
                raise LinkError("the server was stopped")
        held = [True]

        def release() -> None:
            if held:
                held.pop()
                self._room.release()

        return release


def _said(data: Buffer) -> dict[str, list[int]]:
    """What the app says, checked.

    Raises:
        MalformedMessage: not three lists of numbers.
    """
    try:
        content: Any = json.loads(bytes(data))
    except ValueError:
        raise MalformedMessage("the app said something that is no message") from None
    found = {}
    for name in ("nodes", "lost", "answers"):
        numbers = content.get(name) if isinstance(content, dict) else None
        if not isinstance(numbers, list) or len(numbers) > _MAX_NODES:
            raise MalformedMessage("the app said something that is no message")
        if not all(isinstance(number, int) for number in numbers):
            raise MalformedMessage("the app said something that is no message")
        found[name] = numbers
    return found
