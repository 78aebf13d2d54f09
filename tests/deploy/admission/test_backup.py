"""Backups of a hospital's folder: whole, without what must never come back, and harmless when restored."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import Result
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.backup import Restored, back_up, restore
from secfed.deploy.admission.memory import belong_together, notice_loss
from secfed.deploy.admission.person import Person
from secfed.deploy.agent.control import make_state_folder, only_agent
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import TranscriptError
from secfed.runs.run_folder import ledger_file
from secfed.site.journal import Journal
from secfed.site.lost_memory import asks_person, lost_memory
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
        **dict.fromkeys(NEVER, "mask seed"),
    }.items():
        path = made.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    belong_together(made.folder, made.state, anew=False)  # as its agent did before it worked
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
    assert "site/state-id.json" not in held  # with an old state folder it would call it the newest
    assert b"mask seed" not in b"".join(held.values())
    assert ("site/identity.key" in held, "site/tls.key" in held) == (keys, keys)


def test_a_lost_folder_comes_back_without_ledgers_and_without_its_running_study(site: SiteFolder) -> None:
    out, new = written(site, "--keys"), site.folder.parent / "new"
    done = secfed("site", "restore", out, "--dir", new)
    assert done.exit_code == 0, done.output
    there = SiteFolder(new)
    assert there.identity(None).public_bytes == site.identity(None).public_bytes
    assert not (there.state / "ledger-heart.jsonl").exists()
    assert (there.state / "from-backup" / "ledger-heart.jsonl").read_text() == LEDGER
    assert not any((there.state / name).exists() for name in NEVER[1:])
    assert b"mask seed" not in (there.state / NEVER[0]).read_bytes()  # an empty one
    assert Approvals(there.approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN
    assert "Refused   heart: what it did here since the backup is forgotten" in done.stdout
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
    return Ledger(path, site.identity(None), dataset, budgets, recorded=recorded_heads(site.state, dataset))


POLICY = """approve = "manual"
[privacy]
require = false
[[data]]
name = "heart"
source = "csv"
[[data]]
name = "lung"
source = "digits"
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
        shutil.rmtree(there.state / "from-backup")
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
    with pytest.raises(TranscriptError, match="nothing shows what was paid"):
        opened(there, "heart-2")
    there.policy_path.write_text(POLICY.replace("heart", "heart-2"))
    assert secfed("site", "confirm", "heart-2", "--dir", new).exit_code == 0
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
        with pytest.raises(TranscriptError, match="nothing shows what was paid"):
            opened(there, "lung")
    path = ledger_file(there.state, "lung")
    path.write_bytes(ledger_file(site.state, "lung").read_bytes())
    with pytest.raises(TranscriptError, match="nothing shows what was paid"):
        opened(there, "lung")  # an agent may have begun it
    assert secfed("site", "confirm", "lung", "--dir", new).exit_code == 0
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


def packed(out: Path, change: dict[str, bytes]) -> Path:
    """The same backup with other files, and the manifest that belongs to them."""
    with tarfile.open(out) as tar:
        held = {one: tar.extractfile(one).read() for one in tar.getnames()}  # type: ignore[union-attr]
    manifest = json.loads(held.pop("secfed-backup.json"))
    held |= change
    manifest["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in held.items()}
    held = {"secfed-backup.json": json.dumps(manifest).encode()} | held
    changed = out.with_name("changed.tar.gz")
    with tarfile.open(changed, "w:gz") as tar:
        for one, data in held.items():
            member = tarfile.TarInfo(one)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return changed


ELSEWHERE = b'[site]\nname = "charite"\n[agent]\nstate = "%s"\n'


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("../site/policy.toml", b"", "not a whole backup"),
        ("state/journal.sqlite", b"", "not a whole backup"),
        ("site/../x.json", b"", "not a whole backup"),
        ("state/a/b", b"", "not a whole backup"),
        ("state/studies/x-1/settings.json", b"{", "x-1/settings.json does not name a study"),
        ("state/studies/x-1/settings.json", b'{"study": "x"}', "x-1/settings.json does not name a study"),
        ("site/approvals.json", b"[" * 100_000, "approvals.json cannot be read"),
        ("site/site.toml", ELSEWHERE % b"/var/elsewhere", "outside of the site's folder"),
        ("site/site.toml", ELSEWHERE % b"a/../../b", "outside of the site's folder"),
        ("site/site.toml", b"[", "not a whole backup"),
        ("state/studies/x-1/model.safetensors", bytes(1 << 26), "not a whole backup"),  # gigabytes of zeros
    ],
)
def test_a_backup_that_is_not_one_changes_nothing(
    site: SiteFolder, name: str, data: bytes, told: str
) -> None:
    changed = packed(written(site), {name: data})
    done = secfed("site", "restore", changed, "--dir", site.folder.parent / "new")
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr
    assert not (site.folder.parent / "new").exists()


def test_a_manifest_that_is_nested_too_deeply_is_refused(site: SiteFolder) -> None:
    out = site.folder.parent / "deep.tar.gz"
    with tarfile.open(out, "w:gz") as tar:
        member = tarfile.TarInfo("secfed-backup.json")
        member.size = 200_000
        tar.addfile(member, io.BytesIO(b"[" * 200_000))
    assert "not a whole backup" in secfed("site", "restore", out, "--dir", site.folder).stderr


