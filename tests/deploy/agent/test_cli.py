"""`secfed agent`: how the folder is named, and what `refuse` and `approve` do, as people type them."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import signal
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from secfed.cli.agent import _show
from secfed.cli.app import app
from secfed.cli.site_folders import located
from secfed.crypto.identity import Roster, grouped
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.rosters import PINNED_FILE, pin
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import ConfigError, PolicyRefused, RosterError
from secfed.runs.run_folder import ledger_file
from tests.conftest import ROOT
from tests.deploy.agent_case import asked, permit
from tests.ports import without_metrics

DIGEST = b"\x11" * 32


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    folder = tmp_path / "a site"
    SiteFolder.create(folder, "charite", now=utc_now())
    without_metrics(folder)
    return SiteFolder(folder)


def secfed(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(item) for item in arguments])


def ok(*arguments: object) -> str:
    result = secfed(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def not_restarted() -> list[int]:
    """The exit codes after which systemd leaves the agent alone."""
    unit = (ROOT / "deploy" / "systemd" / "secfed-agent.service").read_text(encoding="utf-8")
    return [int(code) for code in re.findall(r"(?m)^RestartPreventExitStatus=(.+)$", unit)[0].split()]


class TestFolder:
    @pytest.mark.parametrize("command", ["status", "pause", "resume", "stop"])
    def test_it_is_named_as_an_argument_or_with_dir(self, site: SiteFolder, command: str) -> None:
        before = ok("agent", command, site.folder)
        assert ok("agent", command, "--dir", site.folder) == before
        assert ok("agent", command, site.folder, "--dir", site.folder) == before

    def test_run_takes_it_too(self, tmp_path: Path) -> None:
        for where in ([tmp_path], ["--dir", tmp_path]):
            result = secfed("agent", "run", *where)
            assert result.exit_code == 2
            assert f"{tmp_path}: not the folder of a site" in result.stderr

    @pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
    def test_a_pause_that_is_none_or_never_ends_is_refused(self, site: SiteFolder, seconds: str) -> None:
        result = secfed("agent", "run", site.folder, "--poll-s", seconds)
        assert result.exit_code == 2
        assert f"--poll-s {float(seconds):g}: must be from 0.1 to 86400" in result.stderr

    def test_two_folders_are_one_too_many(self, site: SiteFolder, tmp_path: Path) -> None:
        result = secfed("agent", "status", site.folder, "--dir", tmp_path)
        assert result.exit_code == 2
        assert "name two folders" in result.stderr

    def test_an_argument_is_stronger_than_the_environment(
        self, site: SiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECFED_SITE_DIR", str(tmp_path))
        assert secfed("agent", "status").exit_code == 2
        assert "charite" in ok("agent", "status", site.folder)

    def test_a_printed_command_works_where_it_is_read(
        self, site: SiteFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked(site, "heart-1", DIGEST)
        shown = ok("agent", "status", "--dir", site.folder)
        (line,) = (line for line in shown.splitlines() if "secfed agent approve" in line)
        words = shlex.split(line.partition("secfed ")[2])
        assert words[-2:] == ["--dir", str(site.folder)]
        assert "Approved heart-1" in ok(*words)
        Approvals(site.approvals_path).hold("heart-2", b"\x22" * 32, utc_now())
        monkeypatch.chdir(site.folder)
        assert "--dir" not in ok("agent", "status")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("then: secfed site join REPLY", "then: secfed site join REPLY --dir /srv/x"),
            ("secfed site renew, then give it", "secfed site renew --dir /srv/x, then give it"),
            ("secfed site trust ROSTER --dir y", "secfed site trust ROSTER --dir y"),
            (
                "at the site: secfed agent approve 5671aaaa5671aaaa",
                "at the site: secfed agent approve 5671aaaa5671aaaa --dir /srv/x",
            ),
            ("secfed site init", "secfed site init"),
            ("secfed consortium show", "secfed consortium show"),
        ],
    )
    def test_commands_in_a_remedy_name_the_folder(self, text: str, expected: str) -> None:
        assert located(text, Path("/srv/x")) == expected

    def test_a_remedy_names_the_folder_that_was_given(
        self, site: SiteFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for where in ([site.folder], ["--dir", site.folder]):
            result = secfed("agent", "run", *where)
            assert f"secfed site join REPLY --dir '{site.folder}' --roster ROSTER\n" in result.stderr
        monkeypatch.chdir(site.folder)
        assert "secfed site join REPLY --roster ROSTER\n" in secfed("agent", "run").stderr

    def test_an_agent_without_a_roster_is_not_started_again_and_again(self, site: SiteFolder) -> None:
        result = secfed("agent", "run", site.folder)
        assert f"{site.folder}: no roster is pinned." in result.stderr
        assert result.exit_code in not_restarted()

    def test_neither_is_one_whose_pinned_roster_was_changed(self, site: SiteFolder) -> None:
        members = (("charite", site.identity(None).public_bytes), ("hcuge", b"\x22" * 32))
        pin(site.folder / PINNED_FILE, Roster(b"\x11" * 32, members), utc_now())
        text = (site.folder / PINNED_FILE).read_text()
        (site.folder / PINNED_FILE).write_text(text.replace("22" * 32, "33" * 32))
        result = secfed("agent", "run", site.folder)
        assert "the pinned roster was changed" in result.stderr
        assert result.exit_code == RosterError.exit_code in not_restarted()

    def test_the_log_and_the_last_error_name_it_too(
        self, site: SiteFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Failing:
            def __init__(self, *_: Any, board: Any, **__: Any) -> None:
                self.board = board

            def run(self) -> None:
                error = ConfigError("no memory", remedy="at the site: secfed site confirm")
                self.board.error(str(error))
                self.board.set(connection="connected")
                logging.getLogger("secfed.deploy.agent.agent").warning("study not served: %s", error)

            def stop(self) -> None:
                pass

        monkeypatch.setattr(agent_module, "Agent", Failing)
        handlers = list(logging.getLogger().handlers)
        try:
            logged = ok("agent", "run", site.folder)
        finally:
            logging.getLogger().handlers = handlers
        command = f"secfed site confirm --dir '{site.folder}'"
        assert command in json.loads(logged.splitlines()[-1])["message"]
        (line,) = (line for line in ok("agent", "status", site.folder).splitlines() if "Last error" in line)
        assert line.endswith(command)


def test_a_ledger_that_does_not_verify_is_named_and_the_rest_is_shown(site: SiteFolder) -> None:
    permit(site)
    ledger = ledger_file(site.state, "wards")
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text("{}\n")
    shown = ok("agent", "status", site.folder)
    assert "charite" in shown
    assert ledger.name in shown.replace("\n", "").replace(" ", "")
    content = json.loads(ok("agent", "status", site.folder, "--json"))
    assert content["budgets"] == []
    assert str(ledger) in content["ledger_error"]


def test_on_a_terminal_an_agent_speaks_like_a_person(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Working:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run(self) -> None:
            log = logging.getLogger("secfed.agent")
            log.info("study served", extra={"facts": {"study": f"heart-{DIGEST.hex()}"}})
            log.warning("study 'heart' waits\x1b[2J. Remedy: secfed agent approve 12345678")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(agent_module, "Agent", Working)
    monkeypatch.setattr("secfed.cli.agent._is_terminal", lambda: True)
    handlers = list(logging.getLogger().handlers)
    try:
        said = ok("agent", "run", site.folder).splitlines()
    finally:
        logging.getLogger().handlers = handlers
    assert re.fullmatch(r"\d\d:\d\d:\d\d study served \(heart 1111111111111111\)", said[0])
    command = f"secfed agent approve 12345678 --dir '{site.folder}'"
    assert said[1][9:] == f"warning: study 'heart' waits\N{REPLACEMENT CHARACTER}[2J. Remedy: {command}"


class TestRefuse:
    def test_a_name_that_has_not_asked_is_refused_and_taken_back(self, site: SiteFolder) -> None:
        said = ok("agent", "refuse", "heart-1", "--unasked", "--dir", site.folder)
        assert "Refused heart-1, whatever its settings; it has not asked yet." in said
        store = Approvals(site.approvals_path)
        with pytest.raises(PolicyRefused, match="was refused"):
            store.require("heart-1", DIGEST, utc_now(), manual=False)
        assert "heart-1, whatever its settings" in ok("agent", "status", "--dir", site.folder)
        content = json.loads(ok("agent", "status", "--dir", site.folder, "--json"))
        assert [item["name"] for item in content["refused_names"]] == ["heart-1"]
        back = said.splitlines()[-1].partition("secfed ")[2]
        assert "No longer refused: heart-1" in ok(*shlex.split(back))
        store.require("heart-1", DIGEST, utc_now(), manual=False)

    def test_a_whole_digest_that_has_not_asked_is_refused(self, site: SiteFolder) -> None:
        said = ok("agent", "refuse", DIGEST.hex(), "--unasked", "--dir", site.folder)
        assert "Refused a study that has not asked yet" in said
        with pytest.raises(PolicyRefused, match="was refused"):
            Approvals(site.approvals_path).require("heart-1", DIGEST, utc_now(), manual=False)
        assert "heart-1 1111111111111111: refused" in ok("agent", "status", "--dir", site.folder)

    def test_a_digest_that_is_refused_leaves_other_settings_and_says_so(self, site: SiteFolder) -> None:
        Approvals(site.approvals_path).record("heart-1", DIGEST, utc_now())
        assert "1111111111111111: permitted by the policy" in ok("agent", "status", site.folder)
        said = ok("agent", "refuse", "11111111", "--dir", site.folder)
        assert f"Refused heart-1  {DIGEST.hex()}" in said
        assert "With other settings too: secfed agent refuse heart-1 --dir" in said

    def test_what_is_neither_changes_nothing(self, site: SiteFolder) -> None:
        for text in ("heart-*", "1111111111", "heart-1-1111111111111111"):
            for more in ((), ("--unasked",)):
                assert secfed("agent", "refuse", text, *more, "--dir", site.folder).exit_code == 2
        for text in ("heart-1", DIGEST.hex()):
            assert secfed("agent", "refuse", text, "--dir", site.folder).exit_code == 2
        assert not site.approvals_path.exists()

    def test_what_is_shown_of_a_study_is_taken_and_what_is_unknown_lists_what_is_known(
        self, site: SiteFolder
    ) -> None:
        Approvals(site.approvals_path).record("heart-1", DIGEST, utc_now())
        listed = ok("agent", "status", site.folder)
        (line,) = (line for line in listed.splitlines() if "permitted by the policy" in line)
        ids = (line.split()[2].rstrip(":"), f"heart-1-{DIGEST.hex()[:16]}", f"heart-1-{DIGEST.hex()}")
        for text in (*ids, grouped(DIGEST.hex()), "heart-1"):
            assert "heart-1" in ok("agent", "show", text, "--dir", site.folder)
            assert "Refused heart-1" in ok("agent", "refuse", text, "--dir", site.folder)
        for command, text in product(("refuse", "approve", "show"), ("lung", f"lung-{DIGEST.hex()[:16]}")):
            said = secfed("agent", command, text, "--dir", site.folder)
            assert said.exit_code == 2
            assert "known studies: heart-1 1111111111111111" in " ".join(said.output.split())


def test_a_signal_while_a_lock_is_held_does_not_hang_the_agent(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, stopped, free = threading.Lock(), threading.Event(), []

    class Busy:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run(self) -> None:
            with lock:  # as Event.wait and gRPC hold theirs
                os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(60)

        def stop(self) -> None:
            free.append(lock.acquire(timeout=30))
            stopped.set()

    monkeypatch.setattr(agent_module, "Agent", Busy)
    monkeypatch.setattr("secfed.deploy.transport.json_log.log_as_json", lambda *_, **__: None)
    ok("agent", "run", site.folder)
    assert free == [True]


def test_the_status_shows_no_less_than_was_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    standings = [{"spent": {"epsilon": 1.2341}, "epsilon": 3.0}, {"spent": None, "epsilon": None}]
    content = {"site": "ward", "running": False, "paused": False, "studies": [], "refused_names": []}
    _show({**content, "budgets": [{"data": "heart", "standings": standings}]}, tmp_path)
    shown = capsys.readouterr().out
    assert "heart: epsilon 1.235 of 3.0" in shown
    assert "heart: epsilon 0.000 of no limit" in shown
