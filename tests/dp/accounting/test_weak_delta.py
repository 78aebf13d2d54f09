"""Delta against 1 / n: known from public numbers, before any record is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.deploy.policy.sections import PrivacyRules
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_plan import MAX_DELTA_TIMES_RECORDS, delta_is_weak
from secfed.dp.training.local_privacy import LocalPrivacy, Phase
from secfed.engine.wire import Job
from secfed.errors import ConfigError
from tests.dp.local_case import ledger, settings


def private(folder: Path, delta: float, **more: float) -> LocalPrivacy:
    chosen = settings("record", delta=delta, accountant="rdp")
    return LocalPrivacy(
        chosen, ledger(folder), study="s", seed=0, random=lambda _n, _e: SecureRandom(bytes(32)), **more
    )


def test_from_one_in_n_there_is_a_warning(tmp_path: Path) -> None:
    known = ((0.0099, 100, False), (0.01, 100, True), (0.09, 100, True), (0.05, 107, True))
    for delta, records, weak in known:
        assert delta_is_weak(settings("record", delta=delta), records, MAX_DELTA_TIMES_RECORDS) is weak
    local = private(tmp_path, 0.1, max_delta_times_records=11.0)
    local.plan(Phase("train", 100, 10, passes=1))
    assert local.weak_delta


def test_from_ten_in_n_the_study_is_refused_unless_the_policy_says_otherwise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.1 is 10 / \(training records") as caught:
        private(tmp_path, 0.1).plan(Phase("train", 100, 10, passes=1))
    assert "max_delta_times_records" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.01 is 1 /"):
        private(tmp_path, 0.01, max_delta_times_records=1.0).plan(Phase("train", 100, 10, passes=1))


def test_policy_and_training_process_have_the_same_default() -> None:
    rules = PrivacyRules(require=False)
    assert rules.max_delta_times_records == MAX_DELTA_TIMES_RECORDS
    assert Job("a", "").max_delta_times_records == MAX_DELTA_TIMES_RECORDS
