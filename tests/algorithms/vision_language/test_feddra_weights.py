"""FedDRA's weights, who learns what, what is kept and refused, and FedDRA through the whole round."""

from __future__ import annotations

import math

import pytest
import torch

from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.vision_language.feddra import FedDra
from secfed.algorithms.vision_language.stage import contrastive_batches
from secfed.errors import ConfigError, DataError, MalformedMessage
from secfed.runs.run_report import RunReport
from secfed.study.build import build
from tests.algorithms.dro_case import plain as in_the_clear
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import Rounds, study, updates
from tests.algorithms.whole import model_bytes, run

WEIGHTS, ALIGN, JOINT = 0, 1, 2  # exchanges of a round
GROUPS = {"unit": "group", "group_size": 4, "epsilon": 8.0, "delta": 1e-4}


class TestWeights:
    def test_they_are_those_of_the_plain_formula(self):
        rounds = Rounds(study())
        weights = [0.2] * 5
        for number in range(1, 4):
            rounds.take(number, WEIGHTS)
            losses = [program.weight.loss for program in rounds.programs.values()]
            weights = in_the_clear(rounds.algorithm.rule, weights, losses).tolist()
            rounds.take(number, ALIGN)
            assert list(rounds.weights.values()) == pytest.approx(weights, abs=1e-6)
            rounds.take(number, JOINT)
        assert rounds.weights["hospital-5"] > rounds.weights["hospital-1"]  # the noisiest pairs

    def test_the_loss_is_that_of_the_received_model_on_fixed_training_batches(self):
        rounds = Rounds(study(algorithm__loss_batches=3))
        rounds.take(1, WEIGHTS)
        first = {site: program.weight.loss for site, program in rounds.programs.items()}
        again = Rounds(study(algorithm__loss_batches=3, algorithm__joint_steps=7))
        again.take(1, WEIGHTS)
        assert first == {site: program.weight.loss for site, program in again.programs.items()}
        for site, program in rounds.programs.items():
            network, data = rounds.algorithm.network(rounds.server.model()), program.data.train
            rows = contrastive_batches(
                24, batch_size=8, steps=3, generator=torch_generator(5, "loss batches", site)
            )
            with torch.no_grad():
                values = [
                    network.objective(network(data.images[part], data.tokens[part])).infonce for part in rows
                ]
            assert first[site] == pytest.approx(float(torch.stack(values).mean()), abs=2e-5)

    def test_a_site_that_drops_out_of_the_sum_keeps_its_weight_and_comes_back(self):
        rounds = Rounds(study())
        rounds.round(1)
        before = rounds.weights
        rounds.take(2, WEIGHTS, lost=("hospital-2",))
        rounds.take(2, ALIGN)
        after = rounds.weights
        assert after["hospital-2"] == before["hospital-2"]
        others = [weight for site, weight in after.items() if site != "hospital-2"]
        assert sum(others) == pytest.approx(1.0)
        stage = rounds.algorithm.stages(2)[JOINT]
        scales = [one.step_scale(stage) for site, one in rounds.programs.items() if site != "hospital-2"]
        assert sum(scales) == pytest.approx(4.0)  # mean one over those in the sum
        rounds.take(2, JOINT)
        rounds.round(3)
        assert sum(rounds.weights.values()) == pytest.approx(1.0)

    def test_a_site_that_misses_the_broadcasts_gets_the_answer_with_the_next(self):
        rounds, present = Rounds(study()), Rounds(study())
        for one in (rounds, present):
            one.take(1, WEIGHTS)
        rounds.take(1, ALIGN, absent=("hospital-3",))
        rounds.take(1, JOINT, absent=("hospital-3",))
        present.take(1, ALIGN)
        assert rounds.weights["hospital-3"] == 0.2
        exchange = rounds.exchange(2, WEIGHTS)
        state = rounds.server.broadcast(2, exchange)
        rounds.contributions(2, WEIGHTS)
        assert exchange.name == "weights"
        assert rounds.weights["hospital-3"] == present.weights["hospital-3"] != 0.2
        assert "dro/members" in state

    def test_too_few_survivors_change_no_weight(self):
        rounds = Rounds(study())
        rounds.round(1)
        before = rounds.weights
        rounds.take(2, WEIGHTS, lost=("hospital-1", "hospital-2"))
        assert not any(
            name.startswith("dro/") for name in rounds.server.broadcast(2, rounds.algorithm.exchanges(2)[1])
        )
        rounds.take(2, ALIGN)
        assert rounds.weights == before

    @pytest.mark.parametrize("source", ["lagged", "local"])
    def test_other_sources_move_the_weights_one_sum_later(self, source):
        rounds = Rounds(study(algorithm__loss_source=source))
        rounds.take(1, 0)
        assert set(rounds.weights.values()) == {0.2}
        rounds.take(1, 1)
        moved = max(rounds.weights.values()) > 0.2
        assert moved == (source == "lagged")
        rounds.take(2, 0)
        assert max(rounds.weights.values()) > 0.21
        assert sum(rounds.weights.values()) == pytest.approx(1.0)

    def test_the_local_source_measures_the_sites_own_model(self):
        rounds = Rounds(study(algorithm__loss_source="local", algorithm__joint_steps=30))
        rounds.take(1, 0)
        other = Rounds(study(algorithm__loss_source="global"))
        other.take(1, WEIGHTS)
        rounds.take(1, 1)
        for site, program in rounds.programs.items():
            assert program.weight.loss < other.programs[site].weight.loss

    def test_a_scale_moves_a_site_that_much_further(self):
        rounds = Rounds(study(algorithm__optimizer="sgd", algorithm__joint_steps=1, algorithm__align_steps=0))
        rounds.take(1, 0)
        even = rounds.copy()
        got = rounds.take(1, 1)
        for program in even.programs.values():
            program.weight = program.weight.start(even.algorithm.rule)
        flat = even.take(1, 1)
        stage = rounds.algorithm.stages(1)[1]
        for site, program in rounds.programs.items():
            scale = program.step_scale(stage)
            for name, value in updates(got[site]).items():
                assert torch.allclose(value, scale * updates(flat[site])[name], atol=1e-5)


