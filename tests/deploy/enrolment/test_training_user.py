"""Training in an account of its own: what the policy permits to run cannot read the agent's keys."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.agent import training
from secfed.deploy.agent.training import TrainingProcess
from secfed.deploy.enrolment import training_user
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.training_user import TrainingUser
from secfed.engine.wire import Job
from secfed.errors import ConfigError
from tests.deploy.agent_case import NAMES, TOML
from tests.forks import Fork

OTHER = "nobody"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other accounts")


def runs_python(name: str) -> bool:
    """Whether this account can run the interpreter and this tree."""
    account = pwd.getpwnam(name)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import secfed"],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            cwd="/",
            check=False,
            capture_output=True,
        )
    except PermissionError:
        return False
    return done.returncode == 0


@pytest.fixture
def key() -> Iterator[Path]:
    """A key that only its own mode keeps from others: the folders above it are open."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "identity.key"
        path.write_text("secret")
        path.chmod(0o600)
        yield path


@needs_root
def test_a_process_of_the_other_account_reads_no_key_and_gains_no_rights(key: Path) -> None:
    user = TrainingUser.named(OTHER, [key])
    look = f"id -u; grep -E '^(CapPrm|CapEff|CapAmb)' /proc/self/status; cat {key} && echo read"
    done = subprocess.run(
        ["/bin/sh", "-c", look], capture_output=True, text=True, check=False, **user.arguments()
    )
    assert done.stdout.splitlines()[0] == str(pwd.getpwnam(OTHER).pw_uid)
    assert len(re.findall(r"Cap\w+:\s*0+\n", done.stdout)) == 3
    assert "read" not in done.stdout
    assert "secret" not in done.stdout


@needs_root
def test_an_account_that_could_read_the_keys_is_refused(key: Path) -> None:
    with pytest.raises(ConfigError, match="no account 'no-such-account'"):
        TrainingUser.named("no-such-account", [key])
    with pytest.raises(ConfigError, match="'root' can read the keys"):
        TrainingUser.named("root", [key])
    os.chown(key, pwd.getpwnam(OTHER).pw_uid, -1)
    with pytest.raises(ConfigError, match=f"{OTHER!r} can read the keys"):
        TrainingUser.named(OTHER, [key])


def test_an_account_that_cannot_be_used_is_an_error_and_not_the_agents_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SiteFolder.create(tmp_path / "site", "charite", now=utc_now())
    assert folder.training_user() is None
    settings = folder.folder / "site.toml"
    text = settings.read_text(encoding="utf-8").replace('# user = "secfed-training"', f'user = "{OTHER}"')
    settings.write_text(text, encoding="utf-8")
    monkeypatch.setattr(training_user, "_may_switch", lambda: False)
    with pytest.raises(ConfigError, match="may not start a process as 'nobody'"):
        SiteFolder(folder.folder).training_user()


def process(tmp_path: Path, user: TrainingUser | None) -> TrainingProcess:
    job = Job(site=NAMES[0], settings=TOML, study="tiny-id")
    log_path = tmp_path / "training.log"
    return TrainingProcess(
        job, gpu=False, log_path=log_path, local_key=None, ledger=None, stored=dict, user=user
    )


def test_training_gains_no_rights_and_runs_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, dict[str, Any]]] = []

    def noted(words: list[str], **options: Any) -> Any:
        made = Fork(words, **{k: v for k, v in options.items() if k not in ("user", "group", "extra_groups")})
        started.append((made, options))
        return made

    monkeypatch.setattr(training.subprocess, "Popen", noted)
    user = TrainingUser("other", 4711, 4712, (4712, 44), "/nowhere")
    trains = process(tmp_path, user)
    try:
        trains.start()
        ((made, options),) = started
        status = Path(f"/proc/{made.pid}/status").read_text(encoding="ascii")
    finally:
        trains.close()
    assert "NoNewPrivs:\t1\n" in status
    assert {name: options[name] for name in ("user", "group", "extra_groups", "cwd")} == user.arguments()
    assert options["env"]["HOME"] == "/nowhere"


@needs_root
def test_the_training_process_itself_runs_in_the_other_account(tmp_path: Path) -> None:
    trains = process(tmp_path, TrainingUser.named(OTHER, ()))
    if not runs_python(OTHER):
        with pytest.raises(ConfigError, match="the account cannot run"):
            trains.start()
        pytest.skip(f"account {OTHER} cannot read this Python")
    try:
        trains.start()
        status = Path(f"/proc/{trains._process.pid}/status").read_text(encoding="ascii")
        assert f"Uid:\t{pwd.getpwnam(OTHER).pw_uid}\t" in status
    finally:
        trains.close()
