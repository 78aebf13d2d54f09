"""What a restarted hospital refuses of an attempt: other messages, changed files, another seed."""

from __future__ import annotations

import pytest

from secfed.crypto.codec import Buffer
from secfed.errors import Replay, SecfedError, TranscriptError, WrongState
from secfed.wire.frames import Step, decode
from tests.secfed.durable_case import VICTIM, Begun, Hospital, Killed, Plug, until


def test_a_message_that_was_cut_off_is_answered_by_the_attempt_that_was_opened(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal knows the attempt, its seed is on the disk, and no message is."""
    plug = Plug(monkeypatch)
    consortium = begun("masked")
    plug.set("site: after begin journalled")

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        plug.only = hospital.identity.name == VICTIM
        if stage != "advertise" or not plug.only or plug.pulled:
            return hospital.handle(frame)
        with pytest.raises(Killed):
            hospital.handle(frame)
        hospital.start()
        assert "attempt-0000000000" in hospital.files
        other = Step(1, 0, 0, b"\x02nonsense").encode()
        with pytest.raises(SecfedError):
            hospital.handle(other)
        return hospital.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    assert next(len(outcome.survivors) for outcome in consortium.outcomes if outcome.sums) == 3


def test_an_attempt_that_ends_after_a_restart_takes_its_answers_with_it(begun: Begun) -> None:
    consortium = begun("masked")
    hospital = until(consortium, "confirm")
    last = next(frame for stage, name, frame, _ in reversed(consortium.frames) if name == VICTIM)
    hospital.start()
    with pytest.raises(SecfedError):
        hospital.handle(Step(1, 0, 0, b"\x02nonsense").encode())
    assert not [name for name in hospital.files if name.startswith("attempt")]
    with pytest.raises(WrongState):
        hospital.handle(last)
    hospital.start()
    assert hospital.open is not None
    with pytest.raises(WrongState):
        hospital.handle(last)


def test_a_message_after_the_result_is_refused(begun: Begun) -> None:
    consortium = begun("masked")
    consortium.run()
    hospital = consortium.hospitals[VICTIM]
    with pytest.raises(Replay, match="is over"):
        hospital.handle(Step(2, 0, 0, b"\x02nonsense").encode())
    assert hospital.files == ["answer", "position"]


@pytest.mark.parametrize("name", ["contribution", "work", "attempt-0000000000"])
def test_a_changed_file_is_refused(name: str, begun: Begun) -> None:
    consortium = begun("masked")
    hospital = until(consortium, "mask")
    assert hospital.open is not None
    path = hospital.open.folder / "work" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(TranscriptError, match=name):
        hospital.start()
    hospital.open = None


def test_an_attempt_whose_seed_is_gone_is_not_served_with_another_one(begun: Begun) -> None:
    """The journal takes an entry again only for the very same attempt."""
    consortium = begun("masked")
    hospital = until(consortium, "mask")
    assert hospital.open is not None
    (hospital.open.folder / "work" / "attempt-0000000000").unlink()
    spec = next(
        frame
        for _, name, frame, _ in consortium.frames
        if name == VICTIM and isinstance(step := decode(frame), Step) and step.attempt == 0
    )
    hospital.start()
    with pytest.raises(Replay):
        hospital.handle(spec)
    assert not [name for name in hospital.files if name.startswith("attempt")]


def test_a_refusal_is_repeated_too_and_its_secrets_are_gone(begun: Begun) -> None:
    consortium = begun("masked")
    hospital = until(consortium, "advertise")
    bad = Step(1, 0, 0, b"\x02nonsense").encode()
    with pytest.raises(SecfedError) as first:
        hospital.handle(bad)
    assert not [name for name in hospital.files if name.startswith("attempt")]
    hospital.start()
    with pytest.raises(type(first.value)) as second:
        hospital.handle(bad)
    assert str(second.value) == str(first.value)
