"""``--compare``: every algorithm beside hospitals alone and beside all records in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secfed.algorithms.data.multiview.base import ViewSites
from secfed.errors import ConfigError, SecfedError
from secfed.runs.run_folder import RUN_FILE
from secfed.simulation.comparison import Comparer
from secfed.simulation.pooled_records import with_pooled_records
from secfed.simulation.simulate import simulate
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.algorithms import canonical_case, fedcola_case, fmcsc_case, vlp_case
from tests.algorithms.loop import BREAST_CANCER
from tests.secfed.privacy_case import study as private_study

CASES = {
    "fedavg": lambda: Study.parse(BREAST_CANCER),
    "ditto": lambda: Study.parse(BREAST_CANCER.replace('"fedavg"', '"ditto"')),
    "fedsgd": lambda: Study.parse(BREAST_CANCER.replace('"fedavg"', '"fedsgd"')),
    "feddra": lambda: vlp_case.study(study__rounds=1),
    "canonical": lambda: canonical_case.study(data__holds=[-1, -1, -1, 0, 0, 0]),
}


@pytest.mark.parametrize("other", ["alone", "centralised"])
@pytest.mark.parametrize("name", [*CASES, pytest.param("fedcola", marks=pytest.mark.slow)])
def test_every_hospital_has_both_on_its_own_held_out_records(name: str, other: Any) -> None:
    study = CASES[name]() if name in CASES else fedcola_case.study(study__rounds=1)
    report = simulate(study, compare=other)
    assert report.compare is not None
    *rows, mean = report.compare.rows
    assert [row.where for row in rows] == list(build_data(study).sites)
    assert all(row.federated.keys() == row.other.keys() for row in rows)
    assert (report.compare.other, mean.where) == (other, "mean")
    assert any(row.federated != row.other for row in rows) or name in ("fedcola", "canonical")


def test_hospitals_that_no_score_counts_have_no_row() -> None:
    """Two hold the first view alone and one the second: too few to be scored with others."""
    report = simulate(canonical_case.study(), compare="alone")
    assert report.compare is not None
    assert [row.where for row in report.compare.rows] == ["hospital-1", "hospital-2", "hospital-3", "mean"]


def test_one_gradient_step_on_all_records_is_what_fedsgd_takes_in_sums() -> None:
    report = simulate(CASES["fedsgd"](), compare="centralised")
    assert report.compare is not None
    for row in report.compare.rows:
        assert row.other["loss"] == pytest.approx(row.federated["loss"], abs=1e-5)


def test_all_records_of_a_kind_are_at_one_place() -> None:
    data = build_data(fmcsc_case.study())
    assert isinstance(data, ViewSites)
    pooled, place_of = with_pooled_records(data)
    places = dict.fromkeys(place_of.values())
    assert len(places) == len(set(data.view_of.values())) > 1
    records = sum(len(data.site(site).labels) for site in data.sites)
    assert sum(len(pooled.site(place).labels) for place in places) == records  # type: ignore[attr-defined]


def test_captions_still_point_to_their_images() -> None:
    data = build_data(fedcola_case.study())
    pooled, place_of = with_pooled_records(data)
    site = pooled.site(place_of["pairs-2"])  # type: ignore[attr-defined]
    second = data.site("pairs-2").train  # type: ignore[attr-defined]
    start = len(data.site("pairs-1").train.images)  # type: ignore[attr-defined]
    rows = slice(len(data.site("pairs-1").train.tokens), None)  # type: ignore[attr-defined]
    found = site.train.images[site.train.sources[rows][: len(second.sources)]]
    assert start
    assert bool((found == second.images[second.sources]).all())


def test_what_cannot_be_compared_is_refused_before_a_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("a record was read")

    monkeypatch.setattr("secfed.algorithms.data.prepare.PreparedSites.site", read)
    personal = private_study(epsilon=20.0).replace("algorithm.name", "ditto")
    with pytest.raises(ConfigError, match="--compare alone: ditto measures no model at one hospital"):
        simulate(personal, compare="alone")


def test_a_comparison_that_fails_leaves_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise SecfedError("late")

    monkeypatch.setattr(Comparer, "result", fail)
    with pytest.raises(SecfedError, match="late"):
        simulate(CASES["fedavg"](), compare="alone", out=tmp_path)
    assert (tmp_path / RUN_FILE).is_file()
    assert (tmp_path / "model.safetensors").is_file()
