"""`secfed consortium` and `secfed site` from nothing to a joined site, as people type them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner, Result

from secfed.cli import asking
from secfed.cli.consortium import consortium_app
from secfed.cli.guard import GuardedGroup
from secfed.cli.site import _show_roster, site_app
from secfed.crypto.identity import Roster
from secfed.deploy.enrolment import messages as enrolment
from secfed.deploy.pki import key_files
from secfed.deploy.pki.key_files import PASSPHRASE_FILE
from secfed.errors import ConfigError
from secfed.records.roster_file import read_roster
from tests.deploy.enrol_case import DAY, NOW, content, write

app = typer.Typer(cls=GuardedGroup, pretty_exceptions_enable=False)
app.add_typer(consortium_app, name="consortium")
app.add_typer(site_app, name="site")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSPHRASE_FILE, raising=False)
    at(monkeypatch, 0)


def at(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    monkeypatch.setattr(enrolment, "utc_now", lambda: NOW + day * DAY)


def secfed(*arguments: object, answer: str | None = None, env: dict[str, str] | None = None) -> Result:
    runner = CliRunner(env={"COLUMNS": "120", **(env or {})})
    return runner.invoke(app, [str(item) for item in arguments], input=answer)


def ok(*arguments: object, **more: str) -> str:
    result = secfed(*arguments, **more)  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    return result.stdout


def founded(folder: Path, *names: str) -> Path:
    centre = folder / "centre"
    ok("consortium", "init", centre, "--name", "Heart study", "--aggregator-host", "localhost")
    for name in names:
        ok("site", "init", folder / name, "--name", name)
    if names:
        requests = [folder / name / "request.json" for name in names]
        ok("consortium", "admit", *requests, "--dir", centre, "--yes")
    return centre


def joined(folder: Path, *names: str) -> Path:
    centre = founded(folder, *names)
    for name in names:
        reply, roster = centre / "replies" / f"{name}.json", centre / "roster.json"
        ok("site", "join", reply, "--dir", folder / name, "--roster", roster, "--yes")
    return centre


def test_two_commands_at_the_centre_and_two_at_each_hospital_are_enough(tmp_path: Path) -> None:
    centre = joined(tmp_path, "charite", "hcuge", "ukhd")
    for name in ("charite", "hcuge", "ukhd"):
        out = ok("site", "status", "--dir", tmp_path / name)
        assert "until 2026-05-31 (90 days), Heart study, localhost:8443" in out
        assert "3 sites, pinned since 2026-03-02" in out
    shown = json.loads(ok("consortium", "show", "--dir", centre, "--json"))
    assert [row["owner"] for row in shown["certificates"]] == ["CA", "aggregator", "charite", "hcuge", "ukhd"]
    assert shown["roster_digest"] == read_roster(centre / "roster.json").digest.hex()


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(["consortium", name] for name in ("init", "admit", "remove", "renew", "show")),
        *(["site", name] for name in ("init", "join", "trust", "renew", "status")),
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_consortium_that_only_this_machine_can_reach_is_founded_with_a_warning(tmp_path: Path) -> None:
    local = ("--aggregator-host", "localhost")
    founded = secfed("consortium", "init", tmp_path / "one", "--name", "Heart study", *local)
    assert founded.exit_code == 0
    (line,) = founded.stderr.splitlines()
    assert line.startswith("Warning: only this machine can connect to localhost")
    assert "a new host name needs a new consortium" in line
    hosts = ("--aggregator-host", "fl.example.org", "--aggregator-host", "localhost")
    founded = secfed("consortium", "init", tmp_path / "two", "--name", "Heart study", *hosts)
    assert founded.stderr == ""


def test_without_a_host_name_nothing_is_founded(tmp_path: Path) -> None:
    founded = secfed("consortium", "init", tmp_path / "one", "--name", "Heart study")
    assert founded.exit_code == 2
    assert "--aggregator-host" in founded.stderr
    assert not (tmp_path / "one").exists()


def test_what_only_looks_takes_the_folder_as_an_argument_too(tmp_path: Path) -> None:
    centre = joined(tmp_path, "charite")
    for command, folder in ((("site", "status"), tmp_path / "charite"), (("consortium", "show"), centre)):
        expected = ok(*command, "--dir", folder)
        assert ok(*command, folder) == expected
        assert ok(*command, folder, "--dir", folder) == expected
        result = secfed(*command, folder, "--dir", tmp_path)
        assert result.exit_code == 2
        assert "name two folders" in result.stderr


def test_commands_of_the_centre_name_its_folder(tmp_path: Path) -> None:
    centre = founded(tmp_path, "charite")
    result = secfed("consortium", "admit", tmp_path / "charite" / "request.json", "--dir", centre, "--yes")
    assert f"secfed consortium renew charite --dir {centre}\n" in result.stderr


class TestFingerprints:
    def test_both_sides_see_the_same_fingerprint(self, tmp_path: Path) -> None:
        founded(tmp_path)
        mine = ok("site", "init", tmp_path / "charite", "--name", "charite").splitlines()[0]
        seen = ok(
            "consortium", "admit", tmp_path / "charite/request.json", "--dir", tmp_path / "centre", "--yes"
        )
        assert len(mine.removeprefix("charite  ").split()) == 10
        assert mine in seen

    @pytest.mark.parametrize("command", ["admit", "trust"])
    def test_without_a_person_nothing_is_confirmed(self, tmp_path: Path, command: str) -> None:
        centre = founded(tmp_path, "charite")
        ok("site", "init", tmp_path / "hcuge", "--name", "hcuge")
        arguments: dict[str, list[object]] = {
            "admit": ["consortium", "admit", tmp_path / "hcuge" / "request.json", "--dir", centre],
            "trust": ["site", "trust", centre / "roster.json", "--dir", tmp_path / "charite"],
        }
        result = secfed(*arguments[command])
        assert result.exit_code == 2
        assert "nobody is there to confirm" in result.stderr
        assert read_roster(centre / "roster.json").sites == ("charite",)
        assert not (tmp_path / "charite" / "pinned-roster.json").exists()

    @pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0), ("\n", 1)])
    def test_a_person_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
    ) -> None:
        centre = founded(tmp_path, "charite")
        monkeypatch.setattr(asking, "someone_is_there", lambda: True)
        result = secfed("site", "trust", centre / "roster.json", "--dir", tmp_path / "charite", answer=answer)
        assert result.exit_code == code
        assert "Roster digest: " in result.stdout
        assert (tmp_path / "charite" / "pinned-roster.json").exists() is (code == 0)

    def test_a_digest_from_another_channel_is_enough_and_is_compared(self, tmp_path: Path) -> None:
        centre = founded(tmp_path, "charite")
        digest = read_roster(centre / "roster.json").digest.hex()
        folder = tmp_path / "charite"
        wrong = secfed("site", "trust", centre / "roster.json", "--dir", folder, "--fingerprint", "0" * 64)
        assert wrong.exit_code == 13
        # --yes does not outvote a digest that differs.
        wrong = secfed(
            "site", "trust", centre / "roster.json", "--dir", folder, "--fingerprint", "0" * 64, "--yes"
        )
        assert wrong.exit_code == 13
        assert not (folder / "pinned-roster.json").exists()
        ok("site", "trust", centre / "roster.json", "--dir", folder, "--fingerprint", digest)
        assert "pinned already" in ok("site", "trust", centre / "roster.json", "--dir", folder)


class TestJoinWithRoster:
    def join(self, folder: Path, *more: object) -> Result:
        reply = folder / "centre" / "replies" / "charite.json"
        return secfed("site", "join", reply, "--dir", folder / "charite", *more)

    @pytest.mark.parametrize(
        ("options", "code", "why"),
        [
            (["--roster", "centre/roster.json", "--fingerprint", "0" * 64], 13, "not the one given"),
            (["--roster", "centre/roster.json"], 2, "nobody is there"),
            (["--roster", "other/roster.json", "--yes"], 13, "another aggregator than the reply"),
            (["--roster", "rooster.json", "--yes"], 2, "check the path"),
            (["--fingerprint", "0" * 64], 2, "--roster"),  # a digest without a roster
        ],
    )
    def test_what_is_wrong_installs_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, why: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        founded(tmp_path, "charite")
        ok("consortium", "init", "other", "--name", "Lung study", "--aggregator-host", "localhost")
        ok("consortium", "admit", "charite/request.json", "--dir", "other", "--yes")
        result = self.join(tmp_path, *options)
        assert (result.exit_code, why in result.stderr) == (code, True), result.stderr
        names = ("tls.pem", "consortium.json", "pinned-roster.json")
        assert not any((tmp_path / "charite" / name).exists() for name in names)

    def test_the_right_digest_pins_the_roster(self, tmp_path: Path) -> None:
        roster = founded(tmp_path, "charite") / "roster.json"
        digest = read_roster(roster).digest.hex()
        assert self.join(tmp_path, "--roster", roster, "--fingerprint", digest).exit_code == 0
        assert (tmp_path / "charite" / "pinned-roster.json").exists()


class TestChanges:
    def test_what_changed_is_shown(self, tmp_path: Path) -> None:
        centre = joined(tmp_path, "charite", "hcuge", "ukhd")
        for name in ("hcuge", "ukhd"):
            ok("consortium", "remove", name, "--dir", centre, "--yes")
        for folder, name in (("newcomer", "newcomer"), ("again", "ukhd")):
            ok("site", "init", tmp_path / folder, "--name", name)
            ok("consortium", "admit", tmp_path / folder / "request.json", "--dir", centre, "--yes")
        out = ok("site", "trust", centre / "roster.json", "--dir", tmp_path / "charite", "--yes")
        assert "No longer in it: hcuge" in out
        ends = {line.split()[0]: line.rstrip() for line in out.splitlines() if line.strip()}
        assert ends["newcomer"].endswith("new")
        assert ends["ukhd"].endswith("NEW KEY")
        assert not ends["charite"].endswith("NEW KEY")
        assert "A key changed" in out

    def test_a_new_key_of_the_aggregator_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        members = (("charite", b"\x11" * 32),)
        old, new = (Roster(bytes([number]) * 32, members) for number in (2, 3))
        _show_roster(SimpleNamespace(name="charite"), new, old)
        shown = capsys.readouterr().out
        assert [line.split()[0] for line in shown.splitlines() if "NEW KEY" in line] == ["aggregator"]
        assert "A key changed" in shown

    def test_a_tampered_roster_is_refused(self, tmp_path: Path) -> None:
        centre = joined(tmp_path, "charite", "hcuge")
        roster = content(centre / "roster.json")
        roster["sites"]["hcuge"] = "00" * 32
        tampered = write(tmp_path / "tampered.json", roster)
        result = secfed("site", "trust", tampered, "--dir", tmp_path / "charite", "--yes")
        assert result.exit_code == 13
        assert "digest" in result.stderr


class TestBadFiles:
    def test_one_bad_request_admits_nobody(self, tmp_path: Path) -> None:
        centre = founded(tmp_path)
        for name in ("charite", "hcuge"):
            ok("site", "init", tmp_path / name, "--name", name)
        good = tmp_path / "charite" / "request.json"
        bad = write(tmp_path / "bad.json", {**content(tmp_path / "hcuge/request.json"), "site": "ukhd"})
        result = secfed("consortium", "admit", good, bad, "--dir", centre, "--yes")
        assert result.exit_code == 12
        assert not (centre / "roster.json").exists()
        twice = secfed("consortium", "admit", good, good, "--dir", centre, "--yes")
        assert twice.exit_code == 2
        assert not (centre / "roster.json").exists()

    def test_a_tampered_reply_is_refused(self, tmp_path: Path) -> None:
        centre = founded(tmp_path, "charite")
        reply = write(tmp_path / "r.json", {**content(centre / "replies/charite.json"), "port": 1})
        result = secfed("site", "join", reply, "--dir", tmp_path / "charite")
        assert result.exit_code == 12
        assert not (tmp_path / "charite" / "tls.pem").exists()

    def test_a_request_is_no_reply_and_a_text_is_neither(self, tmp_path: Path) -> None:
        centre = founded(tmp_path, "charite")
        (tmp_path / "text").write_text("\x1b[31mhello")
        for file in (tmp_path / "charite" / "request.json", tmp_path / "text", tmp_path / "none"):
            result = secfed("site", "join", file, "--dir", tmp_path / "charite")
            assert result.exit_code == 2
            assert "Remedy:" in result.stderr
            assert "\x1b" not in result.stderr
        assert secfed("consortium", "admit", tmp_path / "text", "--dir", centre).exit_code == 2

    @pytest.mark.parametrize("command", [["site", "status"], ["consortium", "show"]])
    def test_another_folder_is_named(self, tmp_path: Path, command: list[str]) -> None:
        result = secfed(*command, "--dir", tmp_path)
        assert result.exit_code == 2
        assert "not the folder of" in result.stderr


class TestTime:
    def test_the_end_is_announced_and_renewed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        centre = joined(tmp_path, "charite")
        hospital = tmp_path / "charite"
        at(monkeypatch, 62)
        assert f"secfed site renew --dir {hospital}, then" in ok("site", "status", "--dir", hospital)
        shown = ok("consortium", "show", "--dir", centre)
        assert "secfed consortium renew charite" in shown
        assert "secfed consortium renew aggregator" in shown
        ok("site", "renew", "--dir", hospital)
        ok("consortium", "renew", "charite", "--request", hospital / "request.json", "--dir", centre)
        ok("consortium", "renew", "aggregator", "--dir", centre)
        ok("site", "join", centre / "replies" / "charite.json", "--dir", hospital)
        assert "secfed site renew" not in ok("site", "status", "--dir", hospital)
        assert "Renew:" not in ok("consortium", "show", "--dir", centre)

    def test_an_expired_certificate_is_an_error_for_monitoring(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        joined(tmp_path, "charite")
        at(monkeypatch, 91)
        result = secfed("site", "status", "--dir", tmp_path / "charite", "--json")
        assert result.exit_code == 2
        levels = {item["subject"]: item["level"] for item in json.loads(result.stdout)}
        assert levels["certificate"] == "bad"


class TestPassphrase:
    def test_a_file_serves_both_sides(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_files, "_SCRYPT", {"n": 16, "r": 8, "p": 1})
        secret = tmp_path / "passphrase"
        secret.write_text("correct horse battery\n")
        secret.chmod(0o600)
        env = {PASSPHRASE_FILE: str(secret)}
        assert secfed("site", "init", tmp_path / "charite", "--name", "charite", env=env).exit_code == 0
        assert b"ENCRYPTED" in (tmp_path / "charite" / "identity.key").read_bytes()
        result = secfed("site", "renew", "--dir", tmp_path / "charite")
        assert result.exit_code == 2
        assert PASSPHRASE_FILE in result.stderr
        assert secfed("site", "renew", "--dir", tmp_path / "charite", env=env).exit_code == 0

    def test_without_a_person_or_a_file_there_is_no_passphrase(self, tmp_path: Path) -> None:
        result = secfed("site", "init", tmp_path / "charite", "--name", "charite", "--passphrase")
        assert result.exit_code == 2
        assert not (tmp_path / "charite").exists()


def test_a_study_is_paused_and_resumed_at_the_study_centre(tmp_path: Path) -> None:
    centre = founded(tmp_path)
    assert "secfed consortium resume heart-1 --dir" in ok("consortium", "pause", "heart-1", "--dir", centre)
    ok("consortium", "pause", "heart-1", "--dir", centre)  # twice is once
    assert "Paused: heart-1" in ok("consortium", "show", centre)
    assert json.loads(ok("consortium", "show", centre, "--json"))["paused"] == ["heart-1"]
    assert "Resumed" in ok("consortium", "resume", "heart-1", "--dir", centre)
    assert "Paused" not in ok("consortium", "show", centre)
    for command, study, why in (
        ("resume", "heart-1", "'heart-1' is not paused"),
        ("pause", "../heart", "is not the name of a study"),
    ):
        result = secfed("consortium", command, study, "--dir", centre)
        assert result.exit_code == ConfigError.exit_code
        assert why in result.output
