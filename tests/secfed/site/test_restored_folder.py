"""Closed sums at a hospital whose folder was put back from a backup: no stream is used for two vectors."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.codec import Buffer
from secfed.crypto.masked.closing import Closing
from secfed.crypto.masked.masks import MaskStream
from secfed.crypto.messages import Upload, peek_type
from secfed.errors import SecfedError
from secfed.wire.frames import Step, Task, decode
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, study

PEOPLE = tuple(f"hospital-{number}" for number in range(1, 5))


Moment = tuple[int, str]  # round and stage


class Restored:
    """A study in which one hospital's folder, as it was after one moment, is put back before another.

    Attributes:
        uploads: seed of the stream that closed each vector that the hospital sent, and the vector.
        errors: what its people are shown, with the round.
    """

    def __init__(self, folder: Path, after: Moment, before: Moment) -> None:
        chosen = study("closed", None, rounds=2).replace("data.sites", len(PEOPLE))
        self.made = Consortium(chosen, folder / "hospitals", people=PEOPLE)
        self.made.deliver = self._deliver
        self._after, self._before, self._backup = after, before, folder / "backup"
        self._round = 0
        self._left = [after, before]  # moments to come
        self.seeds: list[bytes] = []
        self.uploads: list[tuple[bytes, bytes]] = []
        self.errors: list[tuple[int, str]] = []

    def _deliver(self, stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        message = decode(frame)
        if isinstance(message, Task | Step):
            self._round = message.round
        if hospital.identity.name != VICTIM:
            return hospital.handle(frame)
        if (self._round, stage) == self._before and self._left == [self._before]:
            self._put_back(hospital)
        try:
            reply = hospital.handle(frame)
        except SecfedError as error:
            self.errors.append((self._round, error.message))
            raise
        if (self._round, stage) == self._after and len(self._left) == 2:
            shutil.copytree(hospital.state, self._backup)
            self._left.pop(0)
        if isinstance(message, Step) and peek_type(reply) == Upload.TYPE:
            self.uploads.append((self.seeds[-1], bytes(Upload.decode(reply).vector)))
        return reply

    def _put_back(self, hospital: Hospital) -> None:
        assert hospital.open is not None
        hospital.open.close()
        hospital.open = None
        shutil.rmtree(hospital.state)
        shutil.copytree(self._backup, hospital.state)
        hospital.start()
        self._left.clear()


@pytest.mark.parametrize(
    ("after", "before", "takes_part_in", "sits_out"),
    [
        ((1, "result"), (2, "train"), (1, 2, 3), False),  # nothing was lost
        ((1, "result"), (2, "mask"), (1, 3), False),  # nothing had left: it follows this sum
        ((1, "result"), (2, "consistency"), (1, 2), True),
        ((2, "share"), (2, "consistency"), (1, 2), True),  # with the seed of its attempt
    ],
)
def test_no_stream_closes_two_vectors_and_the_people_are_told(
    after: Moment,
    before: Moment,
    takes_part_in: tuple[int, ...],
    sits_out: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, stream = Restored(tmp_path, after, before), Closing.stream

    def noted(one: Closing, site: str, sign: int) -> MaskStream:
        made = stream(one, site, sign)
        if (site, sign) == (VICTIM, 1):
            case.seeds.append(made.secret)
        return made

    monkeypatch.setattr(Closing, "stream", noted)
    with closing(case.made):
        case.made.run()
        sums = {name: one.open.site.sums for name, one in case.made.hospitals.items() if one.open}
    outcomes = case.made.outcomes
    assert tuple(one.round for one in outcomes if VICTIM in one.survivors) == takes_part_in
    assert [one.aborted for one in outcomes] == [None] * 3  # the others go on
    vectors: dict[bytes, Any] = {}
    for seed, vector in case.uploads:
        assert vectors.setdefault(seed, vector) == vector
    assert len(vectors) == len(takes_part_in)
    told = [text for number, text in case.errors if "its folder is an older copy" in text]
    assert bool(told) == sits_out
    assert all(text.startswith("refusal 36: ") for text in told)
    assert sums == {**dict.fromkeys(PEOPLE, 3), VICTIM: 1 if sits_out else 3}
