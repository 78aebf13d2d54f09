"""A malicious aggregator of closed sums: messages out of order, and those of other studies and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import ClosedSum, KeyDelivery, KeyRequest
from secfed.crypto.masked.closing import Closing
from secfed.crypto.messages import peek_type
from secfed.errors import InconsistentView, LinkError, Replay, SecfedError
from secfed.protection.opened_at_sites import ExpectedState
from secfed.server.make_run import make_run
from secfed.wire.frames import Notice, Task, decode
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, study

PEOPLE = tuple(f"hospital-{number}" for number in range(1, 5))


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    chosen = study("closed", None).replace("data.sites", len(PEOPLE))
    made = Consortium(chosen, tmp_path / "hospitals", people=PEOPLE)
    yield made
    made.close()


def away_in_round_1(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
    message = decode(frame)
    if hospital.identity.name == VICTIM and isinstance(message, Task) and message.round == 1:
        raise LinkError("away", remedy="wait")
    return hospital.handle(frame)


def run_round_1(made: Consortium, sums: Path) -> None:
    rules, plan = made.rules, made.terms.algorithm
    make_run(plan, 0, rules, made.ask, NullLog(), sums=sums).run(made.outcomes.append)


class NullLog:
    def append(self, kind: str, body: object) -> None:
        pass


def site_of(consortium: Consortium, name: str = VICTIM) -> Any:
    opened = consortium.hospitals[name].open
    assert opened is not None
    return opened.site


def task(consortium: Consortium, number: int) -> bytes:
    """Work on this round, in the state that the hospital is in."""
    site = site_of(consortium)
    state = ExpectedState(site.sums, site._state_tag()).encode()
    name = consortium.terms.algorithm.exchanges(number)[0].name
    return Task(consortium.rules.study, number, 0, name, state).encode()


def test_a_hospital_does_no_work_for_an_exchange_whose_sum_it_has_taken(
    consortium: Consortium, tmp_path: Path
) -> None:
    """It was away then: its update would be one on a later state, in a second sum of the exchange."""
    consortium.deliver = away_in_round_1
    run_round_1(consortium, tmp_path)
    victim = consortium.hospitals[VICTIM]
    for _ in range(2):
        assert site_of(consortium).sums == 1
        with pytest.raises(Replay, match="was taken before"):
            victim.handle(task(consortium, 1))
        assert victim.trained == 0
        victim.start()
    victim.handle(task(consortium, 2))
    assert victim.trained == 1


def test_work_for_an_exchange_that_it_has_followed_carries_no_attempt_any_more(
    consortium: Consortium, tmp_path: Path
) -> None:
    """It trained, fell silent, and took the sum of the others: its own update must not leave after that."""
    specification: list[bytes] = []

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        if (stage, hospital.identity.name) == ("advertise", VICTIM):
            specification.append(bytes(frame))
            raise LinkError("away", remedy="wait")
        return hospital.handle(frame)

    consortium.deliver = deliver
    run_round_1(consortium, tmp_path)
    victim = consortium.hospitals[VICTIM]
    assert (site_of(consortium).sums, victim.trained) == (1, 1)
    for _ in range(2):
        with pytest.raises(SecfedError):
            victim.handle(specification[0])
        assert "attempt-0000000000" not in victim.files
        victim.start()


def relayed(consortium: Consortium, kind: Any) -> list[bytes]:
    """Notices of one kind that the aggregator sent to the hospital, in order."""
    notices = [(name, decode(frame)) for _, name, frame, _ in consortium.frames if frame[:1] == b"\x03"]
    found = [one.message for name, one in notices if name == VICTIM and isinstance(one, Notice)]
    return [bytes(Notice(one).encode()) for one in found if peek_type(one) == kind.TYPE]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, object], Consortium]]:
    """Studies of the same people that were run before, by what differs."""
    made: dict[str, Consortium] = {}

    def run(key: str, value: object) -> Consortium:
        if key not in made:
            chosen = study("closed", None).replace("data.sites", len(PEOPLE))
            chosen = chosen.replace(key, value) if key else chosen
            made[key] = Consortium(chosen, tmp_path_factory.mktemp("earlier") / "x", people=PEOPLE)
            made[key].run()
        return made[key]

    yield run
    for one in made.values():
        one.close()


@pytest.mark.parametrize(
    ("key", "value", "number"),
    [
        ("study.seed", 218, 10),  # another study
        ("", None, 36),  # the same study, run before under another key: no state of that run is of this one
    ],
)
def test_nothing_of_another_study_or_of_an_earlier_run_is_taken(
    key: str, value: object, number: int, consortium: Consortium, earlier: Any, tmp_path: Path
) -> None:
    before = earlier(key, value)
    hospital = consortium.hospitals[VICTIM]
    for delivery in relayed(before, KeyDelivery):
        with pytest.raises(SecfedError):
            hospital.handle(delivery)
    hello = Notice(KeyRequest(()).encode()).encode()
    hospital.handle(hello)  # it waits for a key
    for delivery in relayed(before, KeyDelivery):
        with pytest.raises(SecfedError):
            hospital.handle(delivery)
    assert site_of(consortium)._keys.keys is None
    run_round_1(consortium, tmp_path)
    keys, tag = site_of(consortium)._keys.keys, site_of(consortium)._state_tag()
    assert keys.secret_key != site_of(before)._keys.keys.secret_key
    sums = relayed(before, ClosedSum)
    assert len(sums) == 2
    with pytest.raises(InconsistentView if number == 36 else SecfedError, match=f"^refusal {number}: "):
        hospital.handle(sums[1])
    for delivery in relayed(before, KeyDelivery):
        with pytest.raises(SecfedError):
            hospital.handle(delivery)
    assert site_of(consortium)._keys.keys == keys
    assert (site_of(consortium).sums, site_of(consortium)._state_tag()) == (1, tag)
    assert not site_of(consortium)._local.stopped


def test_no_sum_that_the_others_took_can_be_skipped(consortium: Consortium, tmp_path: Path) -> None:
    held: list[bytes] = []

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        if hospital.identity.name == VICTIM and stage != "keys":
            held.extend([bytes(frame)] if stage == "result" else [])
            raise LinkError("away", remedy="wait")
        return hospital.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    victim = consortium.hospitals[VICTIM]
    with pytest.raises(InconsistentView, match=r"^refusal 36: "):
        victim.handle(held[1])
    for summed in held:
        victim.handle(summed)
    tags = {site_of(consortium, name)._state_tag() for name in PEOPLE}
    assert (site_of(consortium).sums, len(tags)) == (2, 1)


def test_one_site_with_a_wrong_tag_stops_all_before_anything_is_learnt_and_is_not_named(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SECURITY.md, "One hospital can stop the study": the price of tags that hide single sites."""
    tagged, serving = Closing.tagged, [""]

    def wrong(self: Closing, *rest: Any) -> Any:
        source = tagged(self, *rest)
        if serving == [VICTIM]:
            source._tags.value = source._tags.value + np.uint64(1)  # type: ignore[attr-defined]
        return source

    def deliver(stage: str, hospital: Hospital, frame: Buffer) -> bytes:
        serving[:] = [hospital.identity.name]
        return hospital.handle(frame)

    monkeypatch.setattr(Closing, "tagged", wrong)
    consortium.deliver = deliver
    consortium.run()
    first, second = consortium.outcomes
    assert "no hospital could open the sum" in str(first.aborted)
    assert second.aborted is not None
    for name in PEOPLE:
        assert site_of(consortium, name)._local.stopped
        assert site_of(consortium, name).sums == 0
    refused = [stage for stage, _, _, reply in consortium.frames if reply is None and "refusal 45: " in stage]
    assert len(refused) == len(PEOPLE)
    assert not any(VICTIM in stage for stage in refused)