def test_what_is_not_expected_is_not_unpacked(site: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = packed(written(site), {"junk": b""})
    taken = []
    extract = tarfile.TarFile.extractfile
    monkeypatch.setattr(
        tarfile.TarFile, "extractfile", lambda tar, member: taken.append(member.name) or extract(tar, member)
    )
    secfed("site", "restore", changed, "--dir", site.folder)
    assert taken
    assert "junk" not in taken


def test_a_finished_study_is_not_summed_again(site: SiteFolder) -> None:
    path = site.state / "studies/heart-5555/settings.json"
    path.write_text(json.dumps({"study": f"heart-{DIGEST}", "ended_s": 123}))
    new = site.folder.parent / "new"
    secfed("site", "restore", written(site), "--dir", new)
    assert Approvals(SiteFolder(new).approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN


def lost_and_restored(site: SiteFolder, backup: Path) -> Restored:
    shutil.rmtree(site.state)
    make_state_folder(site.state)
    return restore(backup, site.folder, utc_now())


def test_a_ledger_that_an_agent_began_before_the_backup_came_back_is_refused(site: SiteFolder) -> None:
    out = written(site)
    shutil.rmtree(site.state)
    make_state_folder(site.state)
    Journal(site.state / "journal.sqlite").close()  # an agent that notices nothing: of an older version
    opened(site, "lung")
    restore(out, site.folder, utc_now())
    with pytest.raises(TranscriptError, match="nothing shows what was paid"):
        opened(site, "lung")
    assert asks_person(site.state)


def test_a_study_that_an_agent_began_again_before_the_backup_came_back_is_refused(site: SiteFolder) -> None:
    out = written(site)
    (site.state / "studies/heart-5555/transcript.jsonl").write_text('{"another": 1}\n')
    restore(out, site.folder, utc_now())
    assert Approvals(site.approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN


def test_copies_of_ledgers_are_in_the_next_backup(site: SiteFolder) -> None:
    ledger_file(site.state, "heart").unlink()
    opened(site, "heart", 1.0)
    older = ledger_file(site.state, "heart").read_bytes()
    opened(site, "heart", 2.0)
    first = written(site)
    lost_and_restored(site, first)
    second = site.folder.parent / "second.tar.gz"
    back_up(site, second, utc_now(), keys=False)
    lost_and_restored(site, second)
    ledger_file(site.state, "heart").write_bytes(older)
    with pytest.raises(TranscriptError, match="lacks the state"):
        opened(site, "heart", 2.0)


@pytest.mark.parametrize("state_only", [False, True])
def test_of_two_persons_both_approve_again(site: SiteFolder, state_only: bool) -> None:
    approvals = Approvals(site.approvals_path)
    approvals.hold("heart", bytes(32), utc_now())
    approvals.approve_what("heart", utc_now(), by=Person("ada"), persons=2)
    out = written(site)
    if state_only:
        lost_and_restored(site, out)
    else:
        shutil.rmtree(site.folder)
        restore(out, site.folder, utc_now())
    approvals.hold("heart", bytes(32), utc_now())
    decided = approvals.approve_what("heart", utc_now(), by=Person("grace"), persons=2)
    assert decided.state is ApprovalState.HELD


def test_approvals_that_are_still_there_are_asked_for_again(site: SiteFolder) -> None:
    approvals = Approvals(site.approvals_path)
    approvals.hold("begun-later", bytes(32), utc_now())
    approvals.approve_what("begun-later", utc_now())
    lost_and_restored(site, written(site))
    assert approvals.state(bytes(32)) is ApprovalState.HELD


def test_keys_and_models_are_no_memory(site: SiteFolder) -> None:
    out = written(site, "--keys")
    (site.folder / "tls.key").unlink()
    assert restore(out, site.folder, utc_now()).written == ["site/tls.key"]
    assert lost_memory(site.state) is None


def test_a_restore_that_is_cut_off_has_marked_the_loss(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = written(site)
    shutil.rmtree(site.state)
    with monkeypatch.context() as patch:
        patch.setattr("secfed.deploy.admission.backup.keep_copy", MagicMock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            restore(out, site.folder, utc_now())
    assert asks_person(site.state)
    assert Approvals(site.approvals_path).state(bytes.fromhex(DIGEST)) is ApprovalState.WITHDRAWN


def test_the_person_is_told_what_to_check_and_to_confirm(site: SiteFolder) -> None:
    site.policy_path.write_text(POLICY)
    new = site.folder.parent / "new"
    told = secfed("site", "restore", written(site), "--dir", new).stdout
    assert "Check policy.toml, approvals.json and the roster" in told
    assert "A person decides about every study now" in told
    confirm = ("site", "confirm", "--dir", new)
    assert "no data set of policy.toml" in secfed(*confirm, "typo").stderr
    assert "that must go on" in secfed(*confirm, "heart").stderr
    assert "Confirmed lung" in secfed(*confirm, "lung").stdout
    assert "Confirmed: lung.\nAbout studies a person decides." in secfed(*confirm).stdout
    assert "The policy decides about studies again." in secfed(*confirm, "--policy-decides").stdout
    assert "About studies the policy decides." in secfed(*confirm).stdout
    assert "This site has lost nothing." in secfed("site", "confirm", "--dir", site.folder).stdout


def test_a_restore_does_not_hide_that_the_state_folder_is_another_one(site: SiteFolder) -> None:
    """What was lost, the backup did not have: its ledger was begun later."""
    notice_loss(site, utc_now())
    out = written(site)
    opened(site, "lung")
    ledger_file(site.state, "lung").unlink()
    (site.state / "state-id.json").unlink()
    restore(out, site.folder, utc_now())
    with pytest.raises(TranscriptError, match="nothing shows what was paid"):
        opened(site, "lung")
