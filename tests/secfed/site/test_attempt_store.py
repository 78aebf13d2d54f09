"""A hospital that is killed anywhere loses nothing and repeats nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.messages import peek_type
from secfed.errors import InconsistentView, Replay, SecfedError, WrongState
from secfed.records.chain_file import verify_file
from secfed.records.transcript import RELEASED, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE
from secfed.site import durable_store
from secfed.site.opening_session import OpeningSession
from secfed.storage import signed_files
from secfed.wire.frames import Notice, Step, Task, decode, encode_state
from tests.crypto.encrypted_case import resigned
from tests.secfed.durable_case import (
    NAMES,
    VICTIM,
    Begun,
    Consortium,
    Hospital,
    Killed,
    Plug,
    pulling,
    study,
    until,
)

KINDS = [("masked", None), ("masked", "record"), ("masked", "site"), ("closed", None), ("encrypted", None)]


def _needs(protected: str) -> None:
    if protected == "encrypted":
        pytest.importorskip("tenseal")


class Models(dict[tuple[str, str | None], bytes]):
    """Models of undisturbed runs, made when they are first needed."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, kind: tuple[str, str | None]) -> bytes:
        consortium = Consortium(study(*kind), self._factory.mktemp("undisturbed") / "x")
        self[kind] = consortium.run()
        consortium.close()
        return self[kind]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory)


def _kinds_of(hospital: Hospital) -> list[tuple[str, int]]:
    assert hospital.open is not None
    path = hospital.open.folder / TRANSCRIPT_FILE
    entries = verify_file(path, hospital.identity.public_bytes, TRANSCRIPT)
    return [(entry.kind, entry.body["round"]) for entry in entries if entry.kind in (SUMMED, RELEASED)]


@pytest.mark.parametrize(
    ("protected", "unit"), [*KINDS, pytest.param("sparse", None, marks=pytest.mark.slow)]
)
def test_a_restart_after_every_message_gives_the_same_answers(
    protected: str, unit: str | None, begun: Begun, undisturbed: Models
) -> None:
    _needs(protected)
    consortium = begun(protected, unit)
    compared: list[str] = []

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        first = hospital.handle(frame)
        hospital.start()
        again = hospital.handle(frame)
        assert again == first
        compared.append(stage)
        return again

    consortium.deliver = deliver
    assert consortium.run() == undisturbed[protected, unit]
    assert all(reply is not None for _, _, _, reply in consortium.frames)
    stages = {"masked": {"train", "advertise", "share", "confirm", "mask", "consistency", "unmask", "result"}}
    stages["sparse"] = stages["masked"] | {"choose"}
    stages["closed"] = stages["masked"] | {"keys"}
    assert set(compared) >= stages.get(protected, {"keys", "train", "mask", "result"})
    works = 2 if unit is None else 1
    for hospital in consortium.hospitals.values():
        assert hospital.trained == works  # never again
        assert _kinds_of(hospital).count((SUMMED, 1)) == 1
        if unit is not None:
            assert len(hospital.payments()) == 1


