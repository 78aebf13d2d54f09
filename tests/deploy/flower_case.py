"""A federation in one process: Flower's Grid with the real apps at both ends, and sockets between."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.transport.client import CallFailed, LinkRequest
from secfed.deploy.transport.dispatch import StageDispatcher
from secfed.deploy.transport.flower import dispatcher, server_app
from secfed.deploy.transport.flower.client import FlowerClient, FlowerSiteConnection
from secfed.deploy.transport.flower.server import FlowerServer
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.study_server import Offer
from tests.deploy.link_case import CAP, SITES, STUDY, collect, serving

QUICK = ClientLimits(backoff_s=0.01, backoff_cap_s=0.05, call_s=5.0)
App = Callable[[Message, Context], Message]


class Killed(BaseException):
    """The process of an app dies."""


class FakeGrid(Grid):
    """Nodes in this process, a thread each; one message at a time, as a SuperNode does it.

    Attributes:
        lose: (node, message) -> whether its reply gets lost, as an error.
        sent: nodes that were sent something, in order.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[App, Context, queue.SimpleQueue[Message | None]]] = {}
        self._replies: dict[str, Message] = {}
        self.lose: Callable[[int, Message], bool] = lambda _node, _message: False
        self.sent: list[int] = []
        self._threads: list[threading.Thread] = []

    def add(self, node: int, app: App, socket_path: Path | None) -> None:
        config = {} if socket_path is None else {server_app.SOCKET: str(socket_path)}
        context = Context(1, node, config, RecordDict(), {})
        inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._nodes[node] = (app, context, inbox)
        thread = threading.Thread(target=self._work, args=(node,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def remove(self, node: int) -> None:
        self._nodes.pop(node)[2].put(None)

    def _work(self, node: int) -> None:
        app, context, inbox = self._nodes[node]
        while (message := inbox.get()) is not None:
            try:
                reply = app(message, context)
                if self.lose(node, message):
                    raise ConnectionError("lost")
            except Exception as error:  # noqa: BLE001 - as Flower does it
                reply = Message(Error(1, str(error)), reply_to=message)
            self._replies[message.metadata.message_id] = reply
            assert not context.state, "state is the agent's business"

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(node)
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name  # as Flower's own Grid does it
            if node in self._nodes:
                self._nodes[node][2].put(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def close(self) -> None:
        for node in list(self._nodes):
            self.remove(node)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def run_server_app(grid: Grid, path: Path) -> threading.Thread:
    """The ServerApp, as `flwr run` starts it."""
    context = Context(1, 0, {}, RecordDict(), {server_app.SOCKET: str(path)})

    def run() -> None:
        with suppress(Killed):
            server_app.server_app(grid, context)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@contextmanager
def quick_sockets(monkeypatch: Any) -> Iterator[Path]:
    """A short folder for sockets, and no pauses worth mentioning."""
    for name, number in (("_run_id", 1), ("_node_id", 0), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, number)  # as Flower does it when it starts an app
    monkeypatch.setattr(server_app, "POLL_S", 0.01)
    monkeypatch.setattr(dispatcher, "_OFFER_AGAIN_S", 0.1)
    monkeypatch.setattr(dispatcher, "_DOUBLE_AGAIN_S", 0.3)
    folder = Path(tempfile.mkdtemp(prefix="secfed-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Federation:
    """A server, a ServerApp, and hospitals that answer what a test wants; no study behind it."""

    def __init__(self, sockets: Path, *, cap: int = CAP) -> None:
        self.sockets, self.grid = sockets, FakeGrid()
        self.centre = Identity.generate("aggregator")
        self.identities = {name: Identity.generate(name) for name in SITES}
        self.roster = Roster.of(self.centre, list(self.identities.values()))
        self.path = sockets / "centre.sock"
        offer = Offer(STUDY, b"[study]\n", cap)
        self.server = FlowerServer(self.path, self.centre, dict(self.roster.members), offer, ttl_s=60.0)
        self.server.start()
        self.app = run_server_app(self.grid, self.path)
        self.doors: list[FlowerClient] = []
        self.links: list[FlowerSiteConnection] = []
        self.threads: list[threading.Thread] = []
        self.failures: list[CallFailed] = []

    def door(self, site: str, *, name: str = "", identity: Identity | None = None) -> FlowerClient:
        path = self.sockets / f"{name or site}.sock"
        door = FlowerClient(
            path,
            identity or self.identities[site],
            lambda: self.roster,
            software="secfed test",
            limits=QUICK,
        )
        door.listen()
        self.doors.append(door)
        return door

    def node(self, number: int, name: str, app: App = server_app.client_app) -> None:
        """A SuperNode that names the socket of this hospital."""
        self.grid.add(number, app, self.sockets / f"{name}.sock")

    def serve(
        self, door: FlowerClient, handle: Callable[[LinkRequest], Buffer], *, cap: int = CAP
    ) -> FlowerSiteConnection:
        """An agent behind this door."""
        link = door.dial(STUDY, cap)
        self.links.append(link)
        self.threads.append(serving(link, handle, self.failures))
        return link

    def hospital(self, number: int, handle: Callable[[LinkRequest], Buffer]) -> FlowerSiteConnection:
        """Everything at once: agent, door and node."""
        site = SITES[number]
        link = self.serve(self.door(site), handle)
        self.node(number + 1, site)
        return link

    def collect(self, requests: dict[str, Buffer], **options: Any) -> dict[str, bytes]:
        return collect(self.server, requests, **options)

    def wait_for(self, *sites: str) -> None:
        there = StageDispatcher(self.server, lambda _: 1.0).wait_for(sites, len(sites), 30.0)
        assert len(there) == len(sites)

    def close(self) -> None:
        for link in self.links:
            link.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        self.server.finish()  # or the app would wait for another start
        self.server.stop()
        self.app.join(60)
        assert not self.app.is_alive()
        for door in self.doors:
            door.close()
        self.grid.close()
