"""Letters over Flower's Grid: who is believed, what is dropped, what is sent again. No study behind it."""

from __future__ import annotations

import importlib
import sys
import threading
import tomllib
from collections.abc import Iterator

import pytest
from flwr.app import Context, Message, RecordDict

from secfed.crypto.identity import Identity
from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.flower import envelope, server_app, unix_socket
from secfed.deploy.transport.flower.envelope import EnvelopeHeader
from secfed.deploy.transport.messages import HelloReply
from secfed.errors import BadSignature, ConfigError, LinkError, MalformedMessage, PolicyRefused
from tests.conftest import ROOT
from tests.deploy.flower_case import CAP, SITES, STUDY, Federation, Killed, quick_sockets, run_server_app
from tests.deploy.link_case import Watched, echo, wait_until


@pytest.fixture
def sockets(monkeypatch) -> Iterator:
    with quick_sockets(monkeypatch) as folder:
        yield folder


@pytest.fixture
def federation(sockets) -> Iterator[Federation]:
    made = Federation(sockets)
    yield made
    made.close()


def test_every_hospital_is_found_and_answers(federation):
    for number in range(3):
        federation.hospital(number, lambda request, number=number: bytes(request.frame) + b"%d" % number)
    federation.wait_for(*SITES)
    large = bytes(range(256)) * (1 << 13)  # 2 MiB: more than one part
    replies = federation.collect({SITES[0]: b"a", SITES[1]: large, SITES[2]: b""})
    assert replies == {SITES[0]: b"a0", SITES[1]: large + b"1", SITES[2]: b"2"}
    assert {seen.software for seen in federation.server.presence().values()} == {"secfed test"}
    up, down = federation.server.take_counts()
    assert (up[SITES[1]], down[SITES[1]]) == (len(large) + 1, len(large))


def test_a_node_that_never_answers_is_missing_and_the_others_are_not(federation):
    stuck = threading.Event()

    def hang(message: Message, context: Context) -> Message:
        reply = server_app.client_app(message, context)
        if federation.server.presence()[SITES[2]].calling:
            stuck.wait(60)
        return reply

    federation.hospital(0, echo)
    federation.hospital(1, echo)
    federation.serve(federation.door(SITES[2]), echo)
    federation.node(3, SITES[2], hang)
    federation.wait_for(*SITES)
    watched = Watched()
    replies = federation.collect(dict.fromkeys(SITES, b"go"), seconds=1.0, watcher=watched)
    stuck.set()
    assert set(replies) == set(SITES[:2])
    assert watched.missed == [("train", SITES[2])]


def test_a_node_that_claims_another_hospitals_name_is_not_believed(federation, caplog):
    federation.hospital(0, echo)
    federation.door(SITES[1], name="false", identity=Identity.generate(SITES[1]))
    federation.node(7, "false")
    federation.wait_for(SITES[0])
    wait_until(lambda: federation.grid.sent.count(7) >= 2)
    assert federation.server.presence()[SITES[1]].silent_s is None
    assert "does not speak for a site" in caplog.text
    federation.hospital(1, echo)  # and the true one is found beside it
    federation.wait_for(SITES[1])
    assert federation.collect({SITES[1]: b"go"}) == {SITES[1]: b"go"}


def test_an_answer_in_another_hospitals_name_is_thrown_away_and_asked_for_again(federation):
    """A courier between agent and server that changes answers: it can cost time, not change a bit."""
    changed: list[bytes] = []

    def forge(message: Message, context: Context) -> Message:
        reply = server_app.client_app(message, context)
        head, frame = server_app.unpack(reply.content)
        if frame == b"go" and not changed:
            changed.append(frame)
            return Message(server_app.pack(head, b"no"), reply_to=message)
        return reply

    federation.serve(federation.door(SITES[0]), echo)
    federation.node(1, SITES[0], forge)
    federation.wait_for(SITES[0])
    assert federation.collect({SITES[0]: b"go"}) == {SITES[0]: b"go"}
    assert changed


def test_of_two_nodes_that_lead_to_one_hospital_the_first_is_used_while_it_is_there(federation, caplog):
    federation.hospital(0, echo)
    federation.wait_for(SITES[0])
    federation.node(8, SITES[0])
    wait_until(lambda: "is reached by two nodes; node 1 is used" in caplog.text)
    before = federation.grid.sent.count(8)
    assert federation.collect({SITES[0]: b"go"}) == {SITES[0]: b"go"}
    federation.grid.remove(1)
    wait_until(lambda: federation.grid.sent.count(8) > before)
    federation.wait_for(SITES[0])
    assert federation.collect({SITES[0]: b"again"}) == {SITES[0]: b"again"}


