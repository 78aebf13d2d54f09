"""Who is reported to be in a round whose exchanges are for different sites."""

from __future__ import annotations

from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from tests.algorithms.fedcola_case import study


def test_sites_of_every_sum_count_as_survivors():
    report = simulate(study(study__rounds=1), out=None, drops=(), observer=SilentObserver())
    (first,) = report.rounds
    assert set(first.survivors) == set(first.asked)
    assert len(first.asked) == 10
