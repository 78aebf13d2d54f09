"""The aggregator dies at every named point, and after any number of steps, and goes on as if it had not.

Undisturbed and disturbed runs have different keys; what must be equal is the model, byte for byte, and the
sums in the transcript: who was in each, under which attempt, and that no exchange was summed twice.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from secfed.errors import ConfigError, TranscriptError
from secfed.records.chain_file import verify_file
from secfed.records.transcript import MODEL, SUMMED, TRANSCRIPT
from secfed.storage import failpoints
from tests.deploy.central_case import Crash, Hospitals, crash_at

DOWN = {"hospital-2": {"mask"}}  # advertises and shares, then falls silent: its mask secret must be rebuilt
POINTS = {
    "aggregate: before the settings are in the transcript": 1,
    "aggregate: before a checkpoint is written": 3,
    "aggregate: after a checkpoint is written": 3,
    "aggregate: after a checkpoint is in the transcript": 3,
    "aggregate: after a checkpoint is in place": 3,
    "aggregate: before an ask is recorded": 16,
    "aggregate: after an ask is recorded": 16,
    "aggregate: before a reply is recorded": 56,
    "aggregate: after a reply is recorded": 56,
    "aggregate: after a reply is used": 56,
    "aggregate: before a step is closed": 16,
    "aggregate: after a step is closed": 16,
    "aggregate: before summed is in the transcript": 2,
    "aggregate: after summed is in the transcript": 2,
    "aggregate: before the results are written": 1,
    "aggregate: after the model is written": 1,
    "aggregate: before model is in the transcript": 1,
    "aggregate: after model is in the transcript": 1,
    "aggregate: after the results are written": 1,
}
STEP_CLOSED = "aggregate: after a step is closed"
SEALED_POINTS = {"aggregate: before a sum is stored": 2, "aggregate: after a sum is stored": 2}


def hospitals(folder: Path, protection: str) -> Hospitals:
    if protection == "encrypted":
        pytest.importorskip("tenseal")
    made = Hospitals(folder, protection_name=protection, rounds=1)
    made.down = DOWN
    return made


def sums(h: Hospitals) -> list[tuple[Any, ...]]:
    """What the aggregator's transcript says was summed."""
    entries = verify_file(h.out / "transcript.jsonl", h.aggregator.public_bytes, TRANSCRIPT)
    keys = ("round", "exchange", "attempt", "cohort", "survivors")
    return [tuple(map(str, map(entry.body.get, keys))) for entry in entries if entry.kind == SUMMED]


def models(h: Hospitals) -> list[Any]:
    """What the aggregator's transcript names as the finished model."""
    entries = verify_file(h.out / "transcript.jsonl", h.aggregator.public_bytes, TRANSCRIPT)
    return [dict(entry.body) for entry in entries if entry.kind == MODEL]


def result(h: Hospitals) -> Any:
    """What must not depend on crashes."""
    h.check_transcripts()
    if h.central.protection.traits.aggregator_reads_sums:
        return h.model(), models(h), sums(h)
    from secfed.wire.frames import encode_state

    return encode_state(max(h.sites.values(), key=lambda site: site.sums).replica.model()), sums(h)


def at_count(point: str, *counts: int) -> Callable[[str], bool]:
    """Whether this is the point, reached for one of these times."""
    reached = 0

    def when(name: str) -> bool:
        nonlocal reached
        reached += name == point
        return name == point and reached in counts

    return when


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    @lru_cache
    def run(protection: str) -> tuple[Any, Counter[str]]:
        with pytest.MonkeyPatch.context() as patch:
            names = crash_at(patch, lambda _: False)
            h = hospitals(tmp_path_factory.mktemp(protection), protection)
            h.run()
        return result(h), Counter(names)

    return run


def test_the_points_are_these(undisturbed):
    assert undisturbed("masked")[1] == POINTS


def test_encrypted_sums_have_two_points_more(undisturbed):
    pytest.importorskip("tenseal")
    # The aggregator has no model that it could name.
    expected = {point for point in POINTS if "model is in" not in point} | set(SEALED_POINTS)
    # Sites of encrypted protection have points of their own.
    assert {point for point in undisturbed("encrypted")[1] if point.startswith("aggregate: ")} == expected


