"""Which entries a decision log gets: what is new, and never as many as an aggregator likes."""

from __future__ import annotations

from typing import Any

import pytest

from secfed.crypto.refusals import Refusal
from secfed.errors import PolicyRefused, UnmaskRefused, WrongState
from secfed.records.decision_state import (
    ACCEPTED,
    APPROVED,
    BUDGET,
    FINISHED,
    LIFTED,
    LIMITED,
    PER_DAY,
    POLICY,
    REFUSAL,
    REFUSED,
    REJECTED,
    ROSTER,
    WITHDRAWN,
    ByPerson,
    DecisionState,
    Made,
    Repeats,
    is_told,
    refusal_facts,
)
from secfed.site.attempt_work import given_back, refusal_of
from tests.secfed.decision_case import DAY_S, DIGEST, NOW_S


class Kept(DecisionState):
    """A state that takes what it says, as a log makes it do."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[str, dict[str, Any]]] = []

    def add(self, made: list[Made], now_s: int = NOW_S) -> list[str]:
        for kind, body in made:
            self.entries.append((kind, {**body, "time_s": now_s}))
            self.take(*self.entries[-1])
        return [kind for kind, _ in made]


def digest(number: int) -> str:
    return f"{number:064x}"


def by_person(approved: bool, at_s: int, about: str = DIGEST, name: str = "heart") -> ByPerson:
    return ByPerson(about, name, approved, at_s)


def test_roster_and_policy_are_told_when_they_change() -> None:
    state = Kept()
    assert state.add(state.site("aa", "bb", ())) == [ROSTER, POLICY]
    assert state.add(state.site("aa", "bb", ())) == []
    assert state.add(state.site("", "", ())) == []  # not looked at is no change
    assert state.add(state.site("aa", "cc", ())) == [POLICY]
    assert state.entries[-1][1]["before"] == "bb"
    assert state.add(state.site("aa", "bb", ())) == [POLICY]  # back again is a change, too


def test_what_persons_decide_is_told_once_and_so_is_its_end() -> None:
    state = Kept()

    def said(*persons: ByPerson) -> list[str]:
        return state.add(state.site("", "", persons))

    assert said(by_person(True, 1)) == [APPROVED]
    assert said(by_person(True, 1)) == []
    assert said(by_person(True, 5)) == [APPROVED]  # a person did it again, whatever was in between
    assert said(by_person(False, 6)) == [WITHDRAWN]
    assert said(by_person(False, 6)) == []
    assert said() == [LIFTED]
    assert said() == []
    assert said(by_person(False, 7)) == [REJECTED]
    assert said(by_person(True, 8)) == [APPROVED]
    # The name is refused, which ends the approval of its digest.
    assert said(by_person(False, 9, about="")) == [WITHDRAWN, REJECTED]
    assert state.entries[-1][1] == {"digest": "", "name": "heart", "decided_s": 9, "time_s": NOW_S}


def test_a_study_is_begun_once_until_something_else_is_decided() -> None:
    state = Kept()
    state.add(state.site("aa", "bb", ()))
    assert state.add(state.accepts(DIGEST, "heart", NOW_S)) == [ACCEPTED]
    body = state.entries[-1][1]
    assert (body["policy"], body["roster"]) == ("bb", "aa")
    assert state.accepts(DIGEST, "heart", NOW_S) == []
    assert state.add(state.refuses(DIGEST, "heart", ["privacy.epsilon"], NOW_S)) == [REFUSED]
    assert state.refuses(DIGEST, "heart", ["privacy.epsilon"], NOW_S) == []
    assert state.add(state.refuses(DIGEST, "heart", ["data.name"], NOW_S)) == [REFUSED]
    assert state.ends(DIGEST, "heart", with_model=True) == []  # it does not run
    assert state.add(state.accepts(DIGEST, "heart", NOW_S)) == [ACCEPTED]
    assert state.add(state.ends(DIGEST, "heart", with_model=True)) == [FINISHED]
    assert state.ends(DIGEST, "heart", with_model=True) == []
    assert state.ends(digest(9), "lung", with_model=False) == []  # never begun here


def test_the_log_never_says_that_a_study_began_against_a_person() -> None:
    state = Kept()
    state.add(state.accepts(DIGEST, "heart", NOW_S))
    for about in (DIGEST, ""):  # refused between the look at the site's files and the entry
        state.add(state.site("", "", [by_person(False, 1, about=about)]))
        with pytest.raises(PolicyRefused, match="was refused") as caught:
            state.accepts(DIGEST, "heart", NOW_S)
        assert caught.value.keys == ("approval",)
    state.add(state.site("", "", [by_person(False, 1, about=""), by_person(True, 2)]))
    state.accepts(DIGEST, "heart", NOW_S)  # the one of that name that a person approved
    with pytest.raises(PolicyRefused):
        state.accepts(digest(2), "heart", NOW_S)


def test_free_text_is_no_key() -> None:
    state = Kept()
    long = "a" * 100
    state.add(state.refuses(DIGEST, "heart", ["privacy.epsilon", "<b>Dr. Who</b>", long], NOW_S))
    assert state.entries[-1][1]["keys"] == ["other", "privacy.epsilon"]
    many = [f"data.key_{number}" for number in range(1000)]
    state.add(state.refuses(digest(2), "heart", many, NOW_S))
    assert len(state.entries[-1][1]["keys"]) == 32


def flood(state: Kept, repeats: Repeats, times: int, study: str = DIGEST, number: int = 34) -> None:
    for at in range(times):
        before = state.count(study, REFUSAL, number)
        count = repeats.again(study, REFUSAL, number, at.to_bytes(4, "big"), before)
        if is_told(count):
            state.add(state.stops(REFUSAL, study, "heart", {"number": number}, count, NOW_S))


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    state, repeats = Kept(), Repeats()
    flood(state, repeats, 100_000)
    counts = [body["count"] for _, body in state.entries]
    assert counts == [1, 2, 3, *(1 << power for power in range(2, 17))]
    flood(state, repeats, 1, number=35)  # another number is not hidden behind it
    assert state.entries[-1][1] == {
        "digest": DIGEST,
        "name": "heart",
        "number": 35,
        "count": 1,
        "time_s": NOW_S,
    }


def test_a_restart_goes_on_counting_where_the_log_stands() -> None:
    state = Kept()
    flood(state, Repeats(), 1000)
    assert state.entries[-1][1]["count"] == 512
    before = len(state.entries)
    for _ in range(100):
        flood(state, Repeats(), 1)  # an agent that is restarted with every message
    assert len(state.entries) == before
    flood(state, Repeats(), 600)
    assert [body["count"] for _, body in state.entries[before:]] == [1024]


def test_the_same_frame_again_is_no_second_try() -> None:
    repeats = Repeats()
    assert repeats.again(DIGEST, REFUSAL, 34, b"a", 0) == 1
    assert repeats.again(DIGEST, REFUSAL, 34, b"a", 0) == 0
    assert not is_told(0)
    assert repeats.again(DIGEST, REFUSAL, 34, b"b", 0) == 2
    assert repeats.again(DIGEST, BUDGET, 0, b"b", 0) == 1


def test_many_studies_do_not_fill_the_disk_either() -> None:
    state = Kept()
    for number in range(10 * PER_DAY):
        state.add(state.refuses(digest(number), "heart", ["study.name"], NOW_S))
    assert [kind for kind, _ in state.entries] == [REFUSED] * PER_DAY + [LIMITED]
    assert state.entries[-1][1]["of"] == REFUSED
    # Something else of that day, and the next day, have room of their own.
    assert state.add(state.stops(REFUSAL, DIGEST, "heart", {"number": 34}, 1, NOW_S)) == [REFUSAL]
    later_s = NOW_S + DAY_S
    assert state.add(state.refuses(digest(10**6), "heart", ["study.name"], later_s), later_s) == [REFUSED]
    # One number's flood over many studies leaves the others' numbers alone.
    for number in range(2 * PER_DAY):
        state.add(state.stops(REFUSAL, digest(number), "heart", {"number": 1}, 1, NOW_S))
    assert state.entries[-1] == (LIMITED, {"of": REFUSAL, "number": 1, "entries": PER_DAY, "time_s": NOW_S})
    assert state.add(state.stops(REFUSAL, DIGEST, "heart", {"number": 34}, 2, NOW_S)) == [REFUSAL]


def test_what_cannot_be_recorded_for_today_does_not_begin_today() -> None:
    state = Kept()
    for number in range(PER_DAY):
        state.add(state.accepts(digest(number), "heart", NOW_S))
    with pytest.raises(PolicyRefused, match="no more than 100 new studies a day") as caught:
        state.accepts(DIGEST, "heart", NOW_S)
    assert caught.value.remedy == "wait"
    assert state.accepts(digest(0), "heart", NOW_S) == []  # those that run go on
    assert len(state.accepts(DIGEST, "heart", NOW_S + DAY_S)) == 1


@pytest.mark.parametrize("refusal", Refusal, ids=lambda one: str(one.number))
def test_an_error_says_which_refusal_it_is_also_when_it_is_given_again(refusal: Refusal) -> None:
    error = refusal.refuse("hospital-1")
    assert Refusal.of(error) is refusal
    with pytest.raises(type(error)) as caught:
        given_back(b"\1", refusal_of(error))
    assert Refusal.of(caught.value) is refusal
    assert refusal_facts(refusal, error, (3, "train", 1)) == {
        "number": refusal.number,
        "text": refusal.text,  # and nothing of the detail
        "round": 3,
        "exchange": "train",
        "attempt": 1,
    }


def test_other_errors_are_no_numbered_refusal() -> None:
    assert Refusal.of(WrongState("there is no attempt to continue")) is None
    assert Refusal.of(WrongState("refusal 34: shares were already given out in this attempt.")) is None
    assert Refusal.of(UnmaskRefused("see refusal 34: shares were already given out in this attempt")) is None
    facts = refusal_facts(None, WrongState("text of the network"), (0, "", 0))
    assert (facts["number"], facts["text"]) == (0, "the message does not fit there (WrongState)")
