"""A hospital on a slow line, or one that means harm, does not keep the room for uploads from the others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator

import grpc
import pytest

from secfed.deploy.transport.grpc.mailbox import Room, Stay
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.messages import PART_BYTES, Header, Part
from tests.deploy.link_case import SITES, STUDY, asking, consortium, fetch, wait_until

FRAME = os.urandom(3 * PART_BYTES)
PATIENT = ServerLimits(answers=1, turn_s=0.2, turn_bytes_per_s=1 << 30, part_timeout_s=300.0)


def test_an_upload_that_stands_still_holds_nobody_up_and_can_begin_again() -> None:
    with consortium(limits=PATIENT) as c:
        thread, replies, _ = asking(c, dict.fromkeys(SITES, FRAME), seconds=240.0)
        slow, others = SITES[0], set(SITES[1:])
        link, began, never = c.dial(slow), threading.Event(), threading.Event()
        request = fetch(link)
        header = Header(STUDY, request.request_id, len(FRAME), hashlib.sha256(FRAME).digest())

        def crawls() -> Iterator[bytes]:
            yield Part(header=header).encode()
            yield Part(data=FRAME[:PART_BYTES]).encode()
            began.set()
            never.wait(300)

        call = link._answer.future(crawls())
        assert began.wait(60)
        c.run_all(sites=others)
        wait_until(lambda: set(replies) == others, 120.0)  # they came through while it was standing there
        assert call.exception(timeout=60).code() is grpc.StatusCode.ABORTED
        never.set()
        assert link.answer(request.request_id, FRAME)  # from the beginning, when nobody waits
        thread.join(60)
        assert set(replies) == set(SITES)
        assert all(reply == FRAME for reply in replies.values())


def test_an_upload_may_take_its_time_while_nobody_waits() -> None:
    async def scenario() -> list[str]:
        ended: list[str] = []
        room = Room(ServerLimits(answers_bytes=10, turn_s=0.0, turn_bytes_per_s=1e9))
        await room.take(6, lambda: ended.append("slow"))
        await room.take(4, lambda: ended.append("other"))  # it fits beside it
        await asyncio.sleep(0.02)
        return ended

    assert asyncio.run(scenario()) == []


def test_what_has_come_is_not_given_up_for_others() -> None:
    async def scenario() -> tuple[bool, list[str]]:
        ended: list[str] = []
        room = Room(ServerLimits(answers_bytes=10, turn_s=0.0, turn_bytes_per_s=1e9))
        stay = await room.take(10, lambda: ended.append("complete"))
        room.received(stay)
        waits = asyncio.ensure_future(room.take(5, lambda: None))
        await asyncio.sleep(0.02)
        early = waits.done()
        room.give_back(10)
        await waits
        return early, ended

    assert asyncio.run(scenario()) == (False, [])


@pytest.mark.parametrize("gave_way", [0, 1, 5])
def test_who_gave_way_may_stay_longer_so_slow_lines_come_through(gave_way: int) -> None:
    async def stay() -> tuple[Stay, float]:
        now_s = asyncio.get_running_loop().time()
        room = Room(ServerLimits(answers_bytes=10, turn_s=4.0, turn_bytes_per_s=1.0))
        return await room.take(6, lambda: None, gave_way), now_s

    made, now_s = asyncio.run(stay())
    assert made.until_s - now_s == pytest.approx(10.0 * 2**gave_way, rel=0.5)
