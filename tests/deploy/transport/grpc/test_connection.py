"""Connections that come and go: restarts, cuts, quorum, silence, and what waiting costs."""

from __future__ import annotations

import os
import threading
import time

import pytest

from secfed.deploy.transport import dispatch
from secfed.deploy.transport.grpc.client import _failures
from secfed.deploy.transport.grpc.peer import grpc
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ClientLimits, ServerLimits
from secfed.deploy.transport.messages import ACCEPTED, PART_BYTES
from secfed.errors import LinkError, PolicyRefused, RosterError
from tests.deploy.link_case import (
    AUTHORITY,
    CAP,
    SITES,
    STUDY,
    asking,
    consortium,
    echo,
    fetch,
    unlike,
    wait_until,
)
from tests.deploy.relay_case import Relay
from tests.ports import free_port


def test_the_aggregator_restarted_on_its_port_is_found_again():
    port = free_port()  # one that nobody is given while the server is away
    with consortium(port=port) as c:
        c.run(SITES[0], echo)
        assert c.collect({SITES[0]: b"before"}) == {SITES[0]: b"before"}
        c.server.stop()
        wait_until(lambda: bool(c.failures))
        offer = c.server.requests._offer
        c.server = LinkServer(f"localhost:{port}", AUTHORITY.aggregator(), SITES, offer)
        c.server.start()
        assert c.collect({SITES[0]: b"after"}) == {SITES[0]: b"after"}
        assert all(isinstance(error, LinkError) and not error.lasting for error in c.failures)


