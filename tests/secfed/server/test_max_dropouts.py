"""``protection.max_dropouts``: how many sites of an exchange may be missing, and that sites insist on it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from secfed.config.cohort_rules import min_survivors, threshold
from secfed.errors import ConfigError, RoundAborted
from secfed.server.round import Rules
from secfed.study.limits import limits_of
from tests.secfed.server.test_aborted_rounds import recorded, run, study


@pytest.mark.parametrize("name", ["plain", "masked", "encrypted"])
def test_as_many_may_be_missing_and_no_more(name: str, tmp_path: Path) -> None:
    if name == "encrypted":
        pytest.importorskip("tenseal")
    stage = "mask" if name == "masked" else "train"
    lost = [f"hospital-{number}@{stage}:{late}" for number, late in ((1, 1), (1, 2), (2, 2))]
    report = run(study(name, ", max_dropouts = 1", sites=8), tmp_path, *lost)
    assert len(report.rounds[0].survivors) == 7
    assert report.rounds[1].aborted is not None
    assert "7 are needed" in report.rounds[1].aborted
    assert recorded(tmp_path, "refused") == []


@pytest.mark.parametrize(
    ("name", "stage", "refusal"),
    [("masked", "train", 8), ("masked", "mask", 9), ("encrypted", "train", 8), ("encrypted", "mask", 29)],
)
def test_sites_refuse_what_an_aggregator_must_not_ask(
    name: str, stage: str, refusal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller cohort, a lower threshold, and a sum of fewer sites than honest ones release."""
    if name == "encrypted":
        pytest.importorskip("tenseal")
    monkeypatch.setattr(Rules, "of_exchange", lambda self, *_: self)
    with suppress(RoundAborted):  # where no sum came about at all
        run(study(name, ", max_dropouts = 0", rounds=1), tmp_path, f"hospital-1@{stage}:1")
    refused = [body for body in recorded(tmp_path, "refused") if body["round"] == 1]
    assert {str(body["reason"]).partition(":")[0] for body in refused} == {f"refusal {refusal}"}
    for number in range(1, 5):
        for kind in ("released", "summed", "followed"):
            assert all(body["round"] != 1 for body in recorded(tmp_path / f"sites/hospital-{number}", kind))


def test_a_server_and_a_site_count_alike() -> None:
    """The aggregator's threshold, the site's limits, and the survivors that noise is chosen for."""
    for more in (
        "",
        ", max_dropouts = 0",
        ", max_dropouts = 2, min_cohort = 4",
        ", threshold = 6, max_dropouts = 1",
    ):
        for name in ("masked", "encrypted"):
            chosen = study(name, more, sites=8)
            rules, limits = chosen.protection, limits_of(chosen, 8)
            for members in range(4, 9):
                own = limits.of_exchange(members)
                least = min_survivors(rules, 8, members)
                assert own.min_threshold >= own.min_cohort
                if rules.max_dropouts is not None:
                    assert least >= own.min_threshold >= members - rules.max_dropouts
                for cohort in range(4, members + 1):
                    assert threshold(rules, 8, cohort, members) >= own.min_threshold
    without = limits_of(study(sites=8), 8)
    assert without.of_exchange(8) == without


def test_without_the_key_a_study_is_the_one_that_it_was() -> None:
    chosen = study()
    assert "max_dropouts" not in chosen.tables()["protection"]
    assert chosen.replace("protection.max_dropouts", 0).digest() != chosen.digest()


@pytest.mark.parametrize("more", [", max_dropouts = 1", ", max_dropouts = 3, min_cohort = 1"])
def test_a_number_without_effect_is_refused(more: str) -> None:
    with pytest.raises(ConfigError, match=r"protection\.max_dropouts"):
        study("plain" if "cohort" in more else "masked", more).check_roster(4)
