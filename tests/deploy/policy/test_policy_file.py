"""A policy that is half written leaves the last valid one in force; one that is gone permits nothing."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
from pathlib import Path

import pytest

from secfed.deploy.policy import policy_file
from secfed.deploy.policy.policy import Policy
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


def test_the_first_half_of_a_policy_is_never_in_force_though_it_may_be_valid_and_permit_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every half that a slow editor may leave on the disk; the rest comes while the agent waits."""
    stricter = POLICY.replace("max_rounds = 100", "max_rounds = 7")
    waits: list[float] = []

    def rest(seconds: float) -> None:
        waits.append(seconds)
        path.write_text(stricter, encoding="utf-8")

    monkeypatch.setattr(policy_file.time, "sleep", rest)
    cut = stricter.index("[[hours]]")
    assert Policy.parse(stricter[:cut].encode(), path).hours == ()  # at any time
    for half in (stricter[:cut], stricter[: stricter.rindex("[[data.budget]]")]):
        path.write_text(POLICY, encoding="utf-8")
        file = PolicyFile(path)
        assert file.load().studies.max_rounds == 100
        path.write_text(half, encoding="utf-8")
        waits.clear()
        policy = file.load()
        assert policy == Policy.parse(stricter.encode(), path)  # and not what was in force before
        assert waits == [policy_file.SETTLED_S] * 2
        assert file.load() is policy
        assert len(waits) == 2


def test_who_starts_while_a_policy_is_written_waits_and_who_starts_later_does_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_file, "SETTLED_S", 3.0)
    waits: list[float] = []

    def rest(seconds: float) -> None:
        waits.append(seconds)
        path.write_text(POLICY, encoding="utf-8")

    monkeypatch.setattr(policy_file.time, "sleep", rest)
    half, now_s = POLICY[: POLICY.rindex("[[data.budget]]")], time.time()
    for ahead_s in (-2.0, 3600.0):  # the second as by a clock that was wrong
        path.write_text(half, encoding="utf-8")
        os.utime(path, (now_s + ahead_s, now_s + ahead_s))
        waits.clear()
        assert PolicyFile(path).load() == Policy.parse(POLICY.encode(), path)
        assert waits == [3.0, 3.0]
    os.utime(path, (now_s - 4.0, now_s - 4.0))
    waits.clear()
    PolicyFile(path).load()
    assert waits == []


def test_a_policy_that_does_not_stop_changing_permits_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, count = PolicyFile(path), itertools.count()
    file.load()
    again = lambda _s: path.write_text(f"# {next(count)}\n{POLICY}", encoding="utf-8")  # noqa: E731
    monkeypatch.setattr(policy_file.time, "sleep", again)
    again(0)
    with pytest.raises(ConfigError, match="changes all the time"):
        file.load()


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
