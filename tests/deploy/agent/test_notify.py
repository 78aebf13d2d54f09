"""`secfed agent notify`, `secfed site check` and agents at work: messages on the whole way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from secfed.cli.app import app
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.agent.site_watch import notifier_of
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.notification.outbox import OUTBOX_FILE
from secfed.errors import ConfigError, SecfedError
from tests.deploy.agent_case import NAMES, Centre, permit
from tests.deploy.enrol_case import enrolled
from tests.deploy.link_case import wait_until
from tests.deploy.notify_case import NOW, MailServer, WebServer, configure, free_port, mailing, served
from tests.ports import without_metrics


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    _, sites = enrolled(tmp_path)
    found = next(iter(sites.values()))
    make_state_folder(found.state)
    return found


def secfed(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(item) for item in arguments])


class TestCommand:
    def test_it_sends_a_test_message_by_each_way(self, site: SiteFolder) -> None:
        with served(WebServer()) as web, served(MailServer()) as mail:
            site = configure(site, f'[webhook]\nurl = "{web.url}"\n{mailing(mail)}')
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

    def test_nobody_to_tell_is_said(self, site: SiteFolder) -> None:
        done = secfed("agent", "notify", "--dir", site.folder)
        assert done.exit_code == 2
        assert "nobody is told of anything" in done.stderr
        assert "webhook.url or email.host" in done.stderr

    def test_site_check_looks_at_it(self, site: SiteFolder) -> None:
        def lines() -> str:
            done = secfed("site", "check", "--offline", "--dir", site.folder)
            return next((line for line in done.stdout.splitlines() if " notification " in line), "")

        assert lines() == ""
        site = configure(site, '[webhook]\nurl = "https://a.example/s3cret"\n')
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
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch, error: SecfedError | None
) -> None:
    monkeypatch.setattr(agent_module, "Agent", Idle)
    monkeypatch.setattr(Idle, "error", error)
    monkeypatch.setattr("secfed.deploy.transport.json_log.log_as_json", lambda *_, **__: None)
    with served(WebServer()) as web:
        site = configure(site, f'[webhook]\nurl = "{web.url}"\n')
        without_metrics(site.folder)
        Approvals(site.approvals_path).hold("heart-1", b"\x11" * 32, NOW)
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
        self, site: SiteFolder, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = configure(
            site, '[notifications]\nsecrets = "none.toml"\n[webhook]\nurl = "https://a.example"\n'
        )
        board = StatusBoard(site.state / STATUS_FILE, site.name)
        assert notifier_of(site, board, utc_now) is None
        assert "nobody is told of anything" in caplog.text
        assert board.snapshot()["totals"]["notification_failures"] == 1


def test_nothing_of_it_knows_the_link() -> None:
    import grimp

    graph = grimp.build_graph("secfed", cache_dir=None)
    notification, transport = "secfed.deploy.notification", "secfed.deploy.transport"
    for importer, imported in ((notification, transport), (transport, notification)):
        assert not graph.find_shortest_chains(importer, imported, as_packages=True)
