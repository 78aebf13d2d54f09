"""Checkpoints, the record of the running exchange, and a round that is resumed in its middle."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed import crash_points, durable
from secfed.ask_record import AskRecord, RecordedAsk
from secfed.checkpoints import CHECKPOINT, Checkpoint, KeptRun, OnceLog
from secfed.coordinator import Coordinator, Position
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, TranscriptError
from secfed.journal import Journal
from secfed.protection import PROTECTIONS
from secfed.round import Rules
from secfed.site import Site
from secfed.transcript import ABORTED, SUMMED, TRANSCRIPT, Transcript
from secfed.vector import Exchange, Field, Layout, Totals

SITES = ("a", "b", "c")
BELONGS = bytes(range(32))
MIB = 1 << 20


class Crash(BaseException):
    """The power goes off."""


# --- the record of asks ----------------------------------------------------------------------------------


def answers(reply: Mapping[str, bytes], calls: list[Any] | None = None) -> Any:
    def ask(stage: str, requests: Mapping[str, Any], on_reply: Any) -> None:
        if calls is not None:
            calls.append((stage, sorted(requests)))
        for site in requests:
            if site in reply:
                on_reply(site, reply[site])

    return ask


def recorded(folder: Path, ask: Any) -> RecordedAsk:
    made = RecordedAsk(ask, folder)
    made.open("000001-00", BELONGS)
    return made


def collect(
    asks: RecordedAsk, stage: str = "train", request: bytes = b"do", sites: Sequence[str] = SITES
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
    assert again.replaying
    assert collect(again, sites=("c", "a", "b")) == given
    assert not calls
    assert not again.replaying
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

    monkeypatch.setattr(crash_points, "reached", reached)
    with pytest.raises(Crash):
        collect(first)
    first.close()
    monkeypatch.setattr(crash_points, "reached", lambda _: None)
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

    monkeypatch.setattr(durable.os, "write", full)
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


# --- the transcript --------------------------------------------------------------------------------------


def test_what_was_said_is_not_said_again_and_must_be_the_same(tmp_path):
    identity = Identity.generate("aggregator")
    with Transcript(identity, study="s", roster_digest=bytes(32), sink=tmp_path / "t.jsonl") as log:
        said = [
            log.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a"]}),
            log.append(ABORTED, {"round": 2, "reason": "few"}),
        ]
        once, length = OnceLog(log, said), len(log)
        once.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a"]})
        once.append(ABORTED, {"round": 2, "reason": "few"})
        assert len(log) == length
        with pytest.raises(TranscriptError, match="differs"):
            once.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a", "b"]})
        once.append(SUMMED, {"round": 1, "exchange": "v", "survivors": ["a"]})
        once.append("refused", {"round": 1})
        once.append("refused", {"round": 1})
        assert len(log) == length + 3


# --- checkpoints -----------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_by_bit():
    shared = torch.arange(6, dtype=torch.float64)
    state = {
        "x": shared,
        "same": shared,
        "view": shared[::2],
        "n": torch.tensor(float("nan")),
        "": torch.zeros(()),
    }
    made = Checkpoint(
        "study", Position(3, 1), state, {"sums": 2}, {"rounds": [{"metrics": {"auc": float("nan")}}]}
    )
    back = Checkpoint.decode(made.encode())
    assert (back.study, back.position, back.facts) == ("study", Position(3, 1), {"sums": 2})
    assert list(back.state) != []
    for name, tensor in state.items():
        assert back.state[name].dtype == tensor.dtype
        assert back.state[name].contiguous().numpy().tobytes() == tensor.contiguous().numpy().tobytes()
    assert str(back.notes) == str(made.notes)
    assert Checkpoint.decode(Checkpoint("s", Position(), {}, {}, {}).encode()).state == {}


def kept(folder: Path, log: Transcript, entries: Sequence[Any]) -> KeptRun:
    return KeptRun(folder, "study", log, entries, answers({}))


@pytest.mark.parametrize(
    ("point", "goes_on_at"),
    [
        ("aggregate: before a checkpoint is written", 1),
        ("aggregate: after a checkpoint is written", 1),
        ("aggregate: after a checkpoint is in the transcript", 2),
        ("aggregate: after a checkpoint is in place", 2),
    ],
)
def test_the_transcript_says_which_checkpoint_counts(tmp_path, monkeypatch, point, goes_on_at):
    identity = Identity.generate("aggregator")
    lines: list[bytes] = []
    log = Transcript(identity, study="study", roster_digest=bytes(32), sink=lines.append)

    def entries() -> Any:
        from secfed.transcript import verify

        return verify(lines, identity.public_bytes)

    run = kept(tmp_path, log, entries())
    assert not run.resumed
    run.keep(Position(1), {"x": torch.tensor(1.0)}, {})
    run.asks.close()

    def reached(name: str) -> None:
        if name == point:
            raise Crash

    monkeypatch.setattr(crash_points, "reached", reached)
    with pytest.raises(Crash):
        run.keep(Position(2), {"x": torch.tensor(2.0)}, {})
    monkeypatch.undo()
    again = kept(tmp_path, log, entries())
    assert again.resumed
    assert again.start == Position(goes_on_at)
    assert again.state is not None
    assert float(again.state["x"]) == goes_on_at
    length = len(lines)
    again.keep(Position(goes_on_at), {"x": torch.tensor(float(goes_on_at))}, {})
    assert len(lines) == length  # it is there already
    again.asks.close()
    digests = [entry.body["sha256"] for entry in entries() if entry.kind == CHECKPOINT]
    assert hashlib.sha256((tmp_path / "resume" / "checkpoint").read_bytes()).hexdigest() == digests[-1]
    assert (tmp_path / "resume").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "resume").iterdir())


def test_a_missing_checkpoint_is_an_error_not_a_new_beginning(tmp_path):
    identity = Identity.generate("aggregator")
    with Transcript(identity, study="study", roster_digest=bytes(32)) as log:
        run = kept(tmp_path, log, ())
        entry = log.append(CHECKPOINT, {"round": 1, "exchange_index": 0, "sha256": "00" * 32})
        run.keep(Position(1), {}, {})
        run.asks.close()
        with pytest.raises(TranscriptError, match="not the checkpoint that the transcript names"):
            kept(tmp_path, log, [entry])


# --- a round of two exchanges, resumed at the second -----------------------------------------------------


class TwoStep:
    """Sums a number, then a number that depends on the first sum."""

    def __init__(self) -> None:
        layout = Layout((Field("x", (), 1000.0, 64),), sites=3)
        self.plan = (Exchange("first", "all", layout), Exchange("second", "all", layout))

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        return self.plan if round_number <= 2 else ()

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[str]) -> Sequence[str]:
        return sites

    def server(self) -> TwoStepServer:
        return TwoStepServer()

    def site(self, site_id: str) -> Any:
        return TwoStepSite(SITES.index(site_id) + 1)


class TwoStepServer:
    def __init__(self) -> None:
        self.state = {"x": torch.zeros((), dtype=torch.float64)}

    def broadcast(self, *_: Any) -> dict[str, torch.Tensor]:
        return dict(self.state)

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        self.state = {"x": self.state["x"] / 8 + totals["x"]}

    def model(self) -> dict[str, torch.Tensor]:
        return self.state

    def metrics(self) -> dict[int, Any]:
        return {}

    def save(self) -> dict[str, torch.Tensor]:
        return self.state

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self.state = dict(state)


class TwoStepSite:
    def __init__(self, weight: int) -> None:
        self._weight = weight

    def contribute(self, round_number: int, exchange: Exchange, broadcast: Any) -> dict[str, float]:
        return {"x": self._weight + float(broadcast["x"]) / 4 + (exchange.name == "second")}


class Zeros:
    def words(self, count: int) -> Any:
        import numpy as np

        return np.zeros(count, np.uint32)


class Toy:
    """Sites that answer repeated frames from a record, and an aggregator that dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = Identity.generate("aggregator")
        identities = [Identity.generate(name) for name in SITES]
        self.roster = Roster.of(self.identity, identities)
        self.algorithm = TwoStep()
        self.answered: dict[tuple[str, bytes], bytes] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.sites = {
            identity.name: Site(
                identity=identity,
                roster=self.roster,
                study="study",
                algorithm=self.algorithm,  # type: ignore[arg-type]
                program=self.algorithm.site(identity.name),
                protection=PROTECTIONS["plain"],
                journal=Journal(),
                log=Transcript(identity, study="study", roster_digest=self.roster.digest),
                rounding=lambda *_: Zeros(),
                limits=SiteLimits(min_cohort=2, min_threshold=2),
            )
            for identity in identities
        }

    def ask(self, stage: str, requests: Mapping[str, Any], on_reply: Any) -> None:
        for site, frame in requests.items():
            here = (site, bytes(frame))
            if here not in self.answered:
                self.asked.append(here)
                self.answered[here] = bytes(self.sites[site].handle(frame))
            on_reply(site, self.answered[here])

    def run(self) -> tuple[torch.Tensor, list[tuple[int, str]]]:
        path = self.folder / "transcript.jsonl"
        from secfed.chain_file import verify_file

        rules = Rules("study", self.identity, self.roster, PROTECTIONS["plain"], lambda cohort: cohort, 2)
        log = Transcript(self.identity, study="study", roster_digest=self.roster.digest, sink=path)
        with log:
            entries = verify_file(path, self.identity.public_bytes, TRANSCRIPT)
            run = KeptRun(self.folder, "study", log, entries, self.ask)
            try:
                coordinator = Coordinator(self.algorithm, 2, rules, run.asks.ask, run.log, run)
                coordinator.run(lambda _: None)
            finally:
                run.asks.close()
        entries = verify_file(path, self.identity.public_bytes, TRANSCRIPT)
        sums = [(int(e.body["round"]), str(e.body["exchange"])) for e in entries if e.kind == SUMMED]
        return coordinator.server.model()["x"], sums


def test_a_round_of_two_exchanges_killed_at_any_step(tmp_path, monkeypatch):
    # This ends a process, not the machine: what was written is there, synchronised or not.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    (tmp_path / "whole").mkdir()
    names: list[str] = []
    monkeypatch.setattr(crash_points, "reached", names.append)
    whole = Toy(tmp_path / "whole")
    expected = whole.run()
    assert expected[1] == [(1, "first"), (1, "second"), (2, "first"), (2, "second")]
    for death in range(1, len(names) + 1, 3):
        folder = tmp_path / str(death)
        folder.mkdir()
        toy, count = Toy(folder), 0

        def reached(_: str, death: int = death) -> None:
            nonlocal count
            count += 1
            if count == death:
                raise Crash

        monkeypatch.setattr(crash_points, "reached", reached)
        with pytest.raises(Crash):
            toy.run()
        assert toy.run() == expected
        assert len(toy.asked) == len(whole.asked)  # every frame is that of the undisturbed run
