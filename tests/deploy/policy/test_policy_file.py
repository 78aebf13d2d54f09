"""A policy that is half written leaves the last valid one in force; one that is gone permits nothing."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from secfed.deploy.policy.policy_file import PolicyFile
from secfed.errors import ConfigError
from tests.deploy.policy_case import POLICY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "policy.toml"
    made.write_text(POLICY, encoding="utf-8")
    return made


@pytest.mark.parametrize("text", ["", POLICY[: POLICY.index("[privacy]") + 5], POLICY + "\n[studies"])
def test_the_last_valid_policy_stays_in_force_and_the_log_says_so_once(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = PolicyFile(path)
    before, digest = file.load(), file.sha256()
    assert digest == hashlib.sha256(POLICY.encode()).hexdigest()
    path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.INFO, "secfed.agent"):
        for _ in range(3):
            assert file.load() == before
            assert file.sha256() == digest  # what is recorded is what is in force
        assert str(path) in file.trouble
        path.write_text(POLICY.replace("max_rounds = 100", "max_rounds = 7"), encoding="utf-8")
        assert file.load().studies.max_rounds == 7
        assert not file.trouble
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "the last valid one stays in force" in told[0]
    assert "valid again" in told[1]


def test_an_agent_that_starts_with_a_wrong_policy_has_none(path: Path) -> None:
    path.write_text("[studies", encoding="utf-8")
    file = PolicyFile(path)
    with pytest.raises(ConfigError, match="not valid TOML"):
        file.load()
    assert file.sha256() == hashlib.sha256(b"[studies").hexdigest()


def test_a_policy_that_is_gone_or_closed_permits_nothing(path: Path) -> None:
    file = PolicyFile(path)
    file.load()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        file.load()
    with pytest.raises(ConfigError, match="No such file"):
        file.sha256()
