"""Every algorithm with closed sums: the model and the scores of sums that the aggregator reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secfed.errors import ConfigError
from secfed.simulation import simulate as simulation
from secfed.study.registry import ALGORITHMS
from tests.algorithms.whole import model_bytes, run
from tests.properties.readiness_studies import OF_MEANS, OF_PAIRS, tiny

REFUSED = ("canonical", "canonical-alignment", "view-kmeans")
CASES = [
    *((name, "", "none") for name in OF_MEANS),
    ("feddmvc", "", "none"),
    *(("fmcsc", variant, "none") for variant in ("", "one-view")),
    ("creamfl", "", "none"),
    ("fedcola", "", "none"),
    ("statistics", "", "none"),
    *((name, "", "none") for name in OF_PAIRS),
    *(("fedavg", "", unit) for unit in ("record", "group", "site")),
    *(("fedsgd", "", unit) for unit in ("record-sum", "group-sum", "site")),
]
QUICK = [("fedavg", "", "none"), ("scaffold", "", "none"), ("fedsgd", "", "group-sum")]
MARKED = [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


def test_every_algorithm_is_played_or_refused() -> None:
    assert {*(name for name, _, _ in CASES), *REFUSED} == set(ALGORITHMS)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a run takes longer than running it."""
    monkeypatch.setattr(simulation, "write_run", lambda *_: None)


@pytest.mark.parametrize(("name", "variant", "unit"), MARKED)
def test_the_model_is_that_of_open_sums(tmp_path: Path, name: str, variant: str, unit: str) -> None:
    masked = tiny(name, unit, variant=variant).replace("protection.name", "masked")
    found: list[tuple[bytes, Any]] = []
    for study in (masked, masked.replace("protection.reveal", "sites")):
        out = tmp_path / study.protection.kind
        report = run(study, out)
        assert [entry.aborted for entry in report.rounds] == [None] * len(report.rounds)
        found.append((model_bytes(out), report.final))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", REFUSED)
def test_an_algorithm_whose_server_step_differs_between_processors_is_refused(name: str) -> None:
    study = tiny(name).replace("protection.name", "masked").replace("protection.reveal", "sites")
    with pytest.raises(ConfigError, match=r"under closed every site repeats the server's step"):
        run(study, None)
