"""The record of the running exchange: what was asked and answered is neither asked nor answered again."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from secfed.errors import ConfigError, TranscriptError
from secfed.server.exchange_log import AskRecord, ReplayableExchange
from secfed.storage import atomic, failpoints
from tests.secfed.checkpoint_case import SITES, Crash, answers

BELONGS = bytes(range(32))
MIB = 1 << 20


def recorded(folder: Path, ask: Any) -> ReplayableExchange:
    made = ReplayableExchange(ask, folder)
    made.open("000001-00", BELONGS)
    return made


def collect(
    asks: ReplayableExchange, stage: str = "train", request: bytes = b"do", sites: Sequence[str] = SITES
) -> Any:
    got: list[tuple[str, bytes]] = []
    asks.ask(stage, dict.fromkeys(sites, request), lambda site, reply: got.append((site, bytes(reply))))
    return got


def test_a_closed_step_is_answered_from_the_record_in_the_same_order(tmp_path):
    replies = {"c": b"3", "a": b"1" * (3 * MIB + 7), "b": b""}
    first = recorded(tmp_path, answers(replies))
    given = collect(first, sites=("c", "a", "b"))
    first.close()
    calls: list[Any] = []
    again = recorded(tmp_path, answers({}, calls))
    assert collect(again, sites=("c", "a", "b")) == given
    assert not calls
    again.end()
    assert not list(tmp_path.iterdir())


def test_of_an_open_step_only_those_are_asked_who_have_not_answered(tmp_path, monkeypatch):
    first = recorded(tmp_path, answers({"a": b"1", "b": b"2", "c": b"3"}))
    seen = 0

    def reached(name: str) -> None:
        nonlocal seen
        seen += name == "aggregate: after a reply is recorded"
        if seen == 2:
            raise Crash

    monkeypatch.setattr(failpoints, "failpoint", reached)
    with pytest.raises(Crash):
        collect(first)
    first.close()
    monkeypatch.setattr(failpoints, "failpoint", lambda _: None)
    calls: list[Any] = []
    again = recorded(tmp_path, answers({"c": b"other"}, calls))
    assert collect(again) == [("a", b"1"), ("b", b"2"), ("c", b"other")]
    assert calls == [("train", ["c"])]
    again.close()
    third = recorded(tmp_path, answers({}, calls))
    assert len(collect(third)) == 3
    assert len(calls) == 1
    third.close()


def test_a_site_that_did_not_answer_before_the_step_was_closed_is_not_asked_again(tmp_path):
    first = recorded(tmp_path, answers({"a": b"1"}))
    collect(first)
    first.close()
    calls: list[Any] = []
    again = recorded(tmp_path, answers({"b": b"late"}, calls))
    assert collect(again) == [("a", b"1")]
    assert not calls
    again.close()


@pytest.mark.parametrize("change", ["stage", "request", "sites"])
def test_other_requests_than_recorded_are_an_error_and_do_not_leave(tmp_path, change):
    first = recorded(tmp_path, answers({"a": b"1"}))
    collect(first)
    first.close()
    calls: list[Any] = []
    again = recorded(tmp_path, answers({}, calls))
    changed: dict[str, Any] = {"stage": "mask", "request": b"do not", "sites": ("a", "b")}
    with pytest.raises(TranscriptError, match="cannot be repeated"):
        collect(again, **{change: changed[change]})
    assert not calls
    again.close()


def test_every_possible_torn_end_gives_a_whole_beginning(tmp_path):
    first = recorded(tmp_path, answers({"a": b"one", "b": b"two"}))
    collect(first)
    first.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    start = len(b"secfed-asks-1\n") + 32
    seen = set()
    for size in range(start, len(whole) + 1):
        path.write_bytes(whole[:size])
        record = AskRecord(path, BELONGS)
        found = [site for asked in record.past for site, _ in record.replies_of(asked)]
        assert found == ["a", "b"][: len(found)]
        seen.add((len(record.past), len(found), any(asked.closed for asked in record.past)))
        record.close()
        assert whole.startswith(path.read_bytes())
    assert seen == {(0, 0, False), (1, 0, False), (1, 1, False), (1, 2, False), (1, 2, True)}


def test_a_changed_byte_ends_the_record_there(tmp_path):
    first = recorded(tmp_path, answers({"a": b"one", "b": b"two"}))
    collect(first)
    first.close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"two")] ^= 1
    path.write_bytes(data)
    record = AskRecord(path, BELONGS)
    assert [[site for site, _, _ in asked.replies] for asked in record.past] == [["a"]]
    record.close()


def test_requests_leave_only_after_they_are_on_the_disk(tmp_path, monkeypatch):
    order: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (order.append("sync"), real(descriptor))[1])

    def ask(stage: str, requests: Any, on_reply: Any) -> None:
        order.append("leave")
        on_reply("a", b"1")

    asks = recorded(tmp_path, ask)
    order.clear()
    collect(asks)
    collect(asks, "mask")
    assert order == ["sync", "leave", "sync", "sync", "leave", "sync"]
    asks.close()


def test_a_full_disk_is_an_error_with_a_remedy_and_not_a_dropped_site(tmp_path, monkeypatch):
    asks = recorded(tmp_path, answers({"a": b"1"}))

    def full(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "write", full)
    with pytest.raises(ConfigError, match="free space"):
        collect(asks)
    monkeypatch.undo()
    asks.close()


def test_a_reply_is_in_memory_once_when_it_is_repeated(tmp_path):
    size = 8 * MIB
    first = recorded(tmp_path, answers({site: bytes(size) for site in SITES}))
    collect(first)
    first.close()
    again = recorded(tmp_path, answers({}))
    tracemalloc.start()
    again.ask("train", dict.fromkeys(SITES, b"do"), lambda _site, _reply: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    again.close()
    assert peak < 1.5 * size
