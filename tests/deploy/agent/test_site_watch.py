"""What an agent's people are told: each state once, from what the agent keeps anyway."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from secfed.cli.app import app
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.agent.site_watch import SiteWatch, newest_payment, notifier_of
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.message import Event
from secfed.deploy.notification.outbox import OUTBOX_FILE
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import ConfigError, SecfedError
from secfed.runs.run_folder import ledger_file
from tests.deploy.agent_case import BUDGETED, NAMES, Centre, permit
from tests.deploy.enrol_case import enrolled
from tests.deploy.link_case import wait_until
from tests.deploy.notify_case import NOW, MailServer, WebServer, free_port, served
from tests.ports import without_metrics

DIGEST = "11" * 32
STUDY = f"heart-1-{DIGEST}"
HELD = "study 'heart-1' waits for the approval of this site. Remedy: at the site: secfed agent approve 11"


class Watched:
    """A site, its board, and what is told of it; time stands still unless it is set."""

    def __init__(self, site: SiteFolder) -> None:
        self.site = site
        make_state_folder(site.state)
        self.board = StatusBoard(site.state / STATUS_FILE, site.name)
        self.now, self.clock_s = NOW, 0.0
        self.watch = SiteWatch(site, self.board, lambda: self.now, lambda: self.clock_s)
        self.told: set[str] = set()

    def new(self) -> list[Event]:
        """What one more look tells, as the outbox decides it."""
        seen = self.watch.look()
        over = {key for key in self.told if key not in seen.holds and key.startswith(tuple(seen.over))}
        found = [event for key, event in seen.holds.items() if key not in self.told]
        self.told = (self.told - over) | set(seen.holds)
        return found

    def kinds(self) -> list[str]:
        return [event.kind for event in self.new()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    _, sites = enrolled(tmp_path)
    return Watched(next(iter(sites.values())))


def test_a_fresh_site_has_nothing_to_tell(watched: Watched) -> None:
    assert watched.kinds() == []


def test_a_held_study_is_told_until_a_person_decides(watched: Watched) -> None:
    approvals = Approvals(watched.site.approvals_path)
    approvals.hold("heart-1", bytes.fromhex(DIGEST), NOW)
    (event,) = watched.new()
    assert event.kind == "study.held"
    assert event.text == "study heart-1 waits for your approval"
    assert f"secfed agent approve {DIGEST[:16]}" in event.remedy
    # The agent declines it meanwhile: that is not another state.
    watched.board.set(study=STUDY, state="refused", why=HELD)
    assert watched.kinds() == []
    approvals.approve_what("heart-1", NOW)
    watched.board.set(study=STUDY, state="serving", why=None)
    assert watched.kinds() == []
    assert watched.told == set()


def test_a_damaged_file_neither_ends_the_look_nor_a_state(watched: Watched) -> None:
    Approvals(watched.site.approvals_path).hold("heart-1", bytes.fromhex(DIGEST), NOW)
    assert watched.kinds() == ["study.held"]
    before = watched.site.approvals_path.read_bytes()
    watched.site.approvals_path.write_text("{")
    watched.now = NOW + timedelta(days=70)
    assert set(watched.kinds()) == {"certificate.ending"}
    watched.site.approvals_path.write_bytes(before)
    assert watched.kinds() == []


def test_a_refusal_is_told_with_the_policys_words_and_a_failure_without(watched: Watched) -> None:
    board = watched.board
    board.set(study=STUDY, state="refused", why="algorithm.local_epochs: the study has 10")
    (event,) = watched.new()
    assert event.kind == "study.refused"
    assert "local_epochs: the study has 10" in event.text
    assert watched.kinds() == []
    board.set(study=f"lung-{DIGEST}", state="serving", why=None)  # another: nothing is known of the first
    assert watched.kinds() == []
    board.set(study=STUDY, state="refused", why="algorithm.local_epochs: the study has 9")
    assert watched.kinds() == []
    board.set(state="serving", why=None)
    assert watched.kinds() == []
    board.set(state="failed", why="ledger-heart.jsonl: 4711 records")
    (event,) = watched.new()
    assert event.kind == "study.failed"
    assert "4711" not in json.dumps(event.__dict__)
    board.set(state="refused", why="no")
    assert watched.kinds() == ["study.refused"]
    # A restart knows of no study at first.
    watched.watch = SiteWatch(watched.site, StatusBoard(board.path, "x"), lambda: NOW)
    assert watched.kinds() == []
    assert len(watched.told) == 1


@pytest.mark.parametrize("why", ["this site has paused its agent", "study 'heart-1' waits for the hours"])
def test_what_passes_by_itself_is_no_refusal_and_ends_none(watched: Watched, why: str) -> None:
    steps = []
    for state, said in (
        ("refused", f"{why}. Remedy: wait"),
        ("refused", "no"),
        ("paused", why),
        ("refused", "no"),
    ):
        watched.board.set(study=STUDY, state=state, why=said)
        steps.append(watched.kinds())
    assert steps == [[], ["study.refused"], [], []]


def paying(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Says what the newest payment brought a budget to; what is then told of it: percent that are left."""

    def paid(epsilon: float, *, limit: float = 20.0, ago_days: int = 0) -> list[object]:
        permit(watched.site, policy=BUDGETED.replace("20.0", f"{limit}\nperiod_days = 30"))
        budget = {"epsilon": 20.0, "delta": 1e-4, "period_days": 30, "protects": "record"}
        other = {**budget, "period_days": None, "spent": {"epsilon": 99.0}}
        after = [other, {**budget, "spent": {"epsilon": epsilon}}]
        time_s = NOW.timestamp() - ago_days * 86_400
        monkeypatch.setattr(SiteWatch, "_payment", lambda *_: {"time_s": time_s, "after": after})
        return [event.facts["left_percent"] for event in watched.new()]

    return paid