def test_an_ipv6_address_is_shown_as_people_write_it():

    class Unavailable(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return "last error: UNKNOWN: ipv6:%5B::1%5D:8443: Connection refused"

    with pytest.raises(LinkError) as caught, _failures():
        raise Unavailable
    assert "ipv6:[::1]:8443: Connection refused" in caught.value.message


def test_connections_that_are_asked_to_prove_themselves_anew_lose_nothing():
    with consortium(limits=ServerLimits(connection_age_s=0.3)) as c:  # a busy machine needs that to connect
        c.run_all()
        end = time.monotonic() + 1.8
        while time.monotonic() < end:
            sent = dict.fromkeys(SITES, os.urandom(2 * PART_BYTES))
            assert unlike(c.collect(sent), sent) == []


def test_a_connection_cut_during_transfers_costs_nothing_but_time():
    """A relay between site and aggregator cuts every connection after some bytes, then lets all pass."""
    with consortium() as c, Relay(c.server.port, cut_after=[700_000, 2_000_000, 4_500_000]) as relay:
        worked = []

        def handle(request):
            worked.append(request.request_id)
            return bytes(request.frame)

        c.run(SITES[0], handle, address=f"localhost:{relay.port}")
        frame = os.urandom(3 * PART_BYTES)
        assert unlike(c.collect({SITES[0]: frame}), {SITES[0]: frame}) == []
        assert relay.cut == 3
        assert len(worked) == 1
        assert c.failures


def test_settings_are_offered_and_a_site_can_decline_the_study():
    with consortium(settings=b'[study]\nname = "x"\n') as c:
        link = c.dial(SITES[0], study="")
        offered = link.hello()
        assert (offered.study, offered.settings, offered.max_answer_bytes) == (
            STUDY,
            b'[study]\nname = "x"\n',
            CAP,
        )
        link.study = offered.study
        assert link.hello().settings == b""
        aggregator = c.link()
        assert aggregator.present(60.0) == (SITES[0],)
        assert link.refuse(b"", PolicyRefused("algorithm not permitted")) == ACCEPTED
        assert c.server.presence()[SITES[0]].declined == "PolicyRefused: algorithm not permitted"
        assert aggregator.present(60.0) == ()
        thread, _, _ = asking(c, {SITES[0]: b"go"})
        link.answer(fetch(link).request_id, b"yes")  # approved after all
        thread.join(60)
        assert aggregator.present(60.0) == (SITES[0],)


def test_a_site_that_opens_the_study_is_there_and_not_yet_counted():
    """It can still find out that it must refuse, and no round is to begin for that."""
    with consortium(settings=b'[study]\nname = "x"\n') as c:
        link = c.dial(SITES[0], study="")
        link.study = link.hello().study
        link.hello()  # while it opens the study
        aggregator = c.link()
        assert aggregator.present(60.0) == (SITES[0],)
        assert aggregator.wait_for(SITES[:1], 1, 0.0) == ()
        thread, _, _ = asking(c, {SITES[0]: b"go"})
        link.answer(fetch(link).request_id, b"yes")
        thread.join(60)
        assert aggregator.wait_for(SITES[:1], 1, 0.0) == (SITES[0],)


def test_the_quorum_is_waited_for():
    with consortium() as c:
        aggregator = c.link()
        assert aggregator.wait_for(SITES, 1, 0.0) == ()
        c.run(SITES[1], echo)
        threading.Timer(0.3, lambda: c.run(SITES[2], echo)).start()
        assert aggregator.wait_for(SITES, 2, 20.0) == SITES[1:]
        assert aggregator.wait_for(SITES, 3, 0.1) == SITES[1:]


def test_a_silent_site_is_missing_before_the_deadline_and_a_busy_one_is_not():
    with consortium() as c:
        slow = ClientLimits(heartbeat_s=0.1, backoff_s=0.01, backoff_cap_s=0.05)

        def busy(request):
            time.sleep(2.0)
            return b"done"

        c.run(SITES[0], busy, limits=slow)
        gone = c.dial(SITES[1])
        thread, replies, watched = asking(c, dict.fromkeys(SITES[:2], b"go"), seconds=60.0, silent_s=1.0)
        fetch(gone)
        thread.join(60)
        assert replies == {SITES[0]: b"done"}
        assert watched.missed == [("mask", SITES[1])]


def test_a_site_that_declines_the_study_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(dispatch, "_DECLINED_S", 0.3)
    with consortium() as c:
        c.run(SITES[0], lambda _request: time.sleep(1.0) or b"done")
        c.dial(SITES[1]).refuse(b"", PolicyRefused("waits for the approval of this site"))
        thread, replies, watched = asking(c, dict.fromkeys(SITES[:2], b"go"), seconds=300.0, silent_s=300.0)
        thread.join(60)
        assert not thread.is_alive()
        assert replies == {SITES[0]: b"done"}
        assert watched.missed == [("mask", SITES[1])]


def test_an_idle_poll_comes_back_empty():
    with consortium(limits=ServerLimits(poll_s=0.05)) as c:
        assert c.dial(SITES[0]).next() is None


def test_closing_a_link_ends_its_long_poll_at_once():
    with consortium(limits=ServerLimits(poll_s=600.0)) as c:
        link = c.run(SITES[0], echo)
        wait_until(lambda: c.server.presence()[SITES[0]].calling)
        link.close()
        c.threads[0].join(60)
        assert not c.threads[0].is_alive()
        assert not c.failures


def test_asking_an_unknown_site_or_an_unstarted_or_unusable_server_is_an_error():
    with consortium() as c:
        with pytest.raises(RosterError, match="hospital-9"):
            c.link().ask("train", {"hospital-9": b""}, lambda *_: None)
        offer = c.server.requests._offer
        with pytest.raises(LinkError, match="cannot listen"):
            LinkServer(f"localhost:{c.server.port}", AUTHORITY.aggregator(), SITES, offer).start()
        with pytest.raises(LinkError, match="not running"):
            LinkServer("localhost:0", AUTHORITY.aggregator(), SITES, offer).post({SITES[0]: b""})


def test_waiting_sites_need_no_thread_each():
    names = tuple(f"site-{index:03d}" for index in range(30))
    with consortium(sites=names, limits=ServerLimits(poll_s=2.0)) as c:
        before = threading.active_count()
        tls = [AUTHORITY.site(name) for name in names]
        links = [c.dial(one) for one in tls]
        streams = [link._next(b"\x0a" + bytes([len(STUDY)]) + STUDY.encode()) for link in links]
        wait_until(lambda: sum(seen.calling for seen in c.server.presence().values()) == 30)
        server_threads = [thread.name for thread in threading.enumerate() if thread.name == "secfed-link"]
        assert len(server_threads) == 1
        assert threading.active_count() <= before + len(streams) + 1  # the clients' own
        for stream in streams:
            assert list(stream) == []
