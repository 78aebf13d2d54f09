"""FedDRA against its specification: its stages, its anchor, and the server's step."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.vision_language import feddra as module
from secfed.algorithms.vision_language.feddra import FedDraOptions
from secfed.algorithms.vision_language.site import VlpSite
from secfed.errors import WrongState
from secfed.study.build import build
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import AVERAGING, Rounds, Toy, study, updates

PLAIN = {"algorithm__rho": 0.0, "algorithm__mu": 0.0, "algorithm__align_steps": 0}
WEIGHTS, ALIGN, JOINT = 0, 1, 2  # exchanges of a round


def model_of(**changes: object):
    """The model after two rounds; without changes, federated averaging's."""
    return Rounds(study(study__rounds=2, **(changes or {"algorithm": AVERAGING}))).run().server.model()


@pytest.fixture(scope="module")
def averaged():
    """What federated averaging gives, written without FedDRA's code."""
    return model_of()


def names_of(exchange, start: str) -> set[str]:
    fields = [field.name for field in exchange.layout.fields]
    return {name.removeprefix(start) for name in fields if name.startswith(start)}


class TestPlan:
    def test_a_round_is_weights_then_alignment_then_everything(self):
        algorithm = build(study())
        weights, align, joint = algorithm.exchanges(1)
        assert [weights.name, align.name, joint.name] == ["weights", "align", "joint"]
        assert names_of(align, "update/") == set(algorithm.align_names)
        assert names_of(joint, "update/") == set(algorithm.names)
        rest = {name for name in names_of(weights, "") if not name.startswith("eval/")}
        assert rest == {field.name for field in algorithm.rule.fields()}

    def test_evaluation_rides_with_the_first_sum_and_closes_the_study(self):
        algorithm = build(study())
        evaluates = [bool(names_of(exchange, "eval/")) for exchange in algorithm.exchanges(2)]
        assert evaluates == [True, False, False]
        assert [exchange.name for exchange in algorithm.exchanges(4)] == ["evaluate"]

    def test_evaluation_may_wait_for_the_end(self):
        rounds = Rounds(study(study__rounds=1, algorithm__evaluate="last")).run()
        found = rounds.server.metrics()
        assert set(found[1]) == {"recall_at_1", "recall_at_5", "infonce"}
        assert set(found[0]) == {"loss"}

    def test_without_robustness_nothing_is_summed_for_it(self):
        algorithm = build(study(algorithm__rho=0.0))
        assert [exchange.name for exchange in algorithm.exchanges(1)] == ["align", "joint"]
        assert not any(names_of(exchange, "dro/") for exchange in algorithm.exchanges(1))

    @pytest.mark.parametrize(("source", "carrier"), [("lagged", "align"), ("local", "joint")])
    def test_losses_may_ride_with_an_update(self, source, carrier):
        algorithm = build(study(algorithm__loss_source=source))
        found = {exchange.name: bool(names_of(exchange, "dro/")) for exchange in algorithm.exchanges(1)}
        assert found == {"align": carrier == "align", "joint": carrier == "joint"}

    @pytest.mark.parametrize(("threshold", "told"), [(4, False), (5, True)])
    def test_a_training_loss_is_one_more_equation_in_the_losses(self, threshold, told):
        """chi2 sums two numbers, one hospital colludes: four leave three unknown."""
        made = build(study(protection={"name": "masked", "threshold": threshold, "colluders": 1}))
        assert made.rule.minimum == 4
        assert any(names_of(exchange, "loss") for exchange in made.exchanges(1)) == told
        assert any(names_of(exchange, "loss") for exchange in build(study()).exchanges(1))  # plain
        free = study(protection={"name": "masked", "threshold": 4}, algorithm__rho=0.0)
        assert any(names_of(exchange, "loss") for exchange in build(free).exchanges(1))

    def test_defaults_are_the_papers(self):
        options = FedDraOptions(name="feddra")
        assert (options.learning_rate, options.batch_size, options.weight_decay) == (2e-5, 288, 0.05)
        assert (options.align_steps, options.joint_steps, options.optimizer) == (20, 50, "adamw")
        assert (options.rho, options.gamma, options.mu, options.anchor_reduction) == (0.1, 1.0, 5.0, "sumdim")
        assert (options.loss_source, options.loss_batches, options.divergence) == ("global", 16, "chi2")

    def test_no_such_round_or_exchange(self):
        algorithm = build(study())
        with pytest.raises(WrongState):
            algorithm.exchanges(5)
        with pytest.raises(WrongState):
            algorithm.site("hospital-1").contribute(4, algorithm.exchanges(1)[0], {})

    def test_updates_have_the_protections_bound_and_bits(self):
        algorithm = build(study(protection__bound=2.0, protection__bits=24))
        fields = [f for f in algorithm.exchanges(1)[JOINT].layout.fields if f.name.startswith("update/")]
        assert {(field.bound, field.bits) for field in fields} == {(2.0, 24)}