def test_a_low_budget_is_told_once_and_again_after_more_was_left(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid = paying(watched, monkeypatch)
    spent = (15.9, 16.0, 16.1, 19.0, 15.8, 16.2, 14.9, 25.0)
    assert [paid(epsilon) for epsilon in spent] == [[], [], [19], [], [], [], [], [0]]
    assert [paid(25.0, limit=limit) for limit in (40.0, 30.0)] == [[], [16]]
    assert [paid(25.0, ago_days=days) for days in (30, 31, 30)] == [[], [], [0]]


def test_the_newest_payment_is_found_in_a_ledger(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    site = watched.site
    permit(site, policy=BUDGETED.replace("20.0", "4.0"))
    path = ledger_file(site.state, "wards")
    assert watched.kinds() == []
    ledger = Ledger(path, site.identity(None), "wards", [Budget(4.0, 1e-4)], accountant=Rdp())
    assert newest_payment(path) == {}
    for number in (1, 2):
        event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 1.7, 1)
        entry = ledger.spend(event, study=STUDY, round_number=number, exchange="update")
    (told,) = watched.new()
    assert told.kind == "budget.low"
    assert told.text.endswith("of data set wards: epsilon 4 for each record in all")
    assert newest_payment(path) == entry.body
    with path.open("ab") as stream:  # many other entries, and what a crash leaves
        stream.write(b'{"kind":"unprotected","body":{}}\n' * 4000 + b'{"kind":"sp')
    monkeypatch.setattr("secfed.deploy.agent.site_watch._TAIL_BYTES", 64)
    assert newest_payment(path) == entry.body


def test_certificates_are_told_four_weeks_ahead_and_when_they_have_ended(watched: Watched) -> None:
    end = watched.site.tls.certificate()
    assert end is not None
    watched.now = end.not_valid_after_utc - timedelta(days=28, minutes=1)
    assert watched.kinds() == []
    watched.now += timedelta(minutes=2)
    (event,) = watched.new()
    assert event.kind == "certificate.ending"
    assert event.facts["days_left"] == 27
    assert "secfed site renew" in event.remedy
    watched.now += timedelta(days=10)
    assert watched.kinds() == []
    watched.now += timedelta(days=20)
    assert watched.kinds() == ["certificate.expired"]


def test_silence_is_told_after_a_while_and_not_after_the_end_of_a_study(watched: Watched) -> None:
    board, steps = watched.board, []

    def after(seconds: float, **status: Any) -> None:
        watched.clock_s += seconds
        board.set(**status)
        steps.append(watched.kinds())

    after(3599)
    after(1)  # never connected
    after(7200, connection="failing")
    after(1, connection="connected", state="serving")
    after(3000, connection="failing")
    after(1000)
    after(1, connection="connected", state="finished")
    after(9999, connection="failing")
    assert [len(told) for told in steps] == [0, 1, 0, 0, 0, 1, 0, 0]
    after(9999, connection="closed", state="stopped")
    assert steps[-1] == []


def configure(site: SiteFolder, text: str) -> SiteFolder:
    path = site.folder / "site.toml"
    kept = re.split(r"(?m)^\[(?:notifications|webhook|email)\]", path.read_text())[0]
    path.write_text(kept + text)
    return SiteFolder(site.folder)


def mailing(server: MailServer) -> str:
    return (
        f'[email]\nhost = "127.0.0.1"\nport = {server.port}\nstarttls = false\n'
        'sender = "secfed@uk.example"\nto = ["it@uk.example"]\n'
    )


def secfed(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(item) for item in arguments])


