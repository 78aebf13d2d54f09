"""Backups of a hospital's folder: whole, without what must never come back, and harmless when restored."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.admission.approvals import Approvals, ApprovalState
from secfed.deploy.agent.control import make_state_folder, only_agent
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import TranscriptError
from secfed.runs.run_folder import ledger_file
from secfed.site.runtime import recorded_heads

DIGEST = "5" * 64
NEVER = ("journal.sqlite", "status.json", "studies/heart-5555/work/secrets", "studies/heart-5555/a.log")
LEDGER = '{"seq":0,"hash":"aa"}\n'


def secfed(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(item) for item in arguments])


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    made = SiteFolder.create(tmp_path / "site", "charite", now=utc_now())
    make_state_folder(made.state)
    begun = json.dumps({"study": f"heart-{DIGEST}", "ended_s": None})
    for name, text in {
        "ledger-heart.jsonl": LEDGER + '{"seq":1',  # a line that is being written
        "decisions.jsonl": "{}\n",
        "studies/heart-5555/transcript.jsonl": "{}\n",
        "studies/heart-5555/settings.json": begun,
        **dict.fromkeys(NEVER, "secret"),
    }.items():
        path = made.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return made


def written(site: SiteFolder, *options: str) -> Path:
    out = site.folder.parent / "backup.tar.gz"
    done = secfed("site", "backup", out, "--dir", site.folder, *options)
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("keys", [False, True])
def test_it_holds_no_secret_of_an_exchange_and_keys_only_if_asked(site: SiteFolder, keys: bool) -> None:
    out = written(site, *(["--keys"] if keys else []))
    assert out.stat().st_mode & 0o077 == 0
    with tarfile.open(out) as tar:
        held = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert held["state/ledger-heart.jsonl"].decode() == LEDGER
    assert {"site/policy.toml", "state/studies/heart-5555/transcript.jsonl"} <= set(held)
    assert b"secret" not in b"".join(held.values())
    assert ("site/identity.key" in held, "site/tls.key" in held) == (keys, keys)


def test_a_lost_folder_comes_back_without_ledgers_and_without_its_running_study(site: SiteFolder) -> None:
    out, new = written(site, "--keys"), site.folder.parent / "new"
    done = secfed("site", "restore", out, "--dir", new)
    assert done.exit_code == 0, done.output
    there = SiteFolder(new)
    assert there.identity(None).public_bytes == site.identity(None).public_bytes
    assert not (there.state / "ledger-heart.jsonl").exists()
    assert (there.state / "from-backup" / "ledger-heart.jsonl").read_text() == LEDGER
    assert not any((there.state / name).exists() for name in NEVER)
    assert Approvals(there.approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN
    assert "Refused   heart: it was under way" in done.stdout
    assert "it may be older than what was spent" in done.stdout


def test_what_is_there_stays(site: SiteFolder) -> None:
    out = written(site)
    (site.state / "ledger-heart.jsonl").write_text(LEDGER + '{"seq":1,"hash":"bb"}\n')
    site.policy_path.write_text("# newer")
    (site.state / "decisions.jsonl").unlink()
    done = secfed("site", "restore", out, "--dir", site.folder)
    assert done.exit_code == 0, done.output
    assert site.policy_path.read_text() == "# newer"
    assert '"bb"' in (site.state / "ledger-heart.jsonl").read_text()
    assert (site.state / "decisions.jsonl").exists()
    assert "Kept      state/ledger-heart.jsonl" in done.stdout
    # The journal is here, and with it what was answered.
    assert Approvals(site.approvals_path).state(bytes.fromhex(DIGEST)) is None


def opened(site: SiteFolder, dataset: str, budget: float = 1.0) -> Ledger:
    path, budgets = ledger_file(site.state, dataset), [Budget(budget, 1e-5)]
    return Ledger(path, site.identity(None), dataset, budgets, recorded=recorded_heads(site.state))


POLICY = """approve = "manual"
[[data]]
name = "heart"
source = "csv"
[[data]]
name = "lung"
source = "csv"
"""


@pytest.mark.parametrize("agent_came_first", [False, True])
def test_a_data_set_is_refused_until_its_newest_ledger_is_back(
    site: SiteFolder, agent_came_first: bool
) -> None:
    site.policy_path.write_text(POLICY)
    path = ledger_file(site.state, "heart")
    path.unlink()
    opened(site, "heart")
    out, new = written(site, "--keys"), site.folder.parent / "new"
    secfed("site", "restore", out, "--dir", new)
    there = SiteFolder(new)
    if agent_came_first:  # and began a second history, before the copy of the first came to it
        (there.state / "from-backup" / path.name).unlink()
        opened(there, "heart", budget=2.0)
    done = secfed("site", "restore", out, "--dir", new)
    assert "refused until its newest ledger is back" in done.stdout
    with pytest.raises(TranscriptError, match=r"from-backup/ledger-heart.jsonl, line 2 .*recorded"):
        opened(there, "heart")
    newest = ledger_file(there.state, "heart")
    newest.unlink(missing_ok=True)
    with pytest.raises(TranscriptError, match=r"another name in policy.toml"):
        opened(there, "heart")
    newest.write_bytes(path.read_bytes())
    assert opened(there, "heart").head == opened(site, "heart").head
    assert opened(there, "heart-2")


def test_of_two_copies_the_one_that_knows_more_is_kept(site: SiteFolder) -> None:
    out, new = written(site, "--keys"), site.folder.parent / "new"
    newer = LEDGER + '{"seq":1,"hash":"bb"}\n'
    (site.state / "ledger-heart.jsonl").write_text(newer)
    assert secfed("site", "backup", out.with_name("newer.tar.gz"), "--dir", site.folder).exit_code == 0
    for backup in ("backup.tar.gz", "newer.tar.gz", "backup.tar.gz"):
        secfed("site", "restore", out.with_name(backup), "--dir", new)
    assert (SiteFolder(new).state / "from-backup" / "ledger-heart.jsonl").read_text() == newer


def test_a_data_set_without_a_ledger_may_have_been_paid_for_since(site: SiteFolder) -> None:
    site.policy_path.write_text(POLICY)
    out, new = written(site, "--keys"), site.folder.parent / "new"
    opened(site, "lung")  # after the backup
    done = secfed("site", "restore", out, "--dir", new)
    assert "Unknown   lung: what was spent of its budget" in done.stdout
    there = SiteFolder(new)
    for _ in range(2):
        with pytest.raises(TranscriptError, match="lacks the state"):
            opened(there, "lung")
    path = ledger_file(there.state, "lung")
    path.write_bytes(ledger_file(site.state, "lung").read_bytes())
    assert opened(there, "lung")


def test_refusals_come_back_and_approvals_do_not(site: SiteFolder) -> None:
    approvals = Approvals(site.approvals_path)
    for digit in "67":
        approvals.hold("heart", bytes.fromhex(digit * 64), utc_now())
    approvals.approve_what("6" * 64, utc_now())
    approvals.refuse_what("7" * 64, utc_now())
    out, new = written(site), site.folder.parent / "new"
    assert secfed("site", "restore", out, "--dir", new).exit_code == 0
    there = Approvals(SiteFolder(new).approvals_path)
    assert there.state(bytes.fromhex("6" * 64)) is None
    assert there.state(bytes.fromhex("7" * 64)) is ApprovalState.WITHDRAWN


def test_a_running_study_that_was_forgotten_is_refused_also_beside_a_newer_journal(site: SiteFolder) -> None:
    out = written(site)
    (site.state / "studies/heart-5555/settings.json").unlink()
    done = secfed("site", "restore", out, "--dir", site.folder)
    assert "Refused   heart" in done.stdout
    assert Approvals(site.approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN


def test_nothing_is_restored_while_the_agent_runs_or_into_another_site(site: SiteFolder) -> None:
    out = written(site)
    with only_agent(site.state):
        done = secfed("site", "restore", out, "--dir", site.folder)
    assert (done.exit_code, "another agent is running" in done.stderr) == (2, True)
    other = SiteFolder.create(site.folder.parent / "other", "ukhd", now=utc_now())
    assert secfed("site", "restore", out, "--dir", other.folder).exit_code == 2


@pytest.mark.parametrize(
    "name", ["../site/policy.toml", "state/journal.sqlite", "site/../x.json", "state/a/b"]
)
def test_a_backup_with_other_files_is_refused(site: SiteFolder, name: str) -> None:
    out = written(site)
    with tarfile.open(out) as tar:
        held = {one: tar.extractfile(one).read() for one in tar.getnames()}  # type: ignore[union-attr]
    manifest = json.loads(held["secfed-backup.json"])
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of nothing
    manifest["files"][name] = digest
    held["secfed-backup.json"] = json.dumps(manifest).encode()
    changed = out.with_name("changed.tar.gz")
    with tarfile.open(changed, "w:gz") as tar:
        for one, data in {**held, name: b""}.items():
            member = tarfile.TarInfo(one)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    done = secfed("site", "restore", changed, "--dir", site.folder.parent / "new")
    assert (done.exit_code, "not a whole backup" in done.stderr) == (2, True)
    assert not (site.folder.parent / "new").exists()