class TestWhoLearnsWhat:
    def test_the_server_holds_nothing_of_a_single_site(self):
        rounds = Rounds(study())
        single: list[float] = []
        for number in range(1, 4):
            for index in range(3):
                got = rounds.take(number, index)
                for one in got.values():
                    single += [float(torch.as_tensor(v).double().reshape(-1)[0]) for v in one.values()]
                for program in rounds.programs.values():
                    single += [program.weight.weight, program.weight.loss]
        single = [value for value in single if value not in (0.0, 0.2, 1.0) and math.isfinite(value)]
        held = torch.cat([v.double().reshape(-1) for v in rounds.server.save().values()])
        for exchange in rounds.algorithm.exchanges(3):
            state = rounds.server.broadcast(3, exchange)
            held = torch.cat([held, *(value.double().reshape(-1) for value in state.values())])
        numbers = set(held.tolist()) - {0.25, 0.5, 0.75}  # a recall may be anybody's
        assert len(single) > 100
        assert not numbers & set(single) - {round(v * 16) / 16 for v in single}

    def test_no_loss_and_no_weight_is_a_field(self):
        algorithm = build(study())
        fields = {field.name for exchange in algorithm.exchanges(1) for field in exchange.layout.fields}
        assert {name for name in fields if not name.startswith(("update/", "eval/", "dro/"))} == {"loss"}