class TestIsFederatedAveragingWithoutItsParts:
    def test_bit_for_bit(self, averaged):
        assert same(model_of(**PLAIN), averaged)

    @pytest.mark.parametrize("part", [{"rho": 0.1}, {"mu": 5.0}, {"align_steps": 2}])
    def test_and_with_any_of_its_parts_it_is_not(self, averaged, part):
        changes = {**PLAIN, **{f"algorithm__{key}": value for key, value in part.items()}}
        assert not same(model_of(**changes), averaged)

    def test_measuring_losses_changes_no_batch(self):
        # gamma = 0 keeps all weights equal, so only the measuring is left.
        measured = Rounds(study(study__rounds=2, algorithm__gamma=0.0)).run()
        assert set(measured.weights.values()) == {0.2}
        assert same(measured.server.model(), model_of(algorithm__rho=0.0))

    def test_without_robustness_every_step_has_scale_one(self):
        rounds = Rounds(study(algorithm__rho=0.0))
        rounds.round(1)
        program = rounds.programs["hospital-5"]
        assert program.weight is None
        assert [program.step_scale(stage) for stage in rounds.algorithm.stages(1)] == [1.0, 1.0]


class TestStages:
    def test_the_first_stage_leaves_the_encoders_bit_by_bit(self):
        rounds = Rounds(study())
        before = rounds.server.model()
        rounds.take(1, WEIGHTS)
        got = rounds.take(1, ALIGN)
        for site, program in rounds.programs.items():
            local = read_parameters(program.network)
            assert all(torch.equal(local[name], before[name]) for name in program.network.encoder_names)
            assert set(updates(got[site])) == set(program.network.align_names)
            assert all(bool(value.any()) for value in updates(got[site]).values())
        after = rounds.server.model()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == set(rounds.algorithm.align_names)

    def test_the_first_stage_runs_the_encoders_without_gradient(self, monkeypatch):
        seen = []
        encode = Toy.encode

        def watched(self, images, tokens):
            found = encode(self, images, tokens)
            seen.append((found.image.requires_grad, self.image_encoder.training))
            return found

        rounds = Rounds(study())
        rounds.take(1, WEIGHTS)
        monkeypatch.setattr(Toy, "encode", watched)
        rounds.take(1, ALIGN)
        assert set(seen) == {(False, False)}

    @pytest.mark.parametrize("index", [ALIGN, JOINT])
    def test_the_anchor_is_the_model_received_for_the_stage_and_stays_so(self, monkeypatch, index):
        anchors = []
        original = module.frozen_copy
        monkeypatch.setattr(module, "frozen_copy", lambda one: anchors.append(original(one)) or anchors[-1])
        rounds = Rounds(study())
        for earlier in range(index):
            rounds.take(1, earlier)
        anchors.clear()
        received = rounds.server.model()
        rounds.take(1, index)
        assert len(anchors) == 5
        for anchor in anchors:
            assert same(read_parameters(anchor), received)
            assert all(parameter.grad is None for parameter in anchor.parameters())

    @pytest.mark.parametrize("index", [ALIGN, JOINT])
    def test_the_anchor_costs_nothing_at_first_and_then_pulls(self, index):
        rounds = Rounds(study())
        for earlier in range(index):
            rounds.take(1, earlier)
        program, stage = rounds.programs["hospital-1"], rounds.algorithm.stages(1)[index]
        received = rounds.server.model()
        network = program.network
        network.load_state_dict(received)
        held, free = program.loss(1, stage, received), VlpSite.loss(program, 1, stage, received)
        batch = program.batch(torch.arange(8))
        with torch.no_grad():
            assert torch.equal(held(network, batch), free(network, batch))
            network.image_align.weight += 0.3
            difference = held(network, batch) - free(network, batch)
            moved = network(*batch)
            network.load_state_dict(received)
            fixed = network(*batch)
        distance = sum(
            (one - other).square().sum(1).mean() for one, other in zip(moved.pair, fixed.pair, strict=True)
        )
        assert float(difference) == pytest.approx(5.0 * float(distance), rel=1e-4)

    def test_the_printed_sum_over_dimensions_is_that_much_stronger(self):
        rounds = [Rounds(study(algorithm__anchor_reduction=name)) for name in ("mean", "sumdim")]
        found = []
        for one in rounds:
            program, stage = one.programs["hospital-1"], one.algorithm.stages(1)[JOINT]
            received, network = one.server.model(), program.network
            network.load_state_dict(received)
            held, free = program.loss(1, stage, received), VlpSite.loss(program, 1, stage, received)
            with torch.no_grad():
                network.image_align.weight += 0.3
                batch = program.batch(torch.arange(8))
                found.append(float(held(network, batch) - free(network, batch)))
        assert found[1] == pytest.approx(6 * found[0], rel=1e-4)  # embeddings of 6 numbers

    def test_sharing_features_changes_no_gradient(self, monkeypatch):
        shared = Rounds(study())
        apart = Rounds(study())
        for rounds in (shared, apart):
            rounds.take(1, WEIGHTS)
        first = shared.take(1, ALIGN)
        for program in apart.programs.values():  # as if the stage trained encoders, and computed all
            program.network.encoder_names = program.network.align_names
        calls = []
        encode = Toy.encode
        monkeypatch.setattr(Toy, "encode", lambda *args: calls.append(1) or encode(*args))
        second = apart.take(1, ALIGN)
        assert len(calls) == 2 * 5 * 2  # two encoders' worth in each of two steps at five sites
        for site in first:
            one, other = updates(first[site]), updates(second[site])
            assert all(torch.allclose(one[n], other[n], rtol=0, atol=1e-6) for n in one)


