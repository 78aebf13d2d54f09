"""The link between honest parties on a bad day: lost, late, repeated and out-of-order replies, refusals."""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress

import grpc
import pytest

from secfed.deploy.transport.chunking import ChunkedFrame
from secfed.deploy.transport.client import CallFailed, LinkRequest
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.messages import ACCEPTED, OVER, PART_BYTES, REPEATED, Part, Receipt
from secfed.errors import DataError, LinkError, PolicyRefused, RoundAborted
from tests.deploy.link_case import (
    SITES,
    STUDY,
    Watched,
    asking,
    consortium,
    echo,
    fetch,
    unlike,
    wait_until,
)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
def test_frames_of_every_size_travel_both_ways_unaltered(size):
    frame = os.urandom(size)
    with consortium() as c:
        c.run_all(lambda request: bytes(request.frame)[::-1])
        assert unlike(c.collect(dict.fromkeys(SITES, frame)), dict.fromkeys(SITES, frame[::-1])) == []
        up, down = c.server.take_counts()
        assert up == down == dict.fromkeys(SITES, size)
        assert not c.failures


def test_each_site_gets_its_own_request_and_replies_are_handed_over_in_the_asking_thread():
    with consortium() as c:
        c.run_all()
        seen = []
        requests = {site: site.encode() for site in SITES}
        c.link().ask(
            "train", requests, lambda site, reply: seen.append((site, bytes(reply), threading.get_ident()))
        )
        assert sorted(seen) == [(site, site.encode(), threading.get_ident()) for site in SITES]


def test_a_reply_is_handed_over_before_the_others_have_come():
    first_taken = threading.Event()
    with consortium() as c:
        c.run(SITES[0], echo)

        def second(request: LinkRequest) -> bytes:
            assert first_taken.wait(60)
            return bytes(request.frame)

        c.run(SITES[1], second)
        order = []

        def on_reply(site, _reply):
            order.append(site)
            first_taken.set()

        c.link().ask("train", dict.fromkeys(SITES[:2], b"go"), on_reply)
        assert order == [SITES[0], SITES[1]]


def test_a_site_that_does_not_answer_by_the_deadline_is_missing_and_its_late_reply_is_over():
    with consortium() as c:
        c.run_all(sites=SITES[:2])
        late = c.dial(SITES[2])
        thread, replies, watched = asking(c, dict.fromkeys(SITES, b"work"), seconds=1.0)
        request = fetch(late)
        thread.join(60)
        assert set(replies) == set(SITES[:2])
        assert watched.missed == [("mask", SITES[2])]
        assert late.answer(request.request_id, b"too late") == OVER
        # It takes part in the next step as if nothing had happened.
        c.run(SITES[2], echo)
        assert set(c.collect(dict.fromkeys(SITES, b"next"))) == set(SITES)


def test_a_reply_to_an_older_request_never_answers_a_newer_one():
    with consortium() as c:
        site = c.dial(SITES[0])
        thread, _, _ = asking(c, {SITES[0]: b"one"}, seconds=0.5)
        old = fetch(site)
        thread.join(60)
        thread, replies, _ = asking(c, {SITES[0]: b"two"})
        new = fetch(site)
        assert site.answer(old.request_id, b"to one") == OVER
        assert site.answer(os.urandom(16), b"to nothing") == OVER
        assert site.answer(new.request_id, b"to two") == ACCEPTED
        thread.join(60)
        assert replies == {SITES[0]: b"to two"}


def test_the_same_request_comes_again_until_it_is_answered_and_one_reply_counts():
    with consortium() as c:
        site = c.dial(SITES[0])
        thread, replies, _ = asking(c, dict.fromkeys(SITES[:2], b"work"))
        first = fetch(site)
        again = fetch(c.dial(SITES[0]))  # a new process at the same site
        assert (first.request_id, bytes(first.frame)) == (again.request_id, bytes(again.frame))
        assert site.answer(first.request_id, b"reply") == ACCEPTED
        assert site.answer(first.request_id, b"reply") == REPEATED  # the receipt was lost
        assert site.answer(first.request_id, b"another reply") == REPEATED
        other = c.dial(SITES[1])
        assert other.answer(fetch(other).request_id, b"mine") == ACCEPTED
        thread.join(60)
        assert replies == {SITES[0]: b"reply", SITES[1]: b"mine"}
        assert site.answer(first.request_id, b"reply") == REPEATED  # still known when the step is over


def test_a_site_cannot_answer_for_another():
    with consortium() as c:
        first, second = c.dial(SITES[0]), c.dial(SITES[1])
        thread, replies, _ = asking(c, {SITES[0]: b"work"})
        request = fetch(first)
        assert second.answer(request.request_id, b"in its name") == OVER
        assert first.answer(request.request_id, b"mine") == ACCEPTED
        thread.join(60)
        assert replies == {SITES[0]: b"mine"}


def test_a_newer_poll_of_a_site_ends_its_older_one():
    with consortium() as c:
        failed: queue.SimpleQueue[CallFailed] = queue.SimpleQueue()

        def poll():
            try:
                fetch(c.dial(SITES[0]))
            except CallFailed as error:
                failed.put(error)

        older = threading.Thread(target=poll)
        older.start()
        wait_until(lambda: c.server.presence()[SITES[0]].calling)
        newer = threading.Thread(target=poll)
        newer.start()
        assert "newer call" in failed.get(timeout=60).message
        c.server.post({SITES[0]: b"work"})
        newer.join(60)  # the one that is left gets it
        older.join(60)
        assert failed.empty()


