"""A hostile network: whoever is up to no good is refused, costs little, and delays nobody else."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import grpc
import pytest

from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.client import CallFailed
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.grpc.peer import channel_credentials
from secfed.deploy.transport.grpc.service import SERVICE
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.messages import MAX_MESSAGE_BYTES, PART_BYTES, Header, NextRequest, Part
from tests.deploy.hostile_case import MIB, rss_bytes, tls_context, unaffected
from tests.deploy.link_case import (
    AUTHORITY,
    FAST,
    SITES,
    STUDY,
    Consortium,
    consortium,
    fetch,
)


def send(link: GrpcSiteConnection, messages: list[bytes]) -> grpc.RpcError:
    """Send these messages as an answer; the error that comes back."""
    with pytest.raises(grpc.RpcError) as caught:
        link._answer(iter(messages), timeout=60)
    return caught.value


def open_request(c: Consortium, site: str = SITES[0]) -> bytes:
    return c.server.post({site: b"work"})


def test_wrong_truncated_overlong_and_oversized_replies_are_refused_and_a_right_one_still_counts():
    cap = 4 * MIB
    with consortium(cap=cap) as c:
        c.run_all(sites=SITES[1:])
        link = c.dial(SITES[0])
        got: dict[str, bytes] = {}
        honest = dict.fromkeys(SITES, bytes(100))
        thread = threading.Thread(
            target=lambda: c.link().ask("mask", honest, lambda site, reply: got.update({site: bytes(reply)}))
        )
        thread.start()
        request_id = fetch(link).request_id
        before = rss_bytes()
        good = list(ChunkedFrame.wrap(STUDY, request_id, os.urandom(2 * MIB)).parts())
        wrong_hash = Part(header=Header(STUDY, request_id, 2 * MIB, bytes(32))).encode()
        huge = Part(header=Header(STUDY, request_id, 1 << 62, bytes(32))).encode()
        over = Part(header=Header(STUDY, request_id, cap + 1, bytes(32))).encode()
        tiny = [Part(data=b"x").encode() for _ in range(100)]
        for messages in (
            [wrong_hash, *good[1:]],
            good[:2],  # truncated
            [*good, good[1]],  # more than announced
            [huge, *good[1:]],
            [over, *good[1:]],
            [good[0], *tiny],  # byte by byte
            [],
            [b""],
            [os.urandom(1000)],
            [good[0], os.urandom(1000)],
            [good[0], good[0]],
        ):
            assert send(link, messages).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert send(link, [bytes(MAX_MESSAGE_BYTES + 1)]).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rss_bytes() - before < 32 * MIB
        link.answer(request_id, b"right")
        thread.join(60)
        assert got == {**honest, SITES[0]: b"right"}


@pytest.mark.parametrize("size", [1000, 64 * MIB])
def test_compressed_messages_are_refused_and_not_inflated(size):
    with consortium() as c, unaffected(c, grows_bytes=128 * MIB):  # the bomb is made in this process too
        credentials = channel_credentials(AUTHORITY.site(SITES[0]))
        options = [("grpc.max_send_message_length", -1)]
        with grpc.secure_channel(c.address, credentials, options=options) as channel:
            answer = channel.stream_unary(f"/{SERVICE}/Answer")
            with pytest.raises(grpc.RpcError, match="gzip' is disabled") as caught:
                answer(iter([bytes(size)]), compression=grpc.Compression.Gzip, timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_announced_and_not_sent_costs_no_memory():
    limits = ServerLimits(part_timeout_s=2.0, burst=1000)
    with consortium(cap=1 << 30, limits=limits) as c, unaffected(c, impatient=True):
        request_id = open_request(c)
        header = Part(header=Header(STUDY, request_id, 1 << 30, bytes(32))).encode()
        done = threading.Event()

        def stalls() -> Iterator[bytes]:
            yield header
            yield Part(data=bytes(PART_BYTES)).encode()
            done.wait(60)

        link = c.dial(SITES[0])
        calls = [link._answer.future(stalls()) for _ in range(8)]
        codes = [call.exception(timeout=60).code() for call in calls]
        done.set()
        # All but the last gave way to a newer upload, or to the limit on calls or streams.
        assert grpc.StatusCode.DEADLINE_EXCEEDED in codes
        assert set(codes) <= {
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNAVAILABLE,
        }


@pytest.mark.parametrize("method", ["Hello", "Next", "Answer", "Refuse"])
def test_a_call_that_sends_nothing_is_ended(method):
    with consortium(limits=ServerLimits(part_timeout_s=2.0)) as c, unaffected(c, impatient=True):
        link = c.dial(SITES[0])
        done = threading.Event()

        def silent() -> Iterator[bytes]:
            done.wait(60)
            yield from ()

        stream = link._channel.stream_stream(f"/{SERVICE}/{method}")(silent())
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        done.set()


def test_a_site_that_does_not_read_its_request_is_ended_and_holds_no_copy():
    with consortium(limits=ServerLimits(part_timeout_s=1.0)) as c, unaffected(c, impatient=True):
        link = c.dial(SITES[0])
        c.server.post({SITES[0]: bytes(100 * MIB)})
        before = rss_bytes()
        stream = link._next(NextRequest(STUDY).encode())
        next(stream)
        time.sleep(3.0)
        assert rss_bytes() - before < 32 * MIB
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_site_that_calls_too_often_is_slowed_down_and_the_others_are_not():
    with consortium(limits=ServerLimits(burst=10, calls_per_s=0.01)) as c, unaffected(c):
        link = c.dial(SITES[0])
        codes = []
        for _ in range(30):
            try:
                link.hello()
            except CallFailed as error:
                codes.append(error.message)
        assert len(codes) == 20
        assert all("too many calls" in code for code in codes)


def test_a_site_cannot_open_more_calls_than_it_needs():
    with consortium(limits=ServerLimits(calls_per_site=4, burst=1000)) as c, unaffected(c):
        done = threading.Event()

        def silent() -> Iterator[bytes]:
            done.wait(60)
            yield from ()

        links = [c.dial(SITES[0]) for _ in range(3)]  # each a connection of its own
        calls = [link._channel.stream_unary(f"/{SERVICE}/Hello").future(silent()) for link in links * 4]
        refused = [0]

        def count(call: grpc.Future) -> None:
            refused[0] += call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        for call in calls:
            call.add_done_callback(count)
        end = time.monotonic() + 60
        while refused[0] < 8:
            assert time.monotonic() < end
            time.sleep(0.01)
        done.set()
        for call in calls:
            call.exception(timeout=60)
        assert refused[0] == 8


def test_random_bytes_and_plain_text_on_the_port_are_refused():
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    knocks = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", preface + bytes(9), b"\x16\x03\x01\xff\xff", b""]
    with consortium() as c, unaffected(c):
        for data in [*knocks, *(os.urandom(n) for n in (1, 100, 5000, 200_000))] * 5:
            with socket.create_connection(("localhost", c.server.port), timeout=60) as raw, suppress(OSError):
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(65536):
                    pass


def test_random_bytes_after_a_good_handshake_are_refused(tmp_path):
    with consortium() as c, unaffected(c):
        context = tls_context(ssl.TLSVersion.TLSv1_3, AUTHORITY.site(SITES[0]), tmp_path)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for start in (b"", preface, preface + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))):
            for _ in range(10):
                with (
                    socket.create_connection(("localhost", c.server.port), timeout=60) as raw,
                    suppress(OSError),
                    context.wrap_socket(raw, server_hostname="localhost") as secured,
                ):
                    secured.sendall(start + os.urandom(20_000))
                    while secured.recv(65536):
                        pass


def test_connections_that_say_nothing_are_closed():
    limits = ServerLimits(handshake_s=1.0)
    with consortium(limits=limits) as c, unaffected(c, impatient=True), ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("localhost", c.server.port), timeout=60))
            for _ in range(100)
        ]
        assert c.dial(SITES[0]).hello().study == STUDY  # while they hang
        for raw in silent:
            while raw.recv(4096):  # until the server closes it
                pass


def test_after_a_flood_of_connections_beyond_the_limit_honest_sites_get_in():
    limits = ServerLimits(handshake_s=1.0, connections=20)
    with consortium(limits=limits) as c, ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(("localhost", c.server.port), timeout=60))
        c.run_all()
        assert set(c.collect(dict.fromkeys(SITES, b"go"))) == set(SITES)


def test_refusals_do_not_fill_the_log(caplog):
    with consortium(limits=ServerLimits(burst=1000)) as c:
        link = c.dial("hospital-9", limits=FAST)
        for _ in range(60):
            with pytest.raises(CallFailed):
                link.hello()
    lines = [record for record in caplog.records if record.name == "secfed.wire.transport"]
    assert 10 <= len(lines) <= 25
    assert "hospital-9" in lines[0].getMessage()
