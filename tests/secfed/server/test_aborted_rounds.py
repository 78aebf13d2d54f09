"""Sums that are given up: before anybody is asked, after everybody refused, and in the closing evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from secfed.config.cohort_rules import min_cohort, min_survivors, threshold
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.errors import RoundAborted
from secfed.protection.interface import SiteId
from secfed.protection.registry import MASKED
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.server.round import Rules, sum_securely
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Field, Layout
from secfed.wire.transport import OnReply

STUDY = """
study = {{ name = "small", rounds = {rounds}, seed = 11 }}
algorithm = {{ name = "fedavg", learning_rate = 0.05, batch_size = 32 }}
model = {{ name = "logistic-regression" }}
data = {{ name = "breast-cancer", sites = {sites}, partition = "iid" }}
protection = {{ name = "{protection}" {more} }}
"""
SITES = ("a", "b", "c", "d")


def study(protection: str = "masked", more: str = "", *, sites: int = 4, rounds: int = 2) -> Study:
    return Study.parse(STUDY.format(protection=protection, more=more, sites=sites, rounds=rounds))


def run(chosen: Study, out: Path | None, *drops: str) -> RunReport:
    parsed = [Dropout.parse(text) for text in drops]
    return simulate(chosen, out=out, drops=parsed, observer=SilentObserver())


def recorded(out: Path, kind: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "transcript.jsonl").read_text().splitlines()]
    return [line["body"] for line in lines if line["kind"] == kind]


class TestTheClosingEvaluation:
    def test_given_up_leaves_the_final_model_without_metrics_and_says_so(self, tmp_path: Path) -> None:
        lost = ("hospital-1@train:4", "hospital-2@train:4")
        report = run(study("plain", rounds=3), tmp_path, *lost)
        assert [entry.aborted for entry in report.rounds] == [None] * 3
        assert report.final == {}
        assert report.closing_aborted is not None
        assert "2 can take part, 3 are needed" in report.closing_aborted
        assert report.last_measured == (2, report.rounds[1].metrics)
        content = json.loads((tmp_path / "run.json").read_text())
        assert content["final"] == {}
        assert content["closing_aborted"] == report.closing_aborted
        assert content["rounds"][1]["metrics"]
        assert content["rounds"][2]["metrics"] == {}

    def test_that_comes_to_a_sum_measures_the_final_model(self, tmp_path: Path) -> None:
        report = run(study("plain"), tmp_path, "hospital-1@train:2", "hospital-2@train:2")
        assert report.rounds[1].aborted is not None  # the model of round 1 is the final one, and is measured
        assert report.final == report.rounds[1].metrics
        assert report.final["accuracy"] > 0.5
        assert report.last_measured == (2, report.final)
        assert report.closing_aborted is None
        assert "closing_aborted" not in json.loads((tmp_path / "run.json").read_text())


class TestAThresholdThatCannotBeMet:
    def test_nobody_is_asked_for_more_answers_than_there_are_sites(self, tmp_path: Path) -> None:
        report = run(study(more=", threshold = 4"), tmp_path, "hospital-1@train:1")
        assert report.rounds[0].aborted is not None
        assert "3 can take part, 4 are needed" in report.rounds[0].aborted
        assert report.rounds[0].drops == (("hospital-1", "train"),)
        assert recorded(tmp_path, "refused") == []
        assert report.rounds[1].aborted is None

    def test_nor_is_a_cohort_that_colluders_could_reduce_to_one_site(self, tmp_path: Path) -> None:
        """Of seven sites two may collude; three are left, and each of them would refuse."""
        lost = [f"hospital-{index}@train:1" for index in range(1, 5)]
        report = run(study(sites=7), tmp_path, *lost)
        assert report.rounds[0].aborted is not None
        assert "3 can take part, 4 are needed" in report.rounds[0].aborted
        assert recorded(tmp_path, "refused") == []

    def test_a_least_cohort_above_the_default_threshold_raises_it(self, tmp_path: Path) -> None:
        report = run(study(more=", min_cohort = 4", rounds=1), tmp_path)
        assert report.rounds[0].survivors == ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
        assert recorded(tmp_path, "refused") == []

    @pytest.mark.parametrize("name", ["plain", "masked", "encrypted"])
    def test_no_protection_lets_fewer_survive_than_the_least_cohort(self, name: str) -> None:
        for more in (", min_cohort = 4", ", min_cohort = 4, threshold = 3"):
            chosen = study(name, more)
            assert threshold(chosen.protection, 4, 4) == min_survivors(chosen.protection, 4) == 4

    def test_two_sites_can_still_be_summed_in_the_plain(self) -> None:
        chosen = study("plain", ", min_cohort = 1", sites=2)
        assert [threshold(chosen.protection, 2, cohort) for cohort in (1, 2)] == [1, 2]
        assert min_cohort(chosen.protection, 2) == 2

    def test_the_least_cohort_holds_two_honest_sites_and_leaves_the_counted_noise_alone(self) -> None:
        chosen = study(sites=8)  # two of eight may collude
        assert min_cohort(chosen.protection, 8) == 4
        assert min_survivors(chosen.protection, 8) == 3
        assert min_cohort(study("encrypted", sites=8).protection, 8) == 3


class TestOneExchange:
    """:func:`sum_securely` with a carrier that finds nobody."""

    EXCHANGE = Exchange("update", "all", Layout((Field("x", (2,), 1.0, 32),), sites=4))

    def give_up(self, ready: list[SiteId], answers: int) -> tuple[str, list[tuple[str, list[SiteId]]]]:
        aggregator = Identity.generate("aggregator")
        roster = Roster.of(aggregator, [Identity.generate(site) for site in SITES])
        rules = Rules("study", aggregator, roster, MASKED, lambda _: answers, 3)
        asked = []

        def ask(stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
            del on_reply
            asked.append((stage, list(requests)))

        with pytest.raises(RoundAborted) as caught:
            sum_securely(1, 0, self.EXCHANGE, b"state", ready, rules, ask)
        return caught.value.message, asked

    def test_too_few_sites_are_not_asked(self) -> None:
        message, asked = self.give_up(["a", "b", "c"], 4)
        assert "too few sites for a sum: 3 can take part, 4 are needed; nothing was revealed" in message
        assert asked == []

    def test_sites_that_all_refuse_are_not_called_too_few(self) -> None:
        message, asked = self.give_up(list(SITES), 3)
        assert message == (
            "round 1, exchange 'update': every site refused or went silent; nothing was revealed."
        )
        assert asked == [("advertise", list(SITES))]

    def test_the_callers_list_of_sites_is_left_alone(self) -> None:
        ready: list[SiteId] = list(SITES)
        self.give_up(ready, 3)
        assert ready == list(SITES)
