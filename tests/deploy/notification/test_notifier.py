"""Once for each change of state, at least once for each message, and never in anybody's way."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from secfed.deploy.notification import outbox as outbox_module
from secfed.deploy.notification.channels import DeliveryFailed
from secfed.deploy.notification.message import Event, Message
from secfed.deploy.notification.notifier import FAILED, SENT, Notifier
from secfed.deploy.notification.outbox import KEPT_S, MOST_A_DAY, MOST_WAITING, OUTBOX_FILE, Outbox, Seen
from secfed.storage import private_files
from secfed.storage.failpoints import VARIABLE
from tests.conftest import ROOT
from tests.deploy.link_case import wait_until
from tests.deploy.notify_case import NOW, WebServer, served

HELD = Seen({"held/1": Event("study.held", "heart-1", "heart-1 waits")}, ("held/",))
OVER = Seen({}, ("held/",))


@dataclass
class Kept:
    """A channel that keeps what it is given; ``fails`` says how often it does not."""

    name: str = "kept"
    where: str = "here"
    fails: int = 0
    got: list[Message] = field(default_factory=list)
    blocked: threading.Event | None = None

    def deliver(self, message: Message) -> str:
        if self.blocked is not None:
            self.blocked.wait(60)
        if self.fails:
            self.fails -= 1
            raise DeliveryFailed("here: HTTP 503")
        self.got.append(message)
        return "taken"


def outbox(folder: Path, *channels: str, now: Callable[[], datetime] = lambda: NOW) -> Outbox:
    return Outbox(folder / OUTBOX_FILE, "secfed:site:charite", channels or ("kept",), now)


def studies(count: int) -> Seen:
    held = {f"held/{at}": Event("study.held", f"s-{at}", f"s-{at} waits") for at in range(count)}
    return Seen(held, ("held/",))


class TestOutbox:
    def test_a_state_is_told_once_and_again_only_after_it_was_over(self, tmp_path: Path) -> None:
        box = outbox(tmp_path)
        assert [box.note(seen) for seen in (HELD, HELD, Seen(), HELD, OVER, HELD)] == [1, 0, 0, 0, 0, 1]
        assert box.waiting() == Counter(kept=2)

    def test_a_restart_forgets_neither_what_was_told_nor_what_waits(self, tmp_path: Path) -> None:
        outbox(tmp_path).note(HELD)
        box = outbox(tmp_path)
        assert box.note(HELD) == 0
        message = box.next("kept")
        assert message is not None
        again = outbox(tmp_path).next("kept")
        assert again == message  # the same id: whoever gets it twice can tell
        box.delivered("kept", message)
        assert outbox(tmp_path).next("kept") is None
        assert outbox(tmp_path).note(HELD) == 0
        assert (tmp_path / OUTBOX_FILE).stat().st_mode & 0o777 == 0o600

    def test_one_that_is_never_taken_lets_others_go_first(self, tmp_path: Path) -> None:
        box = outbox(tmp_path)
        box.note(studies(2))
        first = box.next("kept")
        assert first is not None
        box.failed("kept", first)
        second = box.next("kept")
        assert second is not None
        assert second.subject != first.subject

    def test_what_no_server_takes_is_given_up_and_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        now, lost = [NOW], []
        box = Outbox(tmp_path / OUTBOX_FILE, "secfed:site:a", ("kept",), lambda: now[0], lost.append)
        box.note(HELD)
        now[0] += timedelta(seconds=KEPT_S)
        assert box.next("kept") is not None
        now[0] += timedelta(seconds=1)
        assert box.next("kept") is None
        assert lost == [1]
        assert "given up" in caplog.text
        assert outbox(tmp_path, now=lambda: now[0]).waiting() == Counter()
        assert box.note(HELD) == 0  # it still holds, and was told as well as could be

    def test_a_flood_is_cut_off_and_the_last_message_says_so(self, tmp_path: Path) -> None:
        now = [NOW]
        box = outbox(tmp_path, now=lambda: now[0])
        box.note(studies(3 * MOST_A_DAY))
        assert box.waiting() == Counter(kept=MOST_A_DAY)
        texts = []
        while (message := box.next("kept")) is not None:
            texts.append(message.text)
            box.delivered("kept", message)
        assert ["Further ones" in text for text in texts] == [False] * (MOST_A_DAY - 1) + [True]
        box.note(Seen({"budget/x": Event("budget.low", "x", "low")}))  # another kind
        assert box.waiting() == Counter(kept=1)
        box.note(OVER)
        now[0] += timedelta(days=1, seconds=1)
        box.note(HELD)
        assert box.waiting() == Counter(kept=2)

    def test_what_holds_is_not_forgotten_and_told_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox_module, "_MOST_TOLD", 3)
        box = outbox(tmp_path)
        assert [box.note(studies(5)) for _ in range(3)] == [5, 0, 0]

    def test_what_was_given_up_while_it_was_delivered_is_no_error(self, tmp_path: Path) -> None:
        now = [NOW]
        box = outbox(tmp_path, now=lambda: now[0])
        box.note(HELD)
        message = box.next("kept")
        assert message is not None
        now[0] += timedelta(seconds=KEPT_S + 1)
        assert box.next("kept") is None
        box.delivered("kept", message)
        box.failed("kept", message)
        assert box.waiting() == Counter()

    def test_no_more_than_so_many_wait(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox_module, "MOST_A_DAY", 10**6)
        box = outbox(tmp_path, "kept", "other")
        box.note(studies(MOST_WAITING + 5))
        assert box.waiting() == Counter(kept=MOST_WAITING, other=MOST_WAITING)
        first = box.next("kept")
        assert first is not None
        assert first.subject == "s-5"
        assert (tmp_path / OUTBOX_FILE).stat().st_size < private_files.MAX_BYTES

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "told": 3}'])
    def test_a_damaged_file_costs_no_more_than_a_repetition(
        self, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / OUTBOX_FILE).write_text(text)
        assert outbox(tmp_path).note(HELD) == 1
        assert "may be told again" in caplog.text
        assert outbox(tmp_path).waiting() == Counter(kept=1)

    def test_a_full_disk_is_logged_once_and_the_message_goes_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(private_files.os, "replace", full)
        box = outbox(tmp_path)
        box.note(studies(2))
        for _ in range(2):
            message = box.next("kept")
            assert message is not None
            box.delivered("kept", message)
        assert box.note(studies(2)) == 0
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    def test_a_channel_that_is_no_longer_set_keeps_nothing(self, tmp_path: Path) -> None:
        outbox(tmp_path, "kept", "gone").note(HELD)
        assert outbox(tmp_path).waiting() == Counter(kept=1)


class TestNotifier:
    def run(self, folder: Path, *ways: Kept, look: Callable[[], Seen] = lambda: HELD) -> Counter[str]:
        """Until every way that can deliver has; what was counted."""
        counted: Counter[str] = Counter()
        names = [way.name for way in ways]
        notifier = Notifier(
            outbox(folder, *names),
            ways,
            look,
            count=lambda what: counted.update([what]),
            look_s=0.01,
            pauses_s=(0.01,),
        )
        notifier.start()
        wait_until(lambda: all(way.got or way.blocked for way in ways), 60.0)
        notifier.close()
        return counted

    def test_each_channel_gets_it_once(self, tmp_path: Path) -> None:
        ways = Kept("webhook"), Kept("email")
        assert self.run(tmp_path, *ways) == Counter({SENT: 2})
        for way in ways:
            assert [message.subject for message in way.got] == ["heart-1"]
        assert ways[0].got == ways[1].got

    def test_a_failure_is_tried_again_counted_and_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        way = Kept(fails=4)
        assert self.run(tmp_path, way) == Counter({FAILED: 4, SENT: 1})
        assert len(way.got) == 1
        warned = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.getMessage() for record in warned] == [
            "not delivered by kept, and tried again: here: HTTP 503"
        ]

    def test_a_dead_server_holds_up_neither_the_other_channel_nor_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("secfed.deploy.notification.notifier._CLOSING_S", 0.05)
        dead, way = Kept("dead", blocked=threading.Event()), Kept("kept")
        self.run(tmp_path, dead, way)
        assert len(way.got) == 1
        assert outbox(tmp_path, "dead", "kept").waiting() == Counter(dead=1)
        assert dead.blocked is not None
        dead.blocked.set()

    def test_what_began_last_is_told_at_the_end(self, tmp_path: Path) -> None:
        seen, way = [Seen()], Kept()
        looked = threading.Event()

        def look() -> Seen:
            looked.set()
            return seen[0]

        notifier = Notifier(outbox(tmp_path), [way], look, look_s=60.0)
        notifier.start()
        assert looked.wait(60)
        seen[0] = HELD
        notifier.close()
        assert len(way.got) == 1

    def test_whatever_goes_wrong_is_a_line_in_the_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        looks = [0]

        def look() -> Seen:
            looks[0] += 1
            if looks[0] < 4:
                raise KeyError("patient 4711")
            return HELD

        class Odd(Kept):
            def deliver(self, message: Message) -> str:
                if not self.fails:
                    return super().deliver(message)
                self.fails -= 1
                raise RuntimeError("odd")

        way = Odd(fails=1)
        self.run(tmp_path, way, look=look)
        assert len(way.got) == 1
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2


CODE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
import ssl
from secfed.deploy.notification.channels import Webhook
from secfed.deploy.notification.message import Event
from secfed.deploy.notification.notifier import Notifier
from secfed.deploy.notification.outbox import Outbox, Seen

way = Webhook(sys.argv[2], None, ssl.create_default_context())
box = Outbox(Path(sys.argv[1]), "secfed:site:a", ["webhook"], lambda: datetime.now(UTC))
seen = Seen({"held/1": Event("study.held", "heart-1", "heart-1 waits")}, ("held/",))
notifier = Notifier(box, [way], lambda: seen, look_s=0.01)
notifier.start()
notifier.close()
"""


def test_a_process_that_is_killed_delivers_at_least_once(tmp_path: Path) -> None:
    path = tmp_path / OUTBOX_FILE
    runs = (("notification: queued", -9, 0), ("notification: delivered", -9, 1), ("", 0, 2))
    with served(WebServer()) as web:
        for crash, code, there in runs:
            command = [sys.executable, "-c", CODE, str(path), web.url]
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, VARIABLE: crash}, timeout=60, check=False
            )
            assert done.returncode == code
            assert len(web.asked) == there
        assert len({event["id"] for event in web.events}) == 1
    content = json.loads(path.read_text())
    assert content["waiting"] == []
    assert list(content["told"]) == ["held/1"]
