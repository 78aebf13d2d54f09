"""What a run waits for: the sentence, what hospitals are told of it, and what only the study centre knows."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secfed.cli.agent import _show
from secfed.cli.aggregate_log import tell_person
from secfed.deploy.agent.status import StatusBoard, read_status
from secfed.deploy.aggregator.measured_transport import MeasuredTransport
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.messages import HelloReply
from secfed.deploy.transport.progress import ANSWERS, ARRIVALS, Waits, now_at_hospital, where
from secfed.deploy.transport.signals import Stopper
from secfed.errors import MalformedMessage
from secfed.runs.run_report import SilentObserver
from tests.deploy.link_case import SITES, consortium, echo, wait_until


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (Waits(), ""),
        (Waits(ANSWERS, 3, 3), ""),
        (Waits(ANSWERS, 2, 3), "waiting for 1 more hospital (2 of 3 answered)"),
        (Waits(ARRIVALS, 1, 4), "waiting for 3 more hospitals to connect (1 of 4 there)"),
    ],
)
def test_the_sentence(waits: Waits, expected: str) -> None:
    assert waits.describe() == expected


def test_where_a_study_is() -> None:
    assert [where(3, 20), where(21, 20), where(3, None)] == ["round 3 of 20", "closing evaluation", "round 3"]


def served(**more: Any) -> dict[str, Any]:
    status = {"running": True, "connection": "connected", "state": "serving", "round": 3, "rounds": 20}
    return {**status, "working": False, "waits": None, "why": None, **more}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            served(waits={"kind": ANSWERS, "done": 2, "of": 3}),
            "round 3 of 20, waiting for 1 more hospital (2 of 3 answered)",
        ),
        (served(), "round 3 of 20, waiting for the study centre"),
        (served(working=True), "round 3 of 20, this hospital is at work"),
        (served(why="hours: not now"), "round 3 of 20, this hospital refused: hours: not now"),
        (served(connection="failing"), "no connection to the study centre; it is tried again"),
        (served(state="refused", why="held"), "the study does not run here: held"),
        (served(state="held", why="not approved"), "held: not approved"),
        (served(state="paused", why="by a person"), "paused: by a person"),
        (
            served(state="removed", connection="failing"),
            "removed: the study centre has taken this hospital out of its roster; ask there",
        ),
        (served(state="idle"), "waiting for a study to be served"),
        (served(state="finished"), "the study is over"),
        (served(running=False), "nothing: the agent is not running"),
    ],
)
def test_what_an_agent_says_it_does(status: dict[str, Any], expected: str) -> None:
    assert now_at_hospital(status) == expected


def test_the_status_of_an_older_agent_can_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StatusBoard(tmp_path / "status.json", "ukhd").set(state="serving", connection="connected", round=3)
    content = read_status(tmp_path / "status.json")
    for name in ("rounds", "working", "waits", "why"):
        del content[name]
    content |= {"running": True, "paused": False, "budgets": [], "studies": [], "refused_names": []}
    _show({**content, "now": now_at_hospital(content)}, tmp_path)
    assert "round 3, waiting for the study centre" in capsys.readouterr().out


def test_hospitals_are_told_numbers_and_none_that_are_about_one_other() -> None:
    with consortium() as c:
        link = c.dial(SITES[0])
        numbers = []
        for waits in (Waits(ANSWERS, 2, 3), Waits(ANSWERS, 1, 2), Waits()):
            c.server.waits_for(waits)
            said = link.hello()
            numbers.append((said.waits, said.done, said.of))
        assert numbers == [(ANSWERS, 2, 3), (0, 0, 0), (0, 0, 0)]


def test_an_agent_hears_it_while_it_has_nothing_to_do() -> None:
    heard: list[HelloReply] = []
    with consortium(limits=ServerLimits(poll_s=0.1)) as c:
        c.server.waits_for(Waits(ANSWERS, 1, 3))
        link = c.dial(SITES[0])
        serving = threading.Thread(target=link.serve, args=(echo,), kwargs={"said": heard.append})
        serving.start()
        wait_until(lambda: heard)
        link.close()
        serving.join(60)
    assert (heard[0].waits, heard[0].done, heard[0].of) == (ANSWERS, 1, 3)


@pytest.mark.parametrize("numbers", [(3, 0, 3), (ANSWERS, 4, 3)])
def test_numbers_that_cannot_be_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(MalformedMessage, match="waited for"):
        HelloReply.decode(HelloReply("study", b"", 1, False, *numbers).encode())


class _Log:
    def append(self, kind: str, body: object) -> None:
        """Nothing is kept."""


def carrier(server: LinkServer, told: list[tuple[str, dict[str, Any]]], quorum: int) -> MeasuredTransport:
    return MeasuredTransport(
        server,
        _Log(),
        SilentObserver(),
        lambda event, **facts: told.append((event, facts)),
        Stopper(),
        deadline_s=3.0,
        quorum=quorum,
        silent_s=30.0,
        wait_for_result=False,
        rounds=20,
        slow_s=1.0,
    )


def test_the_study_centre_knows_whom_a_step_waits_for_and_why() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    with consortium() as c:
        c.run(SITES[0], echo)
        c.run(SITES[1], echo)
        c.dial(SITES[2]).hello()
        replies: list[str] = []
        carried = carrier(c.server, told, quorum=3)
        carried.start_round(3)
        carried.ask("mask", dict.fromkeys(SITES, b"x"), lambda site, _: replies.append(site))
        assert c.dial(SITES[0]).hello().waits == 0
    assert sorted(replies) == list(SITES[:2])
    (slow,) = [facts for event, facts in told if event == "slow"]
    assert (slow["answered"], slow["asked"], slow["sites"]) == (2, 3, [SITES[2]])
    shown = io.StringIO()
    tell_person(Console(file=shown, width=200))("slow", **slow)
    assert (
        "round 3 of 20, waiting for 1 more hospital (2 of 3 answered) at mask; hospital-3: "
        in shown.getvalue()
    )


def said(c: Any, site: str) -> int:
    """What a hello tells, asked no faster than a site may call."""
    time.sleep(0.6)
    return int(c.dial(site).hello().waits)


def test_the_study_centre_says_why_a_quorum_is_not_there() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    with consortium() as c:
        for site in SITES[:2]:
            c.dial(site).hello()
        carried = carrier(c.server, told, quorum=3)
        asking = threading.Thread(
            target=carried.ask, args=("train", dict.fromkeys(SITES, b"x"), lambda *_: None), daemon=True
        )
        asking.start()
        wait_until(lambda: said(c, SITES[0]) == ARRIVALS)
        wait_until(lambda: told)
        c.run_all()
        asking.join(60)
    event, facts = told[0]
    assert event == "waiting"
    assert facts["why"][SITES[2]] == "has never called"
    shown = io.StringIO()
    tell_person(Console(file=shown, width=200))(event, **facts)
    assert "round 1 of 20, waiting for 3 hospitals; there now: " in shown.getvalue()
    assert "hospital-3: has never called" in shown.getvalue()


@pytest.mark.parametrize(
    ("event", "facts", "text"),
    [
        (
            "turn",
            {"study": "heart-1", "out": "runs/heart-1", "queued": ["lung-2"]},
            "heart-1 has its turn, in runs/heart-1; after it: lung-2",
        ),
        ("turn", {"study": "heart-1", "out": "runs/heart-1", "queued": []}, "turn, in runs/heart-1\n"),
        ("paused", {"study": "heart-1"}, "secfed consortium resume heart-1"),
        ("continued", {"study": "heart-1"}, "heart-1 is no longer paused"),
        ("failed", {"study": "heart-1", "reason": "no sum"}, "heart-1 failed, and others"),
    ],
)
def test_a_person_is_told_of_the_queue(event: str, facts: dict[str, Any], text: str) -> None:
    shown = io.StringIO()
    tell_person(Console(file=shown, width=200))(event, **facts)
    assert text in shown.getvalue()