class TestKeeping:
    def test_a_study_that_is_taken_up_again_everywhere_gives_the_same_bits(self):
        made = study(study__rounds=2)
        whole = Rounds(made).run()
        rounds = Rounds(made)
        for number in range(1, 4):
            for index in range(len(rounds.algorithm.exchanges(number))):
                fresh = Rounds(made)
                fresh.server.load(rounds.server.save())
                for site, program in rounds.programs.items():
                    fresh.programs[site].load(program.save())
                fresh.take(number, index)
                rounds = fresh
        assert same(rounds.server.model(), whole.server.model())
        assert rounds.server.metrics() == whole.server.metrics()
        assert rounds.weights == whole.weights

    def test_without_robustness_a_site_keeps_nothing(self):
        assert Rounds(study(algorithm__rho=0.0)).programs["hospital-1"].save() == {}

    def test_a_site_refuses_what_another_study_kept(self):
        with pytest.raises(MalformedMessage):
            Rounds(study()).programs["hospital-1"].load({"something": torch.zeros(1)})


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"data__sites": 3, "protection__threshold": None}, "algorithm.rho"),
            ({"data__sites": 2, "protection__threshold": 2, "protection__min_cohort": 2}, "algorithm.rho"),
            ({"protection__name": "masked", "protection__threshold": None}, "protection.threshold"),
            ({"algorithm__gamma": 4.0}, "algorithm.gamma"),
            ({"algorithm__align_steps": 0, "algorithm__joint_steps": 0}, "algorithm.joint_steps"),
            ({"algorithm__loss_share": 0.1}, "algorithm.loss_share"),
            ({"privacy": GROUPS, "algorithm__precision": "float16"}, "algorithm.precision"),
            ({"data": {"name": "digits", "sites": 5}}, "data.name"),
            ({"model": {"name": "logistic-regression"}}, "model.name"),
            (
                {"model": {"name": "tests.algorithms.vision_language.test_feddra_weights:no_network"}},
                "model.name",
            ),
        ],
    )
    def test_a_study_that_cannot_be(self, changes, key):
        with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
            build(study(**changes))

    def test_fewer_sites_are_enough_without_robustness(self):
        rounds = Rounds(
            study(data__sites=2, algorithm__rho=0.0, protection__min_cohort=2, protection__threshold=2)
        )
        rounds.run()

    def test_a_site_with_one_pair_is_refused(self):
        with pytest.raises(DataError, match="hospital-1"):
            build(study(data__train=1)).site("hospital-1")

    def test_a_model_of_other_parameters_is_refused(self):
        rounds = Rounds(study())
        exchange = rounds.algorithm.exchanges(1)[0]
        state = dict(rounds.server.broadcast(1, exchange))
        del state["model/image_align.weight"]
        with pytest.raises(MalformedMessage, match="image_align"):
            rounds.programs["hospital-1"].contribute(1, exchange, state)


def no_network(image_shape: object, text_shape: object) -> object:
    del image_shape, text_shape
    return torch.nn.Linear(2, 2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, RunReport]:
    """The model and report of the plain run."""
    out = tmp_path_factory.mktemp("plain")
    report = run(study(study__rounds=2), out)
    return model_bytes(out), report


class TestWholeRound:
    def test_the_model_has_the_same_bytes_under_encrypted_and_plain(self, plain, tmp_path):
        report = run(study(study__rounds=2, protection__name="encrypted"), tmp_path)
        assert [entry.aborted for entry in report.rounds] == [None] * 2
        assert report.final == plain[1].final
        assert model_bytes(tmp_path) == plain[0]

    def test_a_hospital_that_drops_out_while_sums_are_masked_equals_an_absent_one(self, tmp_path):
        made = study(study__rounds=2)
        run(made, tmp_path / "absent", "hospital-4@train:1")
        report = run(made.replace("protection.name", "masked"), tmp_path / "dropped", "hospital-4@mask:1")
        assert ("hospital-4", "mask") in report.rounds[0].drops
        assert report.rounds[0].aborted is None
        assert model_bytes(tmp_path / "absent") == model_bytes(tmp_path / "dropped")

    def test_per_site_metrics_average_to_the_studys(self):
        rounds = Rounds(study(study__rounds=1)).run()
        algorithm: FedDra = rounds.algorithm
        per_site = algorithm.per_site(rounds.server.model())
        assert set(per_site) == set(algorithm.setting.sites)
        for name, value in rounds.server.metrics()[1].items():
            assert sum(one[name] for one in per_site.values()) / 5 == pytest.approx(value)
