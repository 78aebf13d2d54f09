"""Rules for one setting, and hours of the week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from secfed.config.schema import Options, checked
from secfed.deploy.policy import sections
from secfed.deploy.policy.rules import Anything, OneOf, Range, broken, read_rule, read_rules
from secfed.deploy.policy.sections import DAYS, Window, is_open
from secfed.errors import ConfigError
from tests.deploy.enrol_case import NOW

NUMBERS = st.floats(allow_nan=False) | st.integers(-(10**9), 10**9)


class TestRange:
    @given(NUMBERS, NUMBERS, NUMBERS)
    def test_a_number_is_permitted_exactly_between_both_ends(
        self, one: float, two: float, value: float
    ) -> None:
        low, high = min(one, two), max(one, two)
        rule = read_rule({"min": low, "max": high}, "x")
        assert rule.permits(value) == (low <= value <= high)
        assert rule.permits(low)
        assert rule.permits(high)

    @given(NUMBERS, NUMBERS)
    def test_one_end_is_enough(self, bound: float, value: float) -> None:
        assert read_rule({"min": bound}, "x").permits(value) == (value >= bound)
        assert read_rule({"max": bound}, "x").permits(value) == (value <= bound)

    def test_an_empty_array_has_no_number_that_is_within(self) -> None:
        assert not Range(1, None).permits([])
        assert not Range(None, 5).permits(())

    @given(st.lists(st.integers(-10, 10), min_size=1, max_size=5))
    def test_of_an_array_every_element_counts(self, values: list[int]) -> None:
        assert read_rule({"min": -3, "max": 3}, "x").permits(tuple(values)) == all(
            -3 <= v <= 3 for v in values
        )

    @pytest.mark.parametrize("value", [True, False, None, "1", float("nan"), {}, object()])
    def test_what_is_no_number_is_not_permitted(self, value: object) -> None:
        assert not Range(None, 5).permits(value)
        assert not Range(-5, None).permits(value)

    def test_a_number_that_no_float_holds_is_a_number_like_others(self) -> None:
        huge = 10**400
        assert not read_rule({"max": 5}, "x").permits(huge)
        assert read_rule({"min": 5}, "x").permits(huge)
        rule = read_rule({"max": huge}, "x")
        assert rule.permits(5)
        assert rule.describe() == f"at most {huge}"


class TestOneOf:
    @given(st.lists(st.text(max_size=3) | st.integers(), max_size=4), st.text(max_size=3) | st.integers())
    def test_a_value_is_permitted_exactly_if_it_is_listed(self, listed: list[Any], value: Any) -> None:
        assert read_rule(listed, "x").permits(value) == (value in listed)

    def test_true_is_not_one(self) -> None:
        assert not OneOf((1,)).permits(True)
        assert not OneOf((True,)).permits(1)
        assert OneOf((True,)).permits(True)
        assert OneOf((1,)).permits(1.0)

    def test_arrays_and_tables_are_looked_into(self) -> None:
        rule = OneOf(("age", "sex", 50.0))
        assert rule.permits(("age",))
        assert not rule.permits(("age", "name"))
        assert rule.permits({"age": (50.0, 50)})
        assert not rule.permits({"name": ()})
        assert not rule.permits({"age": (50.0, 1e9)}), "a rule that names columns permits no values for them"
        assert not rule.permits({"age": {"sex": "name"}})
        assert not rule.permits([{"age": 51.0}])


LEAVES = st.text("ab", max_size=2) | st.integers(-2, 2) | st.floats(-2, 2) | st.booleans() | st.none()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
RULES = st.lists(st.text("ab", max_size=2) | st.integers(-2, 2) | st.booleans(), max_size=4) | st.tuples(
    st.integers(-2, 0), st.integers(0, 2)
).map(lambda ends: {"min": ends[0], "max": ends[1]})


def leaves(value: Any) -> list[Any]:
    """Everything in a value of a study: elements of arrays, and of tables the names and the values."""
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, dict):
        return [*value, *leaves(list(value.values()))]
    return [value]


@given(RULES, VALUES)
def test_whatever_a_rule_permits_has_nothing_in_it_that_the_rule_does_not_name(rule: Any, value: Any) -> None:
    if not read_rule(rule, "x").permits(value):
        return
    for leaf in leaves(value):
        if leaf is None:
            assert not rule or "" in rule
        elif isinstance(rule, dict):
            assert isinstance(leaf, int | float)
            assert not isinstance(leaf, bool)
            assert rule["min"] <= leaf <= rule["max"]
        else:
            assert any(leaf == item and isinstance(leaf, bool) is isinstance(item, bool) for item in rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (3, "x: is not a rule"),
        ("all", "x: is not a rule"),
        ({}, "x: is not a rule"),
        (True, "x: is not a rule"),
        ({"max": "5"}, r"x\.max: must be a number"),
        ({"max": True}, r"x\.max: must be a number"),
        ({"max": float("nan")}, r"x\.max: must be a number"),
        ({"maximum": 5}, r"x\.maximum: unknown key"),
        ({"min": 2, "max": 1}, "x: min is above max"),
        ([[1]], "x: an array of plain values"),
        ([None], "x: an array of plain values"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_rule(rule, "x")


class Example(Options):
    steps: int = Field(default=1, description="steps")
    rate: float = Field(description="rate")
    columns: tuple[str, ...] = Field(default=(), description="columns")
    cap: float | None = Field(default=None, description="cap")


def problems(rules: dict[str, Any], **settings: Any) -> dict[str, str]:
    options = checked(Example, {"name": "x", "rate": 0.1, **settings}, "algorithm")
    found = broken(options, read_rules(rules, "algorithms.x"), exempt=frozenset({"name"}))
    return {name: permitted for name, _, permitted in found}


class TestDenyByDefault:
    def test_a_setting_without_a_rule_must_have_its_default(self) -> None:
        assert problems({"rate": "any"}) == {}
        assert list(problems({"rate": "any"}, steps=2)) == ["steps"]
        assert problems({"rate": "any", "steps": {"max": 2}}, steps=2) == {}

    def test_a_setting_without_rule_and_default_is_not_permitted(self) -> None:
        assert list(problems({})) == ["rate"]

    def test_a_rule_also_binds_the_default(self) -> None:
        assert problems({"rate": "any", "steps": {"min": 2}}) == {"steps": "at least 2"}

    def test_a_rule_binds_a_setting_that_is_left_out(self) -> None:
        """Without a bound, or with no columns named, a study can have more than with any value of a rule."""
        for values in ({}, {"cap": 2.0}):
            assert problems({"rate": "any", "cap": {"max": 1}}, **values) == {"cap": "at most 1"}
        assert problems({"rate": "any", "cap": "any"}) == {}
        assert problems({"rate": "any", "columns": ["age"]}) == {"columns": "one of 'age'"}
        assert problems({"rate": "any", "columns": ["age"]}, columns=("age",)) == {}

    def test_a_rule_can_permit_to_leave_a_setting_out(self) -> None:
        for listed in ([], ["age", ""]):
            assert problems({"rate": "any", "columns": listed}) == {}
        other = problems({"rate": "any", "columns": ["age", ""]}, columns=("sex",))
        assert other == {"columns": "one of 'age', nothing"}

    def test_anything_is_anything(self) -> None:
        assert Anything().permits(object())


BERLIN = ZoneInfo("Europe/Berlin")


def window(start: str, end: str, *days: str) -> Window:
    table: dict[str, Any] = {"start": start, "end": end}
    return checked(Window, table | ({"days": list(days)} if days else {}), "hours[0]")


class TestHours:
    # 2 March 2026 is a Monday.
    @pytest.mark.parametrize(
        ("day", "hour", "minute", "expected"),
        [
            (2, 19, 59, False),
            (2, 20, 0, True),
            (3, 5, 59, True),
            (3, 6, 0, False),
            (6, 23, 0, True),
            (7, 5, 0, True),  # Saturday morning belongs to Friday's night
            (7, 20, 0, False),
            (2, 5, 0, False),  # Monday morning would belong to Sunday's
        ],
    )
    def test_a_night_belongs_to_the_day_on_which_it_starts(
        self, day: int, hour: int, minute: int, expected: bool
    ) -> None:
        nights = [window("20:00", "06:00", "mon", "tue", "wed", "thu", "fri")]
        assert is_open(nights, datetime(2026, 3, day, hour, minute, tzinfo=BERLIN), BERLIN) is expected

    @pytest.mark.parametrize(
        ("month", "hour_utc", "expected"), [(1, 19, True), (7, 19, True), (1, 18, False), (7, 18, True)]
    )
    def test_hours_are_local_in_winter_and_summer(self, month: int, hour_utc: int, expected: bool) -> None:
        moment = datetime(2026, month, 15, hour_utc, 30, tzinfo=UTC)
        assert is_open([window("20:00", "24:00")], moment, BERLIN) is expected

    def test_without_windows_a_site_always_works(self) -> None:
        assert is_open([], NOW, None)

    @given(
        st.integers(0, 1439),
        st.integers(0, 1439),
        st.integers(0, 7 * 1440 - 1),
        st.sets(st.sampled_from(DAYS), min_size=1),
    )
    def test_a_window_is_open_for_its_length_on_each_of_its_days(
        self, start: int, end: int, minute: int, days: set[str]
    ) -> None:
        if start == end:
            return
        shown = [f"{at // 60:02}:{at % 60:02}" for at in (start, end)]
        found = window(*shown, *sorted(days)).is_open(
            datetime(2026, 3, 2, tzinfo=UTC) + timedelta(minutes=minute)
        )
        length = (end - start) % 1440
        opens = [DAYS.index(day) * 1440 + start for day in days]
        assert found == any((minute - opened) % (7 * 1440) < length for opened in opens)

    @pytest.mark.parametrize(
        "times",
        [("20:00", "20:00"), ("24:00", "06:00"), ("8:00", "9:00"), ("08:00", "25:00"), ("08:60", "09:00")],
    )
    def test_windows_that_mean_nothing_are_refused(self, times: tuple[str, str]) -> None:
        with pytest.raises(ConfigError, match="hours"):
            window(*times)

    def test_a_day_has_its_short_name(self) -> None:
        with pytest.raises(ConfigError, match=r"hours\[0\]\.days"):
            window("08:00", "09:00", "monday")

    @pytest.mark.parametrize("name", ["", "Berlin", "../../etc/passwd", "Europe/Nowhere", "x" * 100])
    def test_an_unknown_time_zone_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="timezone"):
            sections.time_zone(name)
