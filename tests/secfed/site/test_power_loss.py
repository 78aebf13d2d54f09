"""A hospital whose machine loses power, or whose disk fails or is full, goes on and says nothing twice."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from secfed.crypto.attempt import AttemptId
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Survivors
from secfed.errors import ConfigError, Replay, TranscriptError, WrongState
from secfed.site.durable_store import DurableStore
from secfed.wire.frames import Step, decode
from tests.secfed.durable_case import NAMES, VICTIM, Consortium, Hospital, Killed, Plug, study

ATTEMPT = "attempt-0000000000"
SECTOR_BYTES = 512


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(study("masked", None), tmp_path / "x")
    yield made
    made.close()


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    return Plug(monkeypatch)


def _at(consortium: Consortium, stage: str, act: Callable[[Hospital, Buffer], None]) -> None:
    """Run until the victim gets the request of a stage."""

    def deliver(now: str, hospital: Hospital, frame: Buffer) -> bytes:
        if (now, hospital.identity.name) == (stage, VICTIM):
            act(hospital, frame)
            raise Killed(stage)
        return hospital.handle(frame)

    consortium.deliver = deliver
    with pytest.raises(Killed):
        consortium.run()


def _work(hospital: Hospital) -> Path:
    assert hospital.open is not None
    return hospital.open.folder / "work"


def _store(hospital: Hospital) -> DurableStore:
    assert hospital.open is not None
    return hospital.open.store


@contextmanager
def _failing(monkeypatch: pytest.MonkeyPatch, call: str, name: str) -> Iterator[None]:
    """No file of that name can be written, or waited for."""
    real = getattr(os, call)

    def fails(descriptor: int, *rest: object) -> object:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.startswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        yield


def test_an_answer_of_which_sectors_were_never_written_is_given_anew(consortium: Consortium) -> None:
    """The disk writes them in its own order; none has left, since nothing leaves before the last."""

    def act(hospital: Hospital, frame: Buffer) -> None:
        path = _work(hospital) / ATTEMPT
        begin = path.stat().st_size
        hospital.handle(frame)
        whole = path.read_bytes()
        sectors = range(begin // SECTOR_BYTES, (len(whole) - 1) // SECTOR_BYTES + 1)
        assert len(sectors) > 2
        for sector in sectors[:-1]:
            first, behind = max(begin, sector * SECTOR_BYTES), (sector + 1) * SECTOR_BYTES
            path.write_bytes(whole[:first] + bytes(behind - first) + whole[behind:])
            hospital.start()
            assert hospital.handle(frame)

    _at(consortium, "share", act)


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files")


@needs_proc
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_after_an_answer_that_could_not_be_kept_no_message_gets_another_ones(
    call: str, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier: list[tuple[Buffer, bytes]] = []

    def act(hospital: Hospital, frame: Buffer) -> None:
        earlier.append((frame, hospital.handle(frame)))
        step = decode(frame)
        assert isinstance(step, Step)
        survivors = Survivors(NAMES).encode()
        then = Step(step.round, step.exchange_index, step.attempt, survivors).encode()
        with _failing(monkeypatch, call, ATTEMPT), pytest.raises(ConfigError):
            hospital.handle(then)
        assert hospital.handle(frame) == earlier[0][1]
        assert len(hospital.handle(then)) != len(earlier[0][1])

    _at(consortium, "mask", act)


@needs_proc
@pytest.mark.parametrize(
    ("stage", "name"), [("advertise", ATTEMPT), ("share", ATTEMPT), ("result", ".answer")]
)
def test_a_site_whose_disk_was_full_answers_when_it_is_asked_again(
    stage: str, name: str, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(now: str, hospital: Hospital, frame: Buffer) -> bytes:
        if (now, hospital.identity.name) == (stage, VICTIM):
            with _failing(monkeypatch, "write", name), pytest.raises(ConfigError):
                hospital.handle(frame)
        return hospital.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    assert all(reply is not None for _, _, _, reply in consortium.frames)
    assert consortium.hospitals[VICTIM].files == ["answer", "position"]


def test_an_attempts_file_of_another_exchange_is_refused(consortium: Consortium) -> None:
    """Its seed would give this exchange's update the masks of the other one's."""
    kept: list[bytes] = []

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        if (stage, hospital.identity.name) != ("advertise", VICTIM):
            return hospital.handle(frame)
        path = _work(hospital) / ATTEMPT
        if not kept:
            reply = hospital.handle(frame)
            data = path.read_bytes()
            kept.append(data[: 8 + int.from_bytes(data[:8], "big") + 64 + 1])
            return reply
        path.write_bytes(kept[0])
        hospital.start()
        with pytest.raises(TranscriptError, match=ATTEMPT):
            hospital.handle(frame)
        raise Killed

    consortium.deliver = deliver
    with pytest.raises(Killed):
        consortium.run()


def test_a_site_that_was_killed_after_its_last_answer_destroys_its_secrets_at_the_next_start(
    consortium: Consortium, plug: Plug
) -> None:
    def act(hospital: Hospital, frame: Buffer) -> None:
        plug.set("site: before secrets erased")
        plug.only = True
        with pytest.raises(Killed):
            hospital.handle(frame)
        plug.only = False
        assert ATTEMPT in hospital.files
        hospital.start()
        assert hospital.files == ["answer", "position"]
        assert hospital.handle(frame) == b""

    _at(consortium, "result", act)


def test_an_attempt_that_cannot_be_rebuilt_is_destroyed(consortium: Consortium) -> None:
    def act(hospital: Hospital, frame: Buffer) -> None:
        def refuse(frame: Buffer) -> NoReturn:
            raise WrongState("refused")

        hospital.handle(frame)
        _store(hospital).rebuild(refuse, lambda: -1)
        assert ATTEMPT not in hospital.files

    _at(consortium, "share", act)


def test_the_journals_entry_is_for_one_message(consortium: Consortium) -> None:
    """Another message in the place of one that was cut off does not get what that one was to get."""

    def act(hospital: Hospital, frame: Buffer) -> None:
        del frame

        def begin(message: bytes) -> None:
            hospital.start()
            store = _store(hospital)
            store.open(0)
            store.note(0, message)
            store.journal(0).begin("tiny", AttemptId(1, 0, 0))

        begin(b"one")
        begin(b"one")
        with pytest.raises(Replay):
            begin(b"another")

    _at(consortium, "advertise", act)