def test_a_reply_that_got_lost_is_fetched_again_and_the_work_is_done_once(federation):
    worked: list[bytes] = []
    lost: list[int] = []

    def work(request) -> bytes:
        worked.append(bytes(request.frame))
        return b"done"

    def lose(node: int, message: Message) -> bool:
        is_request = server_app.unpack(message.content)[1] == b"go"
        if is_request and not lost:
            lost.append(node)
            return True
        return False

    federation.grid.lose = lose
    federation.hospital(0, work)
    federation.wait_for(SITES[0])
    assert federation.collect({SITES[0]: b"go"}) == {SITES[0]: b"done"}
    assert lost == [1]
    assert worked == [b"go"]


def test_a_refusal_is_told_as_a_code(federation):
    def refuse(_request) -> bytes:
        raise PolicyRefused("not on Sundays")

    federation.hospital(0, refuse)
    federation.wait_for(SITES[0])
    watched = Watched()
    assert federation.collect({SITES[0]: b"go"}, watcher=watched) == {}
    assert watched.refusals == [("train", SITES[0], "PolicyRefused", "this site does not take part")]


def test_a_hospital_that_declines_the_study_is_not_asked_until_it_serves_it(federation):
    door = federation.door(SITES[0])
    link = door.dial(STUDY, CAP)
    link.refuse(b"", PolicyRefused("not approved yet"))
    federation.node(1, SITES[0])
    wait_until(lambda: federation.server.presence()[SITES[0]].declined == "PolicyRefused: not approved yet")
    watched = Watched()
    assert federation.collect({SITES[0]: b"go"}, seconds=0.5, watcher=watched) == {}
    assert watched.missed == [("train", SITES[0])]
    federation.serve(door, echo)
    federation.wait_for(SITES[0])
    assert federation.collect({SITES[0]: b"go"}) == {SITES[0]: b"go"}


def test_a_reply_above_the_cap_is_not_taken(sockets):
    federation = Federation(sockets, cap=1000)
    try:
        federation.hospital(0, lambda _: bytes(1001))
        federation.wait_for(SITES[0])
        watched = Watched()
        assert federation.collect({SITES[0]: b"go"}, seconds=0.8, watcher=watched) == {}
        assert watched.missed == [("train", SITES[0])]
    finally:
        federation.close()


def test_a_request_above_the_hospitals_cap_is_not_read(federation):
    seen: list[int] = []

    def note(request) -> bytes:
        seen.append(len(request.frame))
        return b""

    federation.serve(federation.door(SITES[0]), note, cap=1000)
    federation.node(1, SITES[0])
    federation.wait_for(SITES[0])
    assert federation.collect({SITES[0]: bytes(1001)}, seconds=1.0) == {}
    assert not seen
    assert federation.collect({SITES[0]: bytes(1000)}) == {SITES[0]: b""}
    assert seen == [1000]


def test_an_app_that_dies_loses_nothing_but_time(federation):
    """The letter under way with it is sent again by the next one, and the work is not done again."""
    worked: list[bytes] = []
    at_work, done = threading.Event(), threading.Event()

    def work(request) -> bytes:
        worked.append(bytes(request.frame))
        at_work.set()
        done.wait(60)
        return b"done"

    def dies() -> list[int]:
        raise Killed

    federation.hospital(0, work)
    federation.wait_for(SITES[0])
    replies: list[dict[str, bytes]] = []
    asking = threading.Thread(target=lambda: replies.append(federation.collect({SITES[0]: b"go"})))
    asking.start()
    assert at_work.wait(60)
    alive, federation.grid.get_node_ids = federation.grid.get_node_ids, dies
    federation.app.join(60)
    assert not federation.app.is_alive()
    federation.grid.get_node_ids = alive
    federation.app = run_server_app(federation.grid, federation.path)
    done.set()
    asking.join(60)
    assert replies == [{SITES[0]: b"done"}]
    assert worked == [b"go"]


def test_the_end_of_a_study_brings_the_last_request_and_then_the_news(federation):
    got: list[bytes] = []

    def take(request) -> bytes:
        got.append(bytes(request.frame))
        return b"thanks"

    federation.hospital(0, take)
    federation.wait_for(SITES[0])
    federation.server.finish({SITES[0]: b"model"})
    federation.threads[0].join(60)
    assert not federation.threads[0].is_alive()  # it was told that the study is over
    wait_until(lambda: federation.server.informed() == {SITES[0]})
    assert got == [b"model"]


# --- who is believed at a hospital's door -------------------------------------------------------------


def brought(path, head: bytes, frame: bytes) -> bytes:
    """The head of the answer, if there is one."""
    with unix_socket.connect(path, 10.0) as connection:
        unix_socket.send(connection, head, frame)
        return bytes(unix_socket.receive(connection, envelope.MAX_HEAD_BYTES))