@pytest.mark.parametrize(
    ("protection", "point", "time"),
    [
        *(("masked", point, times // 2 + 1) for point, times in POINTS.items()),
        *(("encrypted", point, 2) for point, times in (POINTS | SEALED_POINTS).items() if times > 1),
        *(("closed", point, 2) for point in SEALED_POINTS),
    ],
)
def test_killed_at_each_point(protection, point, time, undisturbed, tmp_path, monkeypatch):
    expected, _ = undisturbed(protection)
    h = hospitals(tmp_path, protection)
    crash_at(monkeypatch, at_count(point, time))
    with pytest.raises(Crash):
        h.run()
    h.run()
    assert result(h) == expected


@pytest.mark.parametrize(
    ("protection", "seed"), [("masked", 1), ("masked", 2), ("encrypted", 3), ("plain", 4), ("closed", 5)]
)
def test_killed_again_and_again(protection, seed, undisturbed, tmp_path, monkeypatch):
    """A process lives for a few steps only, so that it dies while it repeats what others began, too."""
    expected, _ = undisturbed(protection)
    h, chance, deaths = hospitals(tmp_path, protection), random.Random(seed), 0
    while True:
        left = chance.randint(1, 25)

        def when(_: str) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        crash_at(monkeypatch, when)
        try:
            h.run()
        except Crash:
            deaths += 1
            continue
        break
    assert deaths > 5
    assert result(h) == expected


def test_nothing_is_asked_twice_when_the_crash_comes_between_two_messages(undisturbed, tmp_path, monkeypatch):
    h = hospitals(tmp_path, "masked")
    asked: list[tuple[str, str, str]] = []
    crash_at(monkeypatch, at_count(STEP_CLOSED, 3, 7, 11))
    original = h.handle

    def counted(name: str, frame: Any) -> Any:
        asked.append((str(len(asked)), name, bytes(frame).hex()))
        return original(name, frame)

    monkeypatch.setattr(h, "handle", counted)
    for _ in range(3):
        with pytest.raises(Crash):
            h.run()
    h.run()
    frames = [(name, frame) for _, name, frame in asked]
    assert len(set(frames)) == len(frames)
    assert result(h) == undisturbed("masked")[0]


def test_an_upload_that_arrived_counts_although_its_site_is_gone_after_the_restart(tmp_path, monkeypatch):
    h = Hospitals(tmp_path, rounds=1)
    crash_at(monkeypatch, at_count(STEP_CLOSED, 5))  # train, advertise, share, confirm, mask
    with pytest.raises(Crash):
        h.run()
    h.down = {"hospital-1": {"consistency", "unmask", "result", "train"}}
    crash_at(monkeypatch, lambda _: False)
    h.run()
    (first, _) = sums(h)
    assert first[4] == str(list(h.names))
    h.check_transcripts()


def test_the_record_of_an_exchange_is_gone_when_it_is_kept(tmp_path):
    h = Hospitals(tmp_path, rounds=1)
    h.run()
    assert [path.name for path in (h.out / "resume").iterdir()] == ["checkpoint"]


def test_a_finished_run_can_be_started_again_and_asks_nothing(tmp_path):
    h = Hospitals(tmp_path, rounds=1)
    first = h.run()
    model, handled, lines = h.model(), h.handled, (h.out / "transcript.jsonl").read_bytes()
    again = h.run()
    assert (h.model(), h.handled) == (model, handled)
    assert (h.out / "transcript.jsonl").read_bytes() == lines
    assert again == first


def test_the_model_that_is_named_once_is_the_file(undisturbed, tmp_path, monkeypatch):
    """Killed after the file was written and before it was named, and again after it was named."""
    h = hospitals(tmp_path, "masked")
    for point in ("before model is in the transcript", "after model is in the transcript"):
        crash_at(monkeypatch, lambda name, point=point: name.endswith(point))
        with pytest.raises(Crash):
            h.run()
        h.out.joinpath("model.safetensors").unlink()  # as if the disk had not kept it
    crash_at(monkeypatch, lambda _: False)
    h.run()
    (named,) = models(h)
    assert named["sha256"] == hashlib.sha256((h.out / "model.safetensors").read_bytes()).hexdigest()
    assert (named["round"], named["sums"]) == (1, 2)
    assert models(h) == undisturbed("masked")[0][1]


def test_a_model_that_differs_from_the_one_named_is_not_named(tmp_path, monkeypatch):
    h = Hospitals(tmp_path, rounds=1)
    h.run()
    lines = (h.out / "transcript.jsonl").read_bytes()
    monkeypatch.setattr("secfed.deploy.aggregator.run.encode_state", lambda _: b"another")
    with pytest.raises(TranscriptError, match="the finished model differs from what the transcript says"):
        h.run()
    assert (h.out / "transcript.jsonl").read_bytes() == lines


def test_another_version_of_the_study_is_refused(tmp_path):
    h = Hospitals(tmp_path, rounds=1)
    h.run()
    other = Hospitals(tmp_path / "other", rounds=2)
    other.aggregator, other.out = h.aggregator, h.out
    with pytest.raises(ConfigError, match="another version of this study file"):
        other.run()


def half_way(tmp_path, monkeypatch) -> Hospitals:
    h = Hospitals(tmp_path, rounds=1)
    crash_at(monkeypatch, at_count(STEP_CLOSED, 10))
    with pytest.raises(Crash):
        h.run()
    crash_at(monkeypatch, lambda _: False)
    return h


@pytest.mark.parametrize(
    ("file", "at", "why"),
    [
        ("checkpoint", -1, "not the checkpoint that the transcript names"),
        ("*.asks", 20, "not the record of the exchange"),  # what the record belongs to
    ],
)
def test_a_changed_record_is_refused(tmp_path, monkeypatch, file, at, why):
    h = half_way(tmp_path, monkeypatch)
    (path,) = (h.out / "resume").glob(file)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(TranscriptError, match=why):
        h.run()


def test_a_torn_end_of_the_record_is_asked_again(tmp_path, monkeypatch):
    expected = Hospitals(tmp_path / "expected", rounds=1)
    expected.run()
    h = half_way(tmp_path, monkeypatch)
    (path,) = (h.out / "resume").glob("*.asks")
    path.write_bytes(path.read_bytes()[:-50])
    h.run()
    assert h.model() == expected.model()
    h.check_transcripts()


def test_requests_that_differ_after_a_restart_are_not_sent(tmp_path, monkeypatch):
    h = half_way(tmp_path, monkeypatch)
    h.central.study = h.central.study.replace("protection.min_cohort", 4)
    h.central.threshold = lambda cohort: 4  # type: ignore[method-assign]
    handled = h.handled
    with pytest.raises(TranscriptError, match="cannot be repeated"):
        h.run()
    assert h.handled == handled


def test_two_aggregators_on_one_folder_are_one_too_many(tmp_path):
    h = Hospitals(tmp_path, rounds=1)
    first = h.start()
    with pytest.raises(TranscriptError, match="another process"):
        h.start()
    first.close()


def test_an_aborted_round_is_aborted_once(tmp_path, monkeypatch):
    h = Hospitals(tmp_path, rounds=2)
    h.down = {name: {"train"} for name in h.names[1:]}
    crash_at(monkeypatch, lambda name: name == "aggregate: after aborted is in the transcript")
    with pytest.raises(Crash):
        h.run()
    crash_at(monkeypatch, lambda _: False)
    original = failpoints.failpoint
    h.down = {}
    report = h.run()
    assert original is failpoints.failpoint
    entries = verify_file(h.out / "transcript.jsonl", h.aggregator.public_bytes, TRANSCRIPT)
    assert [entry.body["round"] for entry in entries if entry.kind == "aborted"] == [1]
    assert [row.aborted is None for row in report.rounds] == [False, True]
    h.check_transcripts()