class TestServerStep:
    def test_the_model_moves_by_the_mean_over_the_survivors_of_that_sum(self):
        rounds = Rounds(study())
        rounds.take(1, WEIGHTS, absent=("hospital-1",))
        for index, absent in ((ALIGN, ("hospital-2",)), (JOINT, ("hospital-3", "hospital-4"))):
            before = rounds.server.model()
            got = rounds.take(1, index, absent=absent)
            assert len(got) == 5 - len(absent)
            for name, value in updates(got["hospital-5"]).items():
                mean = torch.stack([updates(one)[name] for one in got.values()]).double().mean(dim=0)
                assert torch.allclose(rounds.server.model()[name], (before[name] + mean).float(), atol=1e-6)
                assert value.shape == mean.shape

    def test_one_full_step_follows_the_gradient_of_the_weighted_objective(self):
        rate = 0.05
        changes = {"optimizer": "sgd", "weight_decay": 0.0, "learning_rate": rate}
        changes |= {"batch_size": 24, "align_steps": 0, "joint_steps": 1}
        rounds = Rounds(study(**{f"algorithm__{key}": value for key, value in changes.items()}))
        rounds.take(1, 0)
        received = rounds.server.model()
        network = rounds.algorithm.network(received)
        rounds.take(1, 1)
        weights = rounds.weights
        assert sum(weights.values()) == pytest.approx(1.0)
        assert max(weights.values()) > 0.22
        for parameter in network.parameters():
            parameter.requires_grad_(True)
        total = torch.zeros(())
        for site, weight in weights.items():
            data = rounds.programs[site].data.train
            total = total + weight * network.objective(network(data.images, data.tokens)).total
        total.backward()
        after = rounds.server.model()
        for name, parameter in network.named_parameters():
            assert torch.allclose(after[name] - received[name], -rate * parameter.grad, rtol=0, atol=1e-6)

    def test_the_simplex_convention_divides_every_step_by_the_number_of_sites(self):
        programs = []
        for convention in ("mean_one", "simplex"):
            rounds = Rounds(study(algorithm__weight_convention=convention))
            rounds.take(1, WEIGHTS)
            rounds.take(1, ALIGN)
            stage = rounds.algorithm.stages(1)[JOINT]
            programs.append([program.step_scale(stage) for program in rounds.programs.values()])
        assert programs[0] == pytest.approx([5 * scale for scale in programs[1]])