def test_a_newer_upload_of_a_site_ends_its_older_one_that_hangs():
    with consortium() as c:
        link = c.dial(SITES[0])
        thread, replies, _ = asking(c, {SITES[0]: b"work"})
        request_id = fetch(link).request_id
        half = iter(ChunkedFrame.wrap(STUDY, request_id, bytes(3 * PART_BYTES)).parts())
        hang, sent = threading.Event(), threading.Event()

        def hanging():
            yield next(half)
            yield next(half)
            sent.set()
            hang.wait(60)

        call = link._answer.future(hanging())
        assert sent.wait(60)
        assert c.dial(SITES[0]).answer(request_id, bytes(2 * PART_BYTES)) == ACCEPTED
        thread.join(60)
        hang.set()
        assert replies == {SITES[0]: bytes(2 * PART_BYTES)}
        with suppress(grpc.RpcError):  # given up for the newer, or too late: never taken
            assert Receipt.decode(call.result(timeout=60)).outcome == REPEATED


def test_what_a_site_refuses_is_told_and_does_not_delay_the_others():
    def refuses(error):
        def handle(_request):
            raise error

        return handle

    with consortium() as c:
        c.run(SITES[0], refuses(PolicyRefused("outside permitted hours\x1b[31m")))
        c.run(SITES[1], refuses(DataError("patient 4711 has a NaN")))
        c.run(SITES[2], echo)
        watched = Watched()
        assert c.collect(dict.fromkeys(SITES, b"go"), watcher=watched) == {SITES[2]: b"go"}
        assert sorted(watched.refusals) == [
            ("train", SITES[0], "PolicyRefused", "this site does not take part"),
            ("train", SITES[1], "SecfedError", "this site cannot do this now"),
        ]
        assert not watched.missed
        assert watched.steps[-1] == ("train", 3, 3)
        # They are asked again in the next step.
        assert c.collect({SITES[2]: b"again"}) == {SITES[2]: b"again"}


def test_an_answered_request_that_comes_again_is_refused_by_the_site():
    with consortium() as c:
        calls = []

        def handle(request):
            calls.append(request.request_id)
            return b"once"

        link = c.dial(SITES[0])
        original = link.next
        kept: list[LinkRequest] = []

        def repeating():
            if kept:
                return kept.pop()
            request = original()
            if request is not None:
                kept.append(request)
            return request

        link.next = repeating
        thread = threading.Thread(target=link.serve, args=(handle,), daemon=True)
        thread.start()
        c.threads.append(thread)
        assert c.collect({SITES[0]: b"go"}) == {SITES[0]: b"once"}
        wait_until(lambda: not kept)
        assert len(calls) == 1


def test_an_error_that_is_not_ours_ends_serving():
    with consortium() as c:
        link = c.dial(SITES[0])
        thread, _, _ = asking(c, {SITES[0]: b"go"}, seconds=0.7)

        def broken(_request):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            link.serve(broken)
        thread.join(60)


def test_an_error_while_replies_are_taken_ends_the_ask_and_frees_the_sites():
    with consortium(limits=ServerLimits(answers_bytes=6 * PART_BYTES)) as c:
        c.run_all()

        def on_reply(_site, _reply):
            raise RoundAborted("a sum out of range")

        for _ in range(6):  # each would keep the room of its replies
            with pytest.raises(RoundAborted):
                c.link().ask("mask", dict.fromkeys(SITES, bytes(2 * PART_BYTES)), on_reply)
        assert set(c.collect(dict.fromkeys(SITES, bytes(2 * PART_BYTES)))) == set(SITES)


@pytest.mark.parametrize(
    "limits", [ServerLimits(answers_bytes=9 * PART_BYTES), ServerLimits(answers=1)], ids=["bytes", "count"]
)
def test_more_large_replies_than_there_is_room_for_come_one_after_the_other(limits):
    with consortium(limits=limits) as c:
        c.run_all()
        frame = os.urandom(5 * PART_BYTES)
        held = []

        def on_reply(site, reply):
            time.sleep(0.2)
            held.append((site, c.server.arrivals.qsize(), bytes(reply) == frame))

        c.link().ask("mask", dict.fromkeys(SITES, frame), on_reply)
        assert sorted(site for site, _, _ in held) == list(SITES)
        assert all(waiting == 0 and right for _, waiting, right in held)


def test_a_request_above_the_sites_own_cap_is_not_taken():
    with consortium() as c:
        link = c.dial(SITES[0], cap=1000)
        thread, _, _ = asking(c, {SITES[0]: bytes(1001)}, seconds=0.7)
        with pytest.raises(LinkError, match="cap of 1000"):
            fetch(link)
        thread.join(60)


def test_a_reply_above_the_aggregators_cap_becomes_a_refusal():
    with consortium(cap=1000) as c:
        c.run(SITES[0], lambda _request: bytes(1001))
        watched = Watched()
        assert c.collect({SITES[0]: b"go"}, watcher=watched) == {}
        assert [(site, kind) for _, site, kind, _ in watched.refusals] == [(SITES[0], "SecfedError")]


def test_why_a_study_is_declined_is_told_in_the_policys_words_and_never_too_long():
    from secfed.deploy.transport.client import refusal_message

    error = PolicyRefused("é" * 5000)
    assert refusal_message("heart", b"", error).reason == "é" * 500
    assert refusal_message("heart", bytes(16), error).reason == "this site does not take part"
    with consortium() as c:
        c.dial(SITES[0]).refuse(b"", PolicyRefused("outside permitted hours\x1b[31m"))
        declined = c.server.presence()[SITES[0]].declined
        assert declined == "PolicyRefused: outside permitted hours [31m"


def test_a_part_in_place_of_a_header_is_refused():
    with consortium() as c:
        link = c.dial(SITES[0])
        with pytest.raises(Exception, match="begins with its header"):
            link._answer(iter([Part(data=b"x").encode()]))
