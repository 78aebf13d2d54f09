"""Held studies, budget left, days of certificate and pause, as a hospital's monitoring sees them."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import control
from secfed.deploy.agent.budgets import budgets_left
from secfed.deploy.agent.site_metrics import SiteMetrics
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import Ledger
from secfed.runs.run_folder import ledger_file
from tests.deploy.admission.test_known_before import spend
from tests.deploy.agent_case import BUDGETED, permit
from tests.deploy.centre_case import found_consortium

NOW = utc_now()
PERIOD = BUDGETED + "[[data.budget]]\nepsilon = 5.0\ndelta = 1e-5\nperiod_days = 30\n"


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    _, folders = found_consortium(tmp_path, ("a", "b", "c"))
    permit(folders["a"], policy=PERIOD)
    return folders["a"]


def shown(metrics: SiteMetrics) -> dict[str, float]:
    """Values by name, with what labels say behind it."""
    return {
        " ".join([sample.name, *filter(None, sample.labels.values())]): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_what_a_hospital_watches(site: SiteFolder) -> None:
    metrics = SiteMetrics(site, lambda: NOW)
    before = shown(metrics)
    assert before["secfed_agent_paused"] == before["secfed_agent_held_studies"] == 0
    assert 89 < before["secfed_agent_certificate_days"] <= 91
    assert before["secfed_agent_budget_left wards record"] == 20.0
    assert before["secfed_agent_budget_left wards record 30"] == 5.0
    control.pause(site.state)
    Approvals(site.approvals_path).hold("heart-1", bytes(32), NOW)
    budgets = [Budget(20.0, 1e-4), Budget(5.0, 1e-5, 30)]
    spend(Ledger(ledger_file(site.state, "wards"), site.identity(None), "wards", budgets))
    after = shown(metrics)
    assert after["secfed_agent_paused"] == after["secfed_agent_held_studies"] == 1
    for name, limit in (("wards record", 20.0), ("wards record 30", 5.0)):
        assert 0 < after[f"secfed_agent_budget_left {name}"] < limit
        assert after[f"secfed_agent_budget_limit {name}"] == limit
    later = budgets_left(site, NOW + timedelta(days=31))
    assert [one.left == one.limit for one in later] == [False, True]  # for ever, and for 30 days


def test_a_file_that_cannot_be_read_takes_its_metrics_away_and_is_logged_once(
    site: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = SiteMetrics(site, lambda: NOW)
    site.approvals_path.write_text("{", encoding="utf-8")
    site.approvals_path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = shown(metrics)
    assert "secfed_agent_held_studies" not in found
    assert found["secfed_agent_paused"] == 0
    assert len([one for one in caplog.records if "some metrics are missing" in one.message]) == 1


def test_the_state_is_one_of_the_words(tmp_path: Path) -> None:
    board = StatusBoard(tmp_path / "status.json", "a")
    for state in ("idle", "held", "paused", "refused", "removed"):
        board.set(state=state)
        (family,) = [one for one in board.collect() if one.name == "secfed_agent_state"]
        assert [one.labels["state"] for one in family.samples if one.value] == [state]
