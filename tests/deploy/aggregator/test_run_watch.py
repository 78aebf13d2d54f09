"""What the study centre's people are told of a run, and what stays out of it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.aggregator.run_watch import SETTINGS_FILE, PeopleTold, RunWatch, centre_channels
from secfed.errors import ConfigError, LinkError, RoundAborted, SecfedError, StudyStopped
from tests.deploy.enrol_case import consortium
from tests.deploy.notify_case import WebServer, served

WHY = {"ward-a": "refuses the study: PolicyRefused: study 'x' has 17 epochs", "ward-b": "has never called"}


class Clock:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_run_that_waits_is_stalled_after_a_while_and_until_it_goes_on() -> None:
    clock = Clock()
    watch = RunWatch("heart-1", 600.0, clock)
    watch.heard("started", {})
    assert not watch.look().holds
    waiting: dict[str, Any] = {"needed": 3, "sites": [], "round": 2, "rounds": 5, "why": WHY}
    watch.heard("waiting", waiting)
    clock.s = 599.0
    watch.heard("waiting", {**waiting, "why": {"ward-b": "has never called"}})
    assert not watch.look().holds
    clock.s = 600.0
    (event,) = watch.look().holds.values()
    assert event.kind == "run.stalled"
    assert event.text == "study heart-1 has waited for hospitals for 10 minutes in round 2 of 5: ward-b"
    watch.heard("waiting", waiting)
    assert "17" not in json.dumps([event.__dict__ for event in watch.look().holds.values()])
    watch.heard("quorum", {"sites": []})
    seen = watch.look()
    assert not seen.holds
    assert "stalled".startswith(tuple(seen.over))


def test_in_a_queue_waiting_does_not_begin_anew_with_every_turn() -> None:
    """Each turn is shorter than what is called stalled, and told is it once."""
    clock, waits, told = Clock(), None, []
    waiting: dict[str, Any] = {"needed": 3, "sites": [], "round": 2, "rounds": 5, "why": WHY}
    for _ in range(10):
        watch = RunWatch("heart-1", 3600.0, clock, waits)
        told.append("stalled" in watch.look().holds)
        watch.heard("waiting", waiting)
        clock.s += 600.0
        told.append("stalled" in watch.look().holds)
        waits = watch.waits
    assert told == [False] * 11 + [True] * 9


def test_the_turns_of_a_study_hand_on_since_when_it_waits(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text('[webhook]\nurl = "http://127.0.0.1:9/"\n', encoding="utf-8")
    waiting: dict[str, Any] = {"needed": 3, "sites": [], "round": 2, "rounds": 5, "why": WHY}
    seen = []
    for _ in range(2):
        people = PeopleTold(tmp_path, "heart-1", "heart-1-33")
        with suppress(SecfedError), people:
            assert people._watch is not None
            seen.append(people._watch.waits)
            people.hearing(lambda _event, **_facts: None)("waiting", **waiting)
            seen.append(people._watch.waits)
            raise SecfedError("it gave way")
    assert seen[0] is None
    assert seen[1] == seen[2] == seen[3]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            StudyStopped("round 2: 2 of 3 hospitals refused alike: patient Miller"),
            "was stopped: its next rounds could come to no sum",
        ),
        (RoundAborted("no round"), "has ended without a sum"),
        (LinkError("the port is taken"), ""),
    ],
)
def test_the_end_of_a_run_is_told(tmp_path: Path, error: SecfedError, text: str) -> None:
    with served(WebServer()) as web:
        (tmp_path / SETTINGS_FILE).write_text(f'[webhook]\nurl = "{web.url}"\n')
        told: list[str] = []
        for _ in range(2):  # told once, also if it is served again for a farewell
            people = PeopleTold(tmp_path, "heart-1", "heart-1-11")
            with people:
                people.hearing(lambda event, **_: told.append(event))("finished", out="run")
        assert told == ["finished", "finished"]
        assert [event["data"]["how"] for event in web.events] == ["finished"]
        with pytest.raises(SecfedError), PeopleTold(tmp_path, "heart-2", "heart-2-22"):
            raise error
        texts = [event["data"]["text"] for event in web.events[1:]]
        assert len(texts) == (1 if text else 0)
        assert all(text in one for one in texts)
        assert "Miller" not in str(web.events)
        assert {event["source"] for event in web.events} == {"secfed:aggregator"}


def test_without_a_file_nobody_is_told_and_a_wrong_one_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PeopleTold(tmp_path, "heart-1", "heart-1-11"):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / SETTINGS_FILE).write_text("[notifications]\nsilent_s = 3\n")
    with PeopleTold(tmp_path, "heart-1", "heart-1-11"):
        pass
    assert "notifications.silent_s: unknown key" in caplog.text
    with pytest.raises(ConfigError, match=r"notifications\.toml: notifications\.silent_s: unknown key"):
        centre_channels(tmp_path)


def test_the_command_tries_it(tmp_path: Path) -> None:
    folder = consortium(tmp_path).folder
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    done = run(app, ["consortium", "notify", "--dir", str(folder)])
    assert done.exit_code == 2
    assert SETTINGS_FILE in done.stderr
    with served(WebServer()) as web:
        (folder / SETTINGS_FILE).write_text(f'[webhook]\nurl = "{web.url}"\n')
        done = run(app, ["consortium", "notify", "--test", "--dir", str(folder)])
        assert done.exit_code == 0, done.output
        assert [event["type"] for event in web.events] == ["secfed.test"]