def offer_of(identity: Identity) -> tuple[bytes, bytes]:
    parcel = ChunkedFrame.wrap(STUDY, bytes(16), HelloReply(STUDY, b"[study]\n", 1000).encode())
    return EnvelopeHeader.sign(identity, envelope.OFFER, "", parcel).encode(), bytes(parcel.frame)


def test_a_hospital_believes_no_letter_that_the_pinned_aggregator_did_not_sign(federation):
    door = federation.door(SITES[0])
    path = federation.sockets / f"{SITES[0]}.sock"
    with pytest.raises(LinkError, match=r"hung up|socket failed"):
        brought(path, *offer_of(Identity.generate("aggregator")))
    assert door.offer is None
    head, frame = offer_of(federation.centre)
    with pytest.raises(LinkError, match=r"hung up|socket failed"):
        brought(path, head, frame[:-1] + bytes([frame[-1] ^ 1]))
    assert door.offer is None
    answer = EnvelopeHeader.decode(brought(path, head, frame))
    answer.check(federation.identities[SITES[0]].public_bytes, SITES[0])
    assert answer.kind == envelope.HERE
    assert door.offer is not None


def test_a_request_for_another_hospital_is_not_taken(federation):
    federation.hospital(0, echo)
    federation.wait_for(SITES[0])
    parcel = ChunkedFrame.wrap(STUDY, bytes(16), b"go")
    head = EnvelopeHeader.sign(federation.centre, envelope.REQUEST, SITES[1], parcel).encode()
    with pytest.raises(LinkError, match=r"hung up|socket failed"):
        brought(federation.sockets / f"{SITES[0]}.sock", head, b"go")
    own = EnvelopeHeader.sign(federation.centre, envelope.REQUEST, SITES[0], parcel).encode()
    answer = EnvelopeHeader.decode(brought(federation.sockets / f"{SITES[0]}.sock", own, b"go"))
    assert answer.kind == envelope.REPLY  # such a letter of its own it takes


def test_a_letter_that_was_changed_does_not_verify(federation):
    parcel = ChunkedFrame.wrap(STUDY, bytes(16), b"go")
    encoded = EnvelopeHeader.sign(federation.centre, envelope.REQUEST, SITES[0], parcel).encode()
    for at in range(len(encoded)):
        changed = bytearray(encoded)
        changed[at] ^= 1
        with pytest.raises((BadSignature, MalformedMessage)):
            EnvelopeHeader.decode(changed).check(federation.centre.public_bytes, "the aggregator")
    EnvelopeHeader.decode(encoded).check(federation.centre.public_bytes, "the aggregator")


# --- clear errors -------------------------------------------------------------------------------------


def message() -> Message:
    return Message(server_app.pack(b"head", b"frame"), 1, server_app.MESSAGE_TYPE)


def test_a_node_or_a_run_without_a_socket_says_what_to_add(sockets):
    with pytest.raises(ConfigError, match=r"--node-config names no 'secfed-socket'"):
        server_app.client_app(message(), Context(1, 1, {}, RecordDict(), {}))
    with pytest.raises(ConfigError, match=r"--run-config names no 'secfed-socket'"):
        server_app.server_app(None, Context(1, 1, {}, RecordDict(), {}))


def test_a_hospital_whose_agent_is_not_running_gives_no_answer(sockets, caplog):
    context = Context(1, 1, {server_app.SOCKET: str(sockets / "none.sock")}, RecordDict(), {})
    reply = server_app.client_app(message(), context)
    assert server_app.unpack(reply.content) == (b"", b"")
    assert "nobody can be reached at this socket" in caplog.text


def test_without_a_study_centre_the_app_ends_with_a_reason(sockets, monkeypatch):
    monkeypatch.setattr(server_app, "PATIENCE_S", 0.0)
    context = Context(1, 1, {}, RecordDict(), {server_app.SOCKET: str(sockets / "none.sock")})
    with pytest.raises(LinkError, match="nobody can be reached at this socket"):
        server_app.server_app(None, context)


def test_a_message_that_holds_no_letter_is_refused():
    with pytest.raises(MalformedMessage, match="holds no envelope"):
        server_app.unpack(RecordDict())


def test_the_app_of_the_example_names_the_couriers(monkeypatch):
    folder = ROOT / "examples" / "flower"
    app = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    monkeypatch.syspath_prepend(str(folder))
    for part, courier in (("serverapp", server_app.server_app), ("clientapp", server_app.client_app)):
        module, _, name = app["components"][part].partition(":")
        assert getattr(importlib.import_module(module), name) is courier
    monkeypatch.delitem(sys.modules, "courier")
    assert server_app.SOCKET in app["config"]  # or --run-config could not name another
