"""secfed as a Flower app: two couriers between sockets, through Flower's public API only.

    secfed aggregate <- socket -> ServerApp <- SuperLink, SuperNode -> ClientApp <- socket -> secfed agent

Whoever may submit an app decides what runs there. So neither app has a key, data or a decision: they carry
envelopes (``envelope.py``), which the two ends sign and check, and keep nothing: what a courier loses is sent
again. What may connect to the sockets is a matter of file permissions. How to install it: examples/flower.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from secfed.deploy.transport.flower import unix_socket
from secfed.errors import ConfigError, LinkError, MalformedMessage, installing

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise ConfigError(
        "Flower is not installed here",
        remedy=installing("flower"),
    ) from None

log = logging.getLogger("secfed.flower")

SOCKET: Final = "secfed-socket"  # key of --node-config at a hospital, and of --run-config at the study centre
MESSAGE_TYPE: Final = "query.letter"
POLL_S: Final = 0.5
PATIENCE_S: Final = 120.0  # for `secfed aggregate` to be started, or started again
_LETTER, _HEAD, _FRAME, _STYPE = "letter", "head", "frame", "secfed.frame"
_MAX_HEAD_BYTES: Final = 4096
_MAX_FRAME_BYTES: Final = 2_000_000_000  # protobuf ends at 2 GiB; the ends know the study's own caps
_MAX_TURN_BYTES: Final = 1 << 20
_LOOKS: Final = 16  # messages that are asked about at a time

Envelope = tuple[bytes, bytes]  # head, frame

client_app = ClientApp()
server_app = ServerApp()


@client_app.query("letter")
def carry(message: Message, context: Context) -> Message:
    """Bring an envelope to the hospital's agent, and its answer back; an empty answer where there is none."""
    head, frame = unpack(message.content)
    path = Path(_named(context.node_config, "this node does not lead to a hospital: --node-config names no"))
    try:
        with unix_socket.connect(path, message.metadata.ttl) as connection:
            unix_socket.send(connection, head, frame)
            answer = _receive(connection)
    except LinkError as error:
        log.warning("no answer from this hospital's agent: %s", error)
        answer = (b"", b"")
    return Message(pack(*answer), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry envelopes for ``secfed aggregate`` until its study is over, or the last of its studies."""
    path = Path(_named(context.run_config, "--run-config names no"))
    while not _serve(grid, path):
        log.warning("`secfed aggregate` hung up, or begins another study; waiting for it")


def _serve(grid: Grid, path: Path) -> bool:
    """Take turns with ``secfed aggregate`` for one study; whether it is over, and no other follows."""
    with _connected(path) as connection:
        courier = Courier(grid)
        try:
            while True:
                nodes, lost, answers = courier.look()
                said = {"nodes": nodes, "lost": lost, "answers": [tag for tag, _ in answers]}
                unix_socket.send(connection, json.dumps(said).encode())
                for _, envelope in answers:
                    unix_socket.send(connection, *envelope)
                turn: dict[str, Any] = json.loads(bytes(unix_socket.receive(connection, _MAX_TURN_BYTES)))
                courier.forget(turn["drop"])
                for tag, node in turn["send"]:
                    courier.send(tag, node, _receive(connection), turn["ttl_s"])
                if turn["over"]:
                    return not turn["another"]
                if not answers:
                    time.sleep(POLL_S)
        except LinkError:
            return False


def _receive(connection: socket.socket) -> Envelope:
    head = bytes(unix_socket.receive(connection, _MAX_HEAD_BYTES))
    return head, bytes(unix_socket.receive(connection, _MAX_FRAME_BYTES))


def _connected(path: Path) -> Any:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            # No timeout: `secfed aggregate` may be busy adding; if it dies, the socket says so at once.
            return unix_socket.connect(path, None)
        except LinkError:
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_S)


class Courier:
    """Envelopes under way in one federation."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: dict[str, int] = {}  # message id -> tag
        self._unsent: list[int] = []

    def look(self) -> tuple[list[int], list[int], list[tuple[int, Envelope]]]:
        """Nodes that are there, tags of envelopes that got lost, and one answer at most."""
        nodes = [int(node) for node in self._grid.get_node_ids()]
        lost, self._unsent = self._unsent, []
        for message_id, tag in list(self._open.items())[:_LOOKS]:
            del self._open[message_id]
            self._open[message_id] = tag  # the next look begins with others
            for reply in self._grid.pull_messages([message_id]):  # one at a time: they can be large
                del self._open[message_id]
                envelope = _envelope_of(reply)
                if envelope is not None:
                    return nodes, lost, [(tag, envelope)]
                lost.append(tag)
                break
        return nodes, lost, []

    def send(self, tag: int, node: int, envelope: Envelope, ttl_s: float) -> None:
        """Send an envelope; one that Flower does not take counts as lost."""
        message = Message(pack(*envelope), node, MESSAGE_TYPE, ttl=ttl_s)
        for message_id in self._grid.push_messages([message]):
            if message_id:
                self._open[message_id] = tag
                return
        self._unsent.append(tag)

    def forget(self, tags: list[int]) -> None:
        """Answers to these are not wanted any more."""
        unwanted = set(tags)
        self._open = {name: tag for name, tag in self._open.items() if tag not in unwanted}


def _envelope_of(reply: Message) -> Envelope | None:
    """The envelope of a reply; None where the node failed, or found no agent."""
    if reply.has_error():
        log.warning("node %d: %s", reply.metadata.src_node_id, reply.error.reason)
        return None
    try:
        envelope = unpack(reply.content)
    except MalformedMessage:
        return None
    return envelope if envelope[0] else None


def pack(head: bytes, frame: bytes) -> RecordDict:
    """An envelope as Flower carries it; the frame is an array, which it carries in pieces."""
    array = Array("uint8", (len(frame),), _STYPE, frame)
    return RecordDict({_LETTER: ConfigRecord({_HEAD: head}), _FRAME: ArrayRecord({_FRAME: array})})


def unpack(content: RecordDict) -> Envelope:
    """The envelope in these records."""
    try:
        head, frame = content.config_records[_LETTER][_HEAD], content.array_records[_FRAME][_FRAME].data
    except KeyError:
        head, frame = None, b""
    if not isinstance(head, bytes) or len(head) > _MAX_HEAD_BYTES:
        raise MalformedMessage("a Flower message that holds no envelope")
    return head, frame


def _named(config: Mapping[str, Any], what: str) -> str:
    named = config.get(SOCKET)
    if not isinstance(named, str) or not named:
        raise ConfigError(f"{what} {SOCKET!r}", remedy=f"add {SOCKET}='\"/path/of/the.sock\"'")
    return named
