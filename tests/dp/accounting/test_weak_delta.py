"""Delta against 1 / n: known from public numbers, before any record is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.deploy.agent.training_wire import Job
from secfed.deploy.policy.sections import PrivacyRules
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_plan import MAX_DELTA_TIMES_RECORDS, delta_is_weak
from secfed.dp.training.local_privacy import LocalPrivacy, Phase
from secfed.errors import ConfigError
from tests.dp.local_case import ledger, settings


def private(folder: Path, delta: float, **more: float) -> LocalPrivacy:
    chosen = settings("record", delta=delta, accountant="rdp")
    return LocalPrivacy(
        chosen, ledger(folder), study="s", seed=0, random=lambda _n, _e: SecureRandom(bytes(32)), **more
    )


@pytest.mark.parametrize(("delta", "weak"), [(0.0099, False), (0.01, True), (0.09, True)])
def test_from_one_in_n_there_is_a_warning(tmp_path: Path, delta: float, weak: bool) -> None:
    local = private(tmp_path, delta)
    local.plan(Phase("train", 100, 10, passes=1))
    assert local.weak_delta is weak


def test_from_ten_in_n_the_study_is_refused_unless_the_policy_says_otherwise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.1 is 10 / \(training records") as caught:
        private(tmp_path, 0.1).plan(Phase("train", 100, 10, passes=1))
    assert "max_delta_times_records" in caught.value.remedy
    private(tmp_path, 0.1, max_delta_times_records=11.0).plan(Phase("train", 100, 10, passes=1))
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.01 is 1 /"):
        private(tmp_path, 0.01, max_delta_times_records=1.0).plan(Phase("train", 100, 10, passes=1))


def test_delta_of_a_twentieth_at_a_hundred_records_is_not_silent() -> None:
    assert delta_is_weak(settings("record", delta=0.05), 107, MAX_DELTA_TIMES_RECORDS)


def test_policy_and_training_process_have_the_same_default() -> None:
    rules = PrivacyRules(require=False)
    assert rules.max_delta_times_records == MAX_DELTA_TIMES_RECORDS
    assert Job("a", "").max_delta_times_records == MAX_DELTA_TIMES_RECORDS