@pytest.mark.parametrize(("protected", "unit"), [("masked", "record"), ("closed", None), ("encrypted", None)])
def test_a_kill_at_every_point_changes_nothing(
    protected: str,
    unit: str | None,
    begun: Begun,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Models,
) -> None:
    _needs(protected)
    plug = Plug(monkeypatch)
    probe = begun(protected, unit)
    probe.deliver = pulling(plug)
    probe.run()
    passed = tuple(plug.passed)
    points = list(dict.fromkeys(passed))
    assert len(points) >= (20 if protected == "masked" else 14)
    if protected != "masked":  # the others are the same code as under masks
        chosen = ("state", "answer", "secrets", "upload noted", "sum noted")
        points = [name for name in points if any(word in name for word in chosen)]
    for point in points:
        times = passed.count(point)
        plug.set(point, 1 + (times - 1) // 2)
        consortium = begun(protected, unit)
        consortium.deliver = pulling(plug)
        assert consortium.run() == undisturbed[protected, unit], point
        assert plug.pulled == 1, point
        assert [outcome.survivors for outcome in consortium.outcomes if outcome.sums] == [NAMES] * len(
            [outcome for outcome in consortium.outcomes if outcome.sums]
        ), point
        assert _kinds_of(consortium.hospitals[VICTIM]).count((SUMMED, 1)) == 1, point
        if unit is not None:
            assert len(consortium.hospitals[VICTIM].payments()) == 1, point


def test_work_that_was_paid_for_is_done_again_with_the_same_randomness(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside simulation, too: fresh keys, but the same ones after the kill; so one release, paid once."""
    plug, written = Plug(monkeypatch), []
    encode = durable_store.encode_summands
    monkeypatch.setattr(
        durable_store, "encode_summands", lambda summands: written.append(encode(summands)) or written[-1]
    )
    consortium = begun("masked", "record", simulated=False)
    hospital = consortium.hospitals[VICTIM]
    task = _task(consortium)
    plug.only = True
    for point in ("site: after paid", "site: before contribution noted"):
        plug.set(point)
        with pytest.raises(Killed):
            hospital.handle(task)
        hospital.start()
    plug.set("site: after contribution noted")
    with pytest.raises(Killed):
        hospital.handle(task)
    hospital.start()
    assert hospital.handle(task) == b"ready"
    assert hospital.trained == 3 - 1  # the first kill came before it, the last one after it was kept
    assert len(hospital.payments()) == 1
    assert len(set(written)) == 1
    other = consortium.hospitals[NAMES[0]]
    other.handle(task)
    assert written[-1] != written[0]


def _task(consortium: Consortium, round_number: int = 1, shift: float = 0.0) -> bytes:
    exchange = consortium.terms.algorithm.exchanges(round_number)[0]
    state = consortium.terms.algorithm.server().broadcast(round_number, exchange)
    moved = {name: value + shift for name, value in state.items()}
    return Task(consortium.terms.study_id, round_number, 0, exchange.name, encode_state(moved)).encode()


def test_an_exchange_that_was_begun_is_not_begun_from_another_broadcast(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same randomness on two inputs would be two releases for one payment."""
    plug = Plug(monkeypatch)
    consortium = begun("masked", "record")
    hospital = consortium.hospitals[VICTIM]
    plug.only = True
    plug.set("site: after paid")
    with pytest.raises(Killed):
        hospital.handle(_task(consortium))
    hospital.start()
    with pytest.raises(InconsistentView):
        hospital.handle(_task(consortium, shift=0.5))
    assert hospital.handle(_task(consortium)) == b"ready"
    with pytest.raises(InconsistentView):
        hospital.handle(_task(consortium, shift=0.5))
    assert hospital.trained == 1
    assert len(hospital.payments()) == 1


def test_an_aggregator_that_asks_again_gets_the_work_that_is_there(begun: Begun) -> None:
    consortium = begun("masked")
    hospital = consortium.hospitals[VICTIM]
    task = _task(consortium)
    assert hospital.handle(task) == b"ready"
    with pytest.raises(SecfedError):
        hospital.handle(Step(1, 0, 5, b"nonsense").encode())
    assert hospital.handle(task) == b"ready"
    assert hospital.trained == 1
    whole = begun("masked")
    whole.run()
    hospital = whole.hospitals[VICTIM]
    hospital.start()
    with pytest.raises(Replay):
        hospital.handle(_task(whole))  # its update has left
    assert hospital.trained == 2


def test_what_is_on_the_disk_during_an_exchange_is_for_the_owner_only_and_is_destroyed(
    begun: Begun,
) -> None:
    consortium = begun("masked", "site")
    hospital = until(consortium, "unmask")
    assert hospital.open is not None
    work = hospital.open.folder / "work"
    assert set(hospital.files) == {"work", "contribution", "attempt-0000000000"}
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in work.iterdir()} == {0o600}
    whole = begun("masked", "site")
    whole.run()
    for hospital in whole.hospitals.values():
        assert hospital.files == ["answer", "position"]


@pytest.mark.parametrize("point", ["after sum noted", "before state noted"])
def test_a_sum_whose_taking_was_cut_off_is_the_only_one_of_its_exchange(
    point: str, begun: Begun, monkeypatch: pytest.MonkeyPatch, undisturbed: Models
) -> None:
    """A crash must not buy the aggregator a second answer about a ciphertext."""
    _needs("encrypted")
    plug = Plug(monkeypatch)
    consortium = begun("encrypted")
    refused: list[str] = []

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        message = decode(frame)
        is_sum = isinstance(message, Notice) and peek_type(message.message) == Summed.TYPE
        if not is_sum or hospital.identity.name != VICTIM or refused:
            return hospital.handle(frame)
        plug.set(f"site: {point}")
        plug.only = True
        with pytest.raises(Killed):
            hospital.handle(frame)
        plug.only = False
        hospital.start()
        summed = Summed.decode(message.message)
        ciphertext = bytes(reversed(bytes(summed.ciphertext)))
        other = resigned(consortium.rules.identity, summed, ciphertext=ciphertext)
        with pytest.raises(InconsistentView, match="begun before") as error:
            hospital.handle(Notice(other.encode()).encode())
        refused.append(error.value.message)
        return hospital.handle(frame)

    consortium.deliver = deliver
    assert consortium.run() == undisturbed["encrypted", None]
    assert len(refused) == 1


def test_a_site_that_stopped_the_study_stays_stopped(begun: Begun) -> None:
    pytest.importorskip("tenseal")
    consortium = begun("encrypted")
    hospital = until(consortium, "mask")
    assert hospital.open is not None
    assert isinstance(hospital.open.site, OpeningSession)
    hospital.open.site._local.stop()
    hospital.start()  # no file "was changed": nobody is told to remove what keeps it stopped
    with pytest.raises(WrongState, match="stopped the study"):
        hospital.handle(consortium.frames[0][2])


def test_which_broadcasts_were_taken_outlives_a_restart_and_not_the_study(begun: Begun) -> None:
    hospital = begun("masked").hospitals[VICTIM]
    hospital.start()
    assert hospital.open is not None
    assert hospital.open.store.taken() == (0, {})
    taken = {"moments": bytes(range(32)), "own-image": bytes(32)}
    hospital.open.store.take(3, taken)
    hospital.start()
    assert hospital.open.store.taken() == (3, taken)
    hospital.open.store.forget()
    assert hospital.open.store.taken() == (0, {})


@pytest.mark.parametrize("name", ["contribution", "work", "attempt-0000000000"])
def test_a_file_whose_erasure_was_cut_off_is_gone_and_not_changed(
    name: str, begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium = begun("masked")
    hospital = until(consortium, "mask")
    assert hospital.open is not None
    overwrite = signed_files._overwrite

    def cut_off(path: Path) -> None:
        overwrite(path)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(signed_files, "_overwrite", cut_off)
        with pytest.raises(Killed):
            hospital.open.store.files.erase(name)
    hospital.start()
    assert not list((hospital.open.folder / "work").glob(".*"))


def _syncs(monkeypatch: pytest.MonkeyPatch, hospital: Hospital) -> list[str]:
    """What the disk is waited for at one hospital, as it grows."""
    found: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if str(hospital.state) in path:
            found.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert hospital.open is not None
    hospital.open._journal._db.set_trace_callback(lambda sql: found.append(sql) if sql == "COMMIT" else None)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files")
def test_an_exchange_waits_for_the_disk_as_rarely_as_the_rules_permit(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wait for each answer and each entry, two where a file gets its name, one where one is erased."""
    consortium = begun("masked", "record")
    synced = _syncs(monkeypatch, consortium.hospitals[VICTIM])
    consortium.run()
    commits = synced.count("COMMIT")
    assert commits == 3  # begin, uploaded, unmasked; each is five waits of SQLite
    assert len(synced) - commits <= 23, synced


def test_nothing_leaves_before_its_record_is_on_the_disk(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium = begun("masked")
    synced = _syncs(monkeypatch, consortium.hospitals[VICTIM])
    waited: dict[str, list[str]] = {}

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        before = len(synced)
        reply = hospital.handle(frame)
        if hospital.identity.name == VICTIM:
            waited[stage] = [Path(path).name for path in synced[before:]]
        return reply

    consortium.deliver = deliver
    consortium.run()
    for stage in ("advertise", "share", "confirm", "mask", "consistency", "unmask"):
        assert waited[stage][-1] == "attempt-0000000000", stage
    assert "work" in waited["train"]
    order = [name.partition(".")[0] or name.split(".")[1] for name in waited["result"]]
    assert order[1:4] == ["answer", "work", "position"]  # with its name, before anything is given up
