"""Federated averaging and FedProx of dual encoders, against what they are by definition."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.vision_language.averaging import VlpFedAvgOptions
from secfed.algorithms.vision_language.stage import contrastive_batches
from secfed.errors import ConfigError
from secfed.study.build import build
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import AVERAGING, Rounds, study, updates

PROX = {**AVERAGING, "name": "vlp-fedprox"}


def rounds_of(table: dict[str, object] = AVERAGING, **changes: object) -> Rounds:
    return Rounds(study(algorithm={**table, **changes}))


class TestFedAvg:
    def test_a_round_is_one_sum_of_everything(self):
        algorithm = build(study(algorithm=AVERAGING))
        (update,) = algorithm.exchanges(1)
        assert update.name == "update"
        names = {field.name for field in update.layout.fields if field.name.startswith("update/")}
        assert names == {f"update/{name}" for name in algorithm.names}

    def test_the_next_model_is_the_mean_of_the_local_ones(self):
        rounds = rounds_of()
        rounds.take(1, 0, lost=("hospital-2",))
        programs = [program for site, program in rounds.programs.items() if site != "hospital-2"]
        local = [read_parameters(program.network) for program in programs]
        for name, value in rounds.server.model().items():
            mean = torch.stack([one[name] for one in local]).double().mean(dim=0)
            assert torch.allclose(value.double(), mean, rtol=0, atol=1e-6)

    def test_local_training_is_plain_adamw_on_the_sites_batches(self):
        rounds = rounds_of()
        received = rounds.server.model()
        got = rounds.take(1, 0)
        data = rounds.programs["hospital-3"].data.train
        network = rounds.algorithm.network(received)
        optimiser = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=0.05, fused=True)
        generator = torch_generator(5, "batches", "hospital-3", 1, "joint")
        for rows in contrastive_batches(24, batch_size=8, steps=3, generator=generator):
            optimiser.zero_grad()
            network.objective(network(data.images[rows], data.tokens[rows])).total.backward()
            optimiser.step()
        for name, value in read_parameters(network).items():
            assert torch.equal(got["hospital-3"][f"update/{name}"], value - received[name])

    def test_training_finds_the_pairs(self):
        metrics = rounds_of(local_steps=30).run().server.metrics()
        assert metrics[3]["recall_at_1"] > 2 * metrics[0]["recall_at_1"]
        assert metrics[2]["loss"] < metrics[0]["loss"]

    def test_a_site_keeps_nothing_and_any_process_gives_the_same(self):
        rounds, fresh = rounds_of(), rounds_of()
        rounds.round(1)
        fresh.server.load(rounds.server.save())
        assert rounds.programs["hospital-1"].save() == {}
        one, other = rounds.take(2, 0)["hospital-1"], fresh.take(2, 0)["hospital-1"]
        assert same(updates(one), updates(other))

    def test_defaults_are_the_papers(self):
        options = VlpFedAvgOptions(name="vlp-fedavg")
        assert (options.local_steps, options.batch_size, options.learning_rate) == (50, 288, 2e-5)

    def test_robust_weights_are_not_its_keys(self):
        with pytest.raises(ConfigError, match="rho"):
            build(study(algorithm={**AVERAGING, "rho": 0.1}))


class TestFedProx:
    def test_without_a_pull_it_is_federated_averaging(self):
        averaged, prox = rounds_of().run(), rounds_of(PROX, mu=0.0).run()
        assert same(averaged.server.model(), prox.server.model())

    def test_the_pull_is_the_gradient_of_half_the_squared_distance(self):
        options = {"optimizer": "sgd", "weight_decay": 0.0, "learning_rate": 0.1, "local_steps": 2}
        rounds = rounds_of(PROX, mu=0.7, **options)
        received = rounds.server.model()
        got = rounds.take(1, 0)
        data = rounds.programs["hospital-1"].data.train
        network = rounds.algorithm.network(received)
        generator = torch_generator(5, "batches", "hospital-1", 1, "joint")
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        for rows in contrastive_batches(24, batch_size=8, steps=2, generator=generator):
            optimiser.zero_grad()
            total = network.objective(network(data.images[rows], data.tokens[rows])).total
            for name, parameter in network.named_parameters():
                total = total + 0.35 * (parameter - received[name]).square().sum()
            total.backward()
            optimiser.step()
        for name, value in read_parameters(network).items():
            wanted = value - received[name]
            assert torch.allclose(got["hospital-1"][f"update/{name}"], wanted, rtol=0, atol=1e-6)


def test_a_rising_learning_rate_of_the_study_reaches_the_site_s_steps():
    def moved(**more: object) -> float:
        rounds = Rounds(study(algorithm={**AVERAGING, **more}))
        start = rounds.server.model()
        rounds.round(1)
        after = rounds.server.model()
        return sum(float((after[name] - start[name]).abs().sum()) for name in start)

    assert moved(learning_rate_warmup=100) < 0.1 * moved()


class TestMatchedControls:
    """What tells a method's own stages from more steps, a softer start, or heads that train first."""

    def test_first_rounds_can_train_and_sum_the_alignment_modules_only(self):
        rounds, plain = rounds_of(head_rounds=1), rounds_of()
        start = rounds.server.model()
        (head,) = (stage.summed for stage in rounds.algorithm.stages(1))
        assert head == rounds.algorithm.align_names
        rounds.round(1)
        after = rounds.server.model()
        for name, value in after.items():
            assert torch.equal(value, start[name]) == (name in rounds.algorithm.encoder_names)
        assert rounds.algorithm.exchanges(2) == plain.algorithm.exchanges(2)
        rounds.round(2)
        assert not any(torch.equal(value, start[name]) for name, value in rounds.server.model().items())

    def test_a_warm_up_can_be_a_share_of_each_stage(self):
        share, steps = ({"learning_rate_warmup_share": 0.7}, {"learning_rate_warmup": 2})
        same_number = (rounds_of(**keys) for keys in (share, steps))  # 0.7 of 3 steps is 2
        one, other = (rounds.run().server.model() for rounds in same_number)
        assert same(one, other)
        assert not same(one, rounds_of().run().server.model())
        with pytest.raises(ConfigError, match="learning_rate_warmup_share: has no effect"):
            rounds_of(**share, **steps)

    def test_the_new_keys_leave_the_digests_of_older_studies_alone(self):
        made = study(algorithm=AVERAGING)
        written_out = study(algorithm={**AVERAGING, "head_rounds": 0, "learning_rate_warmup_share": 0.0})
        assert made.digest() == written_out.digest()
        assert study(algorithm={**AVERAGING, "head_rounds": 1}).digest() != made.digest()


def test_a_study_may_sum_recall_by_its_ceiling():
    plain, more = rounds_of(), rounds_of(evaluation_ceiling=True, evaluation_pairs="distinct")
    names = [[field.name for field in made.algorithm.exchanges(1)[0].layout.fields] for made in (plain, more)]
    assert sorted(set(names[1]) - set(names[0])) == ["eval/ceiling_at_1", "eval/relative_recall_at_1"]
    metrics = more.run().server.metrics()[3]
    assert metrics["ceiling_at_1"] == 1.0
    assert metrics["relative_recall_at_1"] == pytest.approx(metrics["recall_at_1"], abs=1e-3)
    ours = plain.run().server.model()
    assert same(more.server.model(), ours)
