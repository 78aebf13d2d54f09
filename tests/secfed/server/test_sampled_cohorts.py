"""``protection.sites_per_round``: every party draws the same sites for a round, and sites insist on them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from secfed.algorithms.federated_averaging.weighted_plan import UPDATE
from secfed.algorithms.framework.setting import FIXED_COHORT, Setting
from secfed.audit.transcript_check import verify_run
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto.attempt import SiteLimits
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.simulation import parties
from secfed.site.terms import Terms
from secfed.study.build import build, build_data
from secfed.study.limits import limits_of
from secfed.study.study import Study
from tests.secfed.server import test_aborted_rounds
from tests.secfed.server.test_aborted_rounds import recorded, run

SITES = tuple(f"hospital-{number}" for number in range(1, 9))
DRAWN = ", sites_per_round = 4"


def study(name: str = "masked", more: str = "", **numbers: int) -> Study:
    return test_aborted_rounds.study(name, more, **numbers).replace("algorithm.weighting", "equal")


def cohorts(chosen: Study, rounds: int) -> list[tuple[str, ...]]:
    """Of training."""
    algorithm = build(chosen)
    return [
        tuple(algorithm.members(number, algorithm.exchanges(number)[-1], SITES))
        for number in range(1, rounds + 1)
    ]


def evaluating(chosen: Study) -> tuple[str, ...]:
    """The cohort that measures every model."""
    return cohorts(chosen, chosen.rounds + 1)[-1]


def test_every_site_is_drawn_equally_often_and_no_round_tells_the_next() -> None:
    chosen = study(more=DRAWN, sites=8, rounds=400)
    drawn = cohorts(chosen, 400)
    assert {len(set(cohort)) for cohort in drawn} == {4}
    often = Counter(site for cohort in drawn for site in cohort)
    assert all(abs(often[site] - 200) < 50 for site in SITES)  # five standard deviations
    assert len(set(drawn)) > 60  # of 70
    other = chosen.replace("study.seed", 12)
    assert sum(a == b for a, b in zip(drawn, cohorts(other, 400), strict=True)) < 30


def test_the_draw_is_over_all_sites_of_the_study_whoever_is_asked() -> None:
    """An aggregator that leaves sites out gets fewer, not others: every site would refuse those."""
    algorithm = build(study(more=DRAWN, sites=8))
    exchange = algorithm.exchanges(1)[-1]
    whole = algorithm.members(1, exchange, SITES)
    some = SITES[2:]
    assert tuple(algorithm.members(1, exchange, some)) == tuple(site for site in some if site in whole)
    assert tuple(algorithm.members(1, exchange, SITES[::-1])) == tuple(whole)[::-1]


def test_a_known_draw() -> None:
    """Parties of different versions must draw alike: this may change with the protocol only."""
    chosen = study(more=DRAWN, sites=8).replace("algorithm.weighting", "records")
    assert chosen.digest().hex()[:8] == "d81a53ec"
    setting = Setting(chosen, build_data(chosen), model=lambda: nn.Identity())
    assert [setting.cohort(number, SITES) for number in (FIXED_COHORT, 1, 2)] == [
        ("hospital-3", "hospital-4", "hospital-6", "hospital-8"),
        ("hospital-2", "hospital-4", "hospital-6", "hospital-7"),
        ("hospital-1", "hospital-2", "hospital-5", "hospital-7"),
    ]


@pytest.mark.parametrize("name", ["plain", "masked"])
def test_who_is_not_drawn_does_nothing(name: str, tmp_path: Path) -> None:
    chosen = study(name, DRAWN, sites=8, rounds=2)
    report = run(chosen, tmp_path)
    drawn, fixed = cohorts(chosen, 2), evaluating(chosen)
    assert [set(one.asked) for one in report.rounds] == [{*fixed, *cohort} for cohort in drawn]
    planned = [(1, fixed), (1, drawn[0]), (2, fixed), (2, drawn[1]), (3, fixed)]
    summed = [(body["round"], body["survivors"]) for body in recorded(tmp_path, "summed")]
    assert summed == [(number, sorted(cohort)) for number, cohort in planned]
    assert report.final["accuracy"] > 0.5
    assert not verify_run(tmp_path, read_roster(tmp_path / ROSTER_FILE)).problems
    for site in SITES:
        took = [body["round"] for body in recorded(tmp_path / "sites" / site, "summed")]
        assert took == [number for number, cohort in planned if site in cohort]


def other_members(monkeypatch: pytest.MonkeyPatch, members: Sequence[str]) -> None:
    """An aggregator that lets train whom it likes."""
    honest = parties.make_run

    def made(algorithm: Any, *arguments: Any, **named: Any) -> Any:
        liar = copy.copy(algorithm)
        liar.members = lambda number, exchange, sites: (
            tuple(members) if exchange.name == UPDATE else algorithm.members(number, exchange, sites)
        )
        return honest(liar, *arguments, **named)

    monkeypatch.setattr(parties, "make_run", made)


def test_sites_refuse_to_work_in_a_round_that_they_are_not_drawn_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = study("masked", DRAWN, sites=8, rounds=1)
    drawn, fixed = cohorts(chosen, 1)[0], evaluating(chosen)
    other_members(monkeypatch, SITES)
    run(chosen, tmp_path)
    refused = recorded(tmp_path, "refused")
    assert {str(body["site"]) for body in refused} == set(SITES) - set(drawn)
    assert {str(body["reason"]).partition(":")[0] for body in refused} == {"refusal 38"}
    summed = [body["survivors"] for body in recorded(tmp_path, "summed")]
    assert summed == [sorted(cohort) for cohort in (fixed, drawn, fixed)]
    assert fixed != drawn


def test_a_cohort_with_one_site_exchanged_comes_to_no_sum_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = study("masked", DRAWN, sites=8, rounds=1)
    drawn = cohorts(chosen, 1)[0]
    stranger = next(site for site in SITES if site not in drawn)
    other_members(monkeypatch, (*drawn[1:], stranger))
    run(chosen, tmp_path)
    summed = recorded(tmp_path, "summed")
    assert summed
    assert not [body for body in summed if body["exchange"] == UPDATE and stranger in body["survivors"]]


class TestTheRulesOfACohort:
    def test_limits_follow_the_sites_that_a_round_asks(self) -> None:
        chosen = study("masked", ", sites_per_round = 9", sites=60)
        rules, limits = chosen.protection, limits_of(chosen, 60)
        assert limits.colluders == rules.colluders_for(60) == 2  # ceil(9 / 3) - 1, not of 60
        assert (threshold(rules, 60, 9, 9), min_cohort(rules, 60)) == (7, 4)
        assert limits_of(study("masked", sites=60), 60).colluders is None

    def test_noise_counts_the_sites_that_a_round_asks(self) -> None:
        chosen = study("masked", ", sites_per_round = 9, max_dropouts = 1", sites=60)
        privacy = {"unit": "site", "epsilon": 4.0, "delta": 1e-5, "clip_norm": 1.0}
        chosen = chosen.replace("privacy", privacy).replace("algorithm.weighting", "equal")
        noised = with_privacy(chosen, build(chosen), build(chosen).setting.sites)
        assert set(noised._survivors.values()) == {8}  # type: ignore[attr-defined]
        assert noised.releases == 2  # type: ignore[attr-defined]  # every round: no amplification

    def test_a_hospital_keeps_to_the_stricter_of_study_and_policy(self) -> None:
        chosen = study("masked", ", sites_per_round = 4", sites=8)
        terms = Terms(chosen, build(chosen), SITES)
        assert terms.limits(SiteLimits()).colluders == 1
        assert terms.limits(SiteLimits(colluders=3)).colluders == 3


def test_without_the_key_a_study_is_the_one_that_it_was() -> None:
    chosen = study()
    assert "sites_per_round" not in chosen.tables()["protection"]
    assert chosen.replace("protection.sites_per_round", 3).digest() != chosen.digest()


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("masked", "sites_per_round = 8", "no effect among 8"),
        ("masked", "sites_per_round = 4, min_cohort = 5", "above protection.sites_per_round"),
        ("masked", "sites_per_round = 4, threshold = 5", "above protection.sites_per_round"),
        ("masked", "sites_per_round = 4, colluders = 5", "raise protection.sites_per_round"),
        ("encrypted", "sites_per_round = 4", "older one"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name: str, more: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(name, f", {more}", sites=8)
    assert words in f"{caught.value.message} {caught.value.remedy}"
