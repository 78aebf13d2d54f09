"""What the study centre's monitoring sees: hospitals by state, studies, and when certificates end."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.deploy.aggregator.metrics import CentreMetrics
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.study_server import Presence
from tests.deploy.centre_case import found_consortium

NOW = utc_now()


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return found_consortium(tmp_path, ("a", "b", "c"))[0]


def shown(metrics: CentreMetrics) -> dict[str, float]:
    return {
        " ".join([sample.name.removeprefix("secfed_aggregator_"), *sample.labels.values()]): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_between_studies(consortium: Consortium) -> None:
    found = shown(CentreMetrics(consortium, 60.0, lambda: NOW))
    assert (found["serving"], found["round"], found["sites there"]) == (0, 0, 0)
    assert {name for name in found if name.startswith("certificate_days")} == {
        f"certificate_days {owner}" for owner in ("CA", "aggregator", "a", "b", "c")
    }
    assert 89 < found["certificate_days a"] <= 91


def test_while_a_study_is_served(consortium: Consortium) -> None:
    metrics = CentreMetrics(consortium, 60.0, lambda: NOW)
    seen = {
        "a": Presence(3.0, False, "", None),
        "b": Presence(3.0, True, "", "PolicyRefused: no", Absence.HELD),
        "c": Presence(90.0, False, "", None),
        "d": Presence(None, False, "", None),
        "e": Presence(90.0, True, "", None),
        "f": Presence(1.0, True, "", "PolicyRefused: no", Absence.PAUSED),
    }
    metrics.watch(lambda: (4, seen))
    metrics.tell("turn", study="heart-1", queued=["lung-2", "lung-3"])
    consortium.pause("lung-3")
    consortium.remove("c", now=NOW)
    found = shown(metrics)
    states = ("there", "away", "held", "paused", "waiting", "refused", "failed", "removed")
    assert [found[f"sites {state}"] for state in states] == [2, 2, 1, 1, 0, 0, 0, 1]
    assert (found["serving"], found["round"]) == (1, 4)
    assert (found["queued_studies"], found["paused_studies"]) == (2, 1)
    metrics.watch(None)
    assert shown(metrics)["serving"] == 0