class TestCommand:
    def test_it_sends_a_test_message_by_each_way(self, watched: Watched) -> None:
        with served(WebServer()) as web, served(MailServer()) as mail:
            site = configure(watched.site, f'[webhook]\nurl = "{web.url}"\n{mailing(mail)}')
            done = secfed("agent", "notify", "--test", "--dir", site.folder)
            assert done.exit_code == 0, done.output
            assert f"✓ webhook  http://127.0.0.1:{web.server_port}: HTTP 204" in done.stdout
            assert f"✓ email    smtp://127.0.0.1:{mail.port}: taken for 1 of 1" in done.stdout
            assert [event["type"] for event in web.events] == ["secfed.test"]
            assert len(mail.mails) == 1
            web.status = 500
            done = secfed("agent", "notify", "--test", "--dir", site.folder)
            assert done.exit_code == 23
            assert "✗ webhook" in done.stdout
            assert "HTTP 500" in done.stdout
            assert "✓ email" in done.stdout
        shown = secfed("agent", "notify", "--dir", site.folder).stdout
        assert f"webhook  http://127.0.0.1:{web.server_port}, 0 waiting" in shown
        assert not (site.state / OUTBOX_FILE).exists()

    def test_nobody_to_tell_is_said(self, watched: Watched) -> None:
        done = secfed("agent", "notify", "--dir", watched.site.folder)
        assert done.exit_code == 2
        assert "nobody is told of anything" in done.stderr
        assert "webhook.url or email.host" in done.stderr

    def test_site_check_looks_at_it(self, watched: Watched) -> None:
        def lines() -> str:
            done = secfed("site", "check", "--offline", "--dir", watched.site.folder)
            return next((line for line in done.stdout.splitlines() if " notification " in line), "")

        assert lines() == ""
        site = configure(watched.site, '[webhook]\nurl = "https://a.example/s3cret"\n')
        assert "✓ notification webhook to https://a.example;" in lines()
        configure(site, '[notifications]\nsecrets = "secrets.toml"\n[webhook]\nurl = "https://a.example/x"\n')
        (site.folder / "secrets.toml").write_text('webhook_token = "s3cret"')
        os.chmod(site.folder / "secrets.toml", 0o644)
        assert "✗ notification " in lines()
        assert "(mode 644)" in lines()


class Idle:
    """In the agent's place: it does nothing, or fails."""

    error: SecfedError | None = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def run(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("error", [None, ConfigError("a file is wrong")])
def test_secfed_agent_run_tells_also_what_began_just_before_its_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, error: SecfedError | None
) -> None:
    monkeypatch.setattr(agent_module, "Agent", Idle)
    monkeypatch.setattr(Idle, "error", error)
    monkeypatch.setattr("secfed.deploy.transport.json_log.log_as_json", lambda *_, **__: None)
    with served(WebServer()) as web:
        site = configure(watched.site, f'[webhook]\nurl = "{web.url}"\n')
        without_metrics(site.folder)
        Approvals(site.approvals_path).hold("heart-1", bytes.fromhex(DIGEST), NOW)
        for _ in range(2):
            assert secfed("agent", "run", site.folder).exit_code == (0 if error is None else 2)
        # The certificates of these tests are long over, which is told, too.
        assert [event["subject"] for event in web.events].count("heart-1") == 1
        assert web.events[0]["source"] == f"secfed:site:{site.name}"


class TestAgent:
    """The whole way, with agents at work."""

    def test_a_held_study_reaches_people_and_a_dead_mail_server_delays_no_round(
        self, centre: Centre, trains_here: None
    ) -> None:
        name = NAMES[0]
        permit(centre.folders[name], "manual")
        with served(WebServer()) as web, served(MailServer()) as dead:
            mail = mailing(dead).replace(str(dead.port), str(free_port()))
            site = configure(centre.folders[name], f'[webhook]\nurl = "{web.url}"\n{mail}')
            centre.folders[name] = site
            centre.start(name)
            notifier = notifier_of(site, centre.boards[name], utc_now, look_s=0.02)
            assert notifier is not None
            notifier.start()
            wait_until(lambda: bool(web.asked), 60.0)
            assert web.url not in centre.declined()
            Approvals(site.approvals_path).approve_what("tiny", utc_now())
            for other in NAMES[1:]:
                centre.start(other)
            (outcome, *_) = centre.complete()
            assert len(outcome.survivors) == 3
            notifier.close()
        assert [event["type"] for event in web.events] == ["secfed.study.held"]
        assert web.events[0]["data"]["study"] == "tiny"
        totals = centre.boards[name].snapshot()["totals"]
        assert totals["notifications"] == 1
        assert totals["notification_failures"] >= 1
        kept = json.loads((site.state / OUTBOX_FILE).read_text())
        assert [(item["channel"], item["message"]["subject"]) for item in kept["waiting"]] == [
            ("email", "tiny")
        ]

    def test_unusable_settings_do_not_keep_the_agent_from_working(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = configure(
            watched.site, '[notifications]\nsecrets = "none.toml"\n[webhook]\nurl = "https://a.example"\n'
        )
        assert notifier_of(site, watched.board, utc_now) is None
        assert "nobody is told of anything" in caplog.text
        assert watched.board.snapshot()["totals"]["notification_failures"] == 1


def test_nothing_of_it_knows_the_link() -> None:
    import grimp

    graph = grimp.build_graph("secfed", cache_dir=None)
    notification, transport = "secfed.deploy.notification", "secfed.deploy.transport"
    for importer, imported in ((notification, transport), (transport, notification)):
        assert not graph.find_shortest_chains(importer, imported, as_packages=True)
