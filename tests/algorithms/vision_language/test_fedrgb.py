from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.framework.server_state import part_of
from secfed.algorithms.losses.objective import infonce
from secfed.algorithms.losses.vlp import anchor_loss
from secfed.algorithms.vision_language import fedrgb_site
from secfed.algorithms.vision_language.fedrgb import FedRgb
from secfed.algorithms.vision_language.stage import contrastive_batches, train_only
from secfed.errors import ConfigError
from tests.algorithms.dro_case import plain
from tests.algorithms.dual_encoder_case import detached as without_gradient
from tests.algorithms.loop import add_in_ring, same
from tests.algorithms.vlp_case import AVERAGING, Rounds, study

RGB = {"name": "fedrgb", "learning_rate": 0.02, "loss_batches": 2}
RGB |= dict.fromkeys(("warmup_steps", "guided_steps", "teacher_steps"), 3)
RGB |= dict.fromkeys(("batch_size", "loss_batch_size", "evaluation_batch"), 8)
SITE = "hospital-2"


def rounds(**changes: Any) -> Rounds:
    """A study of three rounds, the first of them the warm-up."""
    table = {**RGB, **changes}
    kept = {name: value for name, value in table.items() if value is not None}
    return Rounds(study(algorithm=kept))


def at(name: str, **changes: Any) -> tuple[Rounds, int]:
    """A study that is about to run this exchange of round 2, and its index."""
    made = rounds(**changes)
    made.round(1)
    names = [exchange.name for exchange in made.algorithm.exchanges(2)]
    for index in range(names.index(name)):
        made.take(2, index)
    return made, names.index(name)


def ready(name: str, **changes: Any) -> tuple[Any, Any, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """One site that holds the model of this exchange of round 2; the stage, the model and a batch."""
    made, index = at(name, **changes)
    stage, program = made.algorithm.stages(2)[index], made.programs[SITE]
    received = part_of(made.server.broadcast(2, stage.exchange), "model/")
    write_parameters(program.network, received)
    return program, stage, received, program.batch(torch.arange(8))


def aligner(program: Any) -> dict[str, torch.Tensor]:
    return part_of(program.save(), "aligner/")


def with_aligner(program: Any, received: dict[str, torch.Tensor], **own: Any) -> Any:
    """A network of its own with these parameters in place of the received ones."""
    return program.algorithm.network({**received, **own})


# what a round is


def test_a_round_is_encoders_then_weights_then_teacher_after_a_warm_up_of_everything():
    algorithm = rounds().algorithm
    plan = [[exchange.name for exchange in algorithm.exchanges(number)] for number in (1, 2, 3, 4)]
    assert plan == [["warm-up"], *[["encoder", "weights", "teacher"]] * 2, ["evaluate"]]


def test_each_stage_sends_exactly_its_part_of_the_model():
    algorithm = rounds().algorithm
    sent = {}
    for number in (1, 2):
        for exchange in algorithm.exchanges(number):
            names = [field.name for field in exchange.layout.fields]
            sent[exchange.name] = [name.removeprefix("update/") for name in names if "update/" in name]
    assert sent["warm-up"] == list(algorithm.names)
    assert sent["encoder"] == list(algorithm.encoder_names)
    assert sent["teacher"] == list(algorithm.align_names)
    assert sent["weights"] == []
    sizes = {name: value.numel() for name, value in algorithm.shapes.named_parameters()}
    count = {
        exchange.name: sum(
            field.elements for field in exchange.layout.fields if field.name.startswith("update/")
        )
        for exchange in algorithm.exchanges(2)
    }
    assert count["encoder"] == sum(sizes[name] for name in algorithm.encoder_names)
    assert count["teacher"] == sum(sizes[name] for name in algorithm.align_names)
    assert count["encoder"] + count["teacher"] == sum(sizes.values())


def test_the_teacher_is_trained_no_further_than_its_losses_reach():
    made = study(algorithm=RGB, model={"name": "vision-language", "objective": "mgca", "prototypes": 4})
    made = made.replace("data.name", "tests.algorithms.vision_language.test_fedrgb:larger_pairs")
    algorithm = Rounds(made).algorithm
    left_out = set(algorithm.align_names) - set(algorithm.teacher_names)
    assert left_out
    assert all("parts_head" in name or name.startswith("objective.") for name in left_out)
    assert not any("parts_head" in name or name.startswith("objective.") for name in algorithm.teacher_names)


def test_what_the_teacher_does_not_reach_is_averaged_with_the_encoders_unless_the_study_says_otherwise():
    model = {"name": "vision-language", "objective": "mgca", "prototypes": 4, "mgca_frozen_rounds": 0}
    changed = {}
    for average in (False, True):
        keys = {} if average else {"average_parts": False}
        made = study(algorithm={**RGB, **keys}, model=model, study__rounds=2)
        made = made.replace("data.name", "tests.algorithms.vision_language.test_fedrgb:larger_pairs")
        now = Rounds(made)
        now.round(1)
        before = now.server.model()
        now.take(2, 0)
        parts = now.algorithm.part_names
        assert any("parts_head" in name for name in parts)
        assert any(name.startswith("objective.") for name in parts)
        local = [program.own for program in now.programs.values()]
        after = now.server.model()
        for name in parts:
            mean = torch.stack([one[name].double() for one in local]).mean(dim=0)
            wanted = mean.float() if average else before[name]
            torch.testing.assert_close(after[name], wanted, atol=1e-6, rtol=1e-5)
        changed[average] = [stage.exchange for stage in now.algorithm.stages(2)]
    assert changed[False][0] != changed[True][0]
    assert changed[False][1:] == changed[True][1:]


def larger_pairs() -> Any:
    from tests.algorithms.vlp_case import ToyPairs

    class Larger(ToyPairs):
        image_shape = (1, 32, 32)

    return Larger(5, 8, 8, 1.0)


# stage 1


def test_guidance_is_zero_at_the_first_step_of_a_round_and_not_later():
    program, stage, received, batch = ready("encoder", guidance=5.0)
    guided = program.loss(2, stage, received)
    plain = float(program.network.objective(program.network(*batch)).total)
    assert float(guided(program.network, batch)) == pytest.approx(plain, abs=1e-6)
    program.fit(2, stage, guided)
    later = float(program.network.objective(program.network(*batch)).total)
    assert float(guided(program.network, batch)) > later + 1e-5


@pytest.mark.parametrize("through", [False, True])
def test_guidance_is_its_definition_and_its_gradient_never_reaches_the_teacher(monkeypatch, through):
    made: list[Any] = []
    real = fedrgb_site.frozen_copy
    monkeypatch.setattr(fedrgb_site, "frozen_copy", lambda *a: made.append(real(*a)) or made[-1])
    program, stage, received, batch = ready("encoder", guidance=3.0, guide_grad_through_features=through)
    guided = program.loss(2, stage, received)
    program.fit(2, stage, guided)  # so that model and teacher differ
    network, teacher = program.network, made[-1]
    train_only(network, program.algorithm.names)

    def expected(detached: bool) -> torch.Tensor:
        features = network.encode(*batch)
        own = network.align(features)
        target = with_aligner(program, received).align(without_gradient(features) if detached else features)
        distance = sum((a - b).square().sum(1).mean() for a, b in zip(own.pair, target.pair, strict=True))
        return infonce(*own.pair, 0.2) + 3.0 * distance

    found = guided(network, batch)
    torch.testing.assert_close(found, expected(True))
    names = program.algorithm.encoder_names
    parameters = [dict(network.named_parameters())[name] for name in names]
    gradient = torch.autograd.grad(found, parameters)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected(not through), parameters))
    guided(network, batch).backward()
    for name, value in teacher.named_parameters():
        if name in program.algorithm.align_names:
            assert value.grad is None
            assert torch.equal(value, received[name])
    if through:
        other = torch.autograd.grad(expected(True), parameters)
        assert any(not torch.allclose(a, b) for a, b in zip(gradient, other, strict=True))


def test_contrastive_guidance_is_near_log_b_for_unrelated_aligners_and_runs_a_study():
    changes = {"guidance_loss": "contrastive", "guidance": 1.0}
    done = rounds(**changes).run()
    assert all(math.isfinite(value) for value in done.server.metrics()[2].values())
    made = study(algorithm={**RGB, **changes}, model={"name": "vision-language"})
    made = made.replace("data.name", "tests.algorithms.vision_language.test_fedrgb:larger_pairs")
    program = Rounds(made).programs[SITE]
    algorithm = program.algorithm
    stage = algorithm.stages(2)[0]
    write_parameters(program.network, algorithm.initial)
    guided = program.loss(2, stage, algorithm.initial)
    other = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in program.network.named_parameters():
            if name in algorithm.align_names:
                value.copy_(torch.randn(value.shape, generator=other) * 0.02)
        batch = program.batch(torch.arange(8))
        guide = float(
            guided(program.network, batch) - program.network.objective(program.network(*batch)).total
        )
    assert guide == pytest.approx(math.log(8), rel=0.3)


def test_a_site_sends_its_encoders_and_keeps_its_aligner():
    made, index = at("encoder")
    got = made.take(2, index)
    for site, summands in got.items():
        program = made.programs[site]
        assert not any("align" in name for name in summands)
        local = read_parameters(program.network)
        kept = aligner(program)
        assert set(kept) == set(program.algorithm.align_names)
        assert all(torch.equal(kept[name], local[name]) for name in kept)
    first, second = (aligner(made.programs[site]) for site in list(made.programs)[:2])
    assert not same(first, second)


# between the stages


def test_the_measured_loss_is_the_first_loss_of_the_second_stage_where_the_anchor_is_zero():
    program, stage, received, batch = ready("teacher", beta=7.0)
    loss = program.loss(2, stage, received)(program.network, batch)
    with torch.no_grad():
        teacher = with_aligner(program, received)(*batch)
        own = with_aligner(program, received, **aligner(program))(*batch)
    expected = float(infonce(*teacher.pair, 0.2) + infonce(*own.pair, 0.2))
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():
        measured = program.dro_loss(2, received)(batch)
    assert float(measured) == pytest.approx(expected, abs=1e-6)


def test_weights_of_the_sum_equal_the_plain_formula():
    made, index = at("weights", gamma=1.0)
    exchange, got = made.exchange(2, index), made.contributions(2, index)
    losses = [made.programs[site].weight.loss for site in sorted(made.programs)]
    assert len(set(losses)) == 5
    made.server.absorb(2, exchange, add_in_ring(exchange, got))
    rule = made.algorithm.rule
    assert rule.radius == 2.0
    made.take(2, index + 1)
    found = torch.tensor([made.weights[site] for site in sorted(made.programs)], dtype=torch.float64)
    torch.testing.assert_close(found, plain(rule, [0.2] * 5, losses), atol=1e-6, rtol=0)
    assert float(found.sum()) == pytest.approx(1.0)


def test_losses_are_capped_at_three_log_b_or_where_gamma_needs_it():
    assert rounds().algorithm.rule.cap == pytest.approx(3 * math.log(8))
    assert rounds(loss_batch_size=64).algorithm.rule.cap == pytest.approx(10.0)
    assert rounds(loss_batch_size=64, gamma=0.5).algorithm.rule.cap == pytest.approx(3 * math.log(64))
    assert rounds(loss_batch_size=64, gamma=4.0).algorithm.rule.cap == pytest.approx(2.5)
    assert rounds(loss_cap=4.5).algorithm.rule.cap == 4.5
    assert rounds(gamma=0.0).algorithm.rule.cap == pytest.approx(3 * math.log(8))
    with pytest.raises(ConfigError, match=r"algorithm\.gamma"):
        rounds(loss_cap=11.0)


def test_radius_zero_means_no_sum_of_losses_and_the_same_steps_everywhere():
    made = rounds(rho=0.0)
    assert [exchange.name for exchange in made.algorithm.exchanges(2)] == ["encoder", "teacher"]
    for program in made.programs.values():
        assert [program.step_scale(stage) for stage in made.algorithm.stages(2)] == [1.0, 1.0]


def test_only_the_second_stage_is_scaled_by_the_weight():
    made, index = at("teacher")
    made.take(2, index)
    stages = {stage.name: stage for stage in made.algorithm.stages(2)}
    scales = [program.step_scale(stages["teacher"]) for program in made.programs.values()]
    assert max(scales) > 1.01 > 0.99 > min(scales)
    assert {program.step_scale(stages["encoder"]) for program in made.programs.values()} == {1.0}
    assert sum(scales) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("changes", "keeps"), [({}, True), ({"rho": 0.0}, False), ({"teacher": "averaged"}, False)]
)
def test_only_robust_weights_are_kept_from_round_to_round(changes, keeps):
    made = rounds(
        **changes,
        **(
            dict.fromkeys(("teacher_steps", "loss_batches", "loss_batch_size"))
            if "teacher" in changes
            else {}
        ),
    )
    assert made.algorithm.options.keeps_state == keeps
    assert (made.algorithm.rule is not None) == keeps


# stage 2


def test_stage_two_moves_the_teacher_and_nothing_else_that_is_kept():
    made, index = at("teacher")
    before, kept = made.server.model(), {site: aligner(p) for site, p in made.programs.items()}
    made.take(2, index)
    after, algorithm = made.server.model(), made.algorithm
    assert all(torch.equal(before[name], after[name]) for name in algorithm.encoder_names)
    assert not any(torch.equal(before[name], after[name]) for name in algorithm.align_names)
    for site, program in made.programs.items():
        assert same(aligner(program), kept[site])
        distorted = read_parameters(program.network)  # thrown away, but it did move
        assert all(not torch.equal(distorted[name], before[name]) for name in algorithm.encoder_names)


def test_gradients_of_stage_two_reach_the_teacher_and_the_copy_and_nothing_frozen(monkeypatch):
    made: list[Any] = []
    real = fedrgb_site.frozen_copy
    monkeypatch.setattr(fedrgb_site, "frozen_copy", lambda *a: made.append(real(*a)) or made[-1])
    program, stage, received, batch = ready("teacher", beta=2.0)
    loss = program.loss(2, stage, received)
    program.fit(2, stage, loss)  # so that the anchor is away from zero
    network, local = program.network, made[-1]
    train_only(network, program.algorithm.names)
    assert not {id(p) for p in network.parameters()} & {id(p) for p in local.parameters()}

    own = with_aligner(program, received, **aligner(program))
    with torch.no_grad():  # the anchor as a constant: if it were not detached, gradients would differ
        anchor = network.align(own.encode(*batch))
    features = network.encode(*batch)
    z, task = network.align(features), own.align(features)
    expected = infonce(*z.pair, 0.2) + 2.0 * anchor_loss(z, anchor) + infonce(*task.pair, 0.2)
    parameters = list(network.parameters())
    wanted = torch.autograd.grad(expected, parameters)
    found = loss(network, batch)
    torch.testing.assert_close(found, expected)
    found.backward()
    torch.testing.assert_close([value.grad for value in parameters], list(wanted))
    assert all(bool(value.grad.abs().max() > 0) for value in parameters)
    assert all(value.grad is None for value in local.parameters())


def test_without_the_task_term_the_local_aligner_has_no_say_in_stage_two():
    program, stage, received, batch = ready("teacher", dro_task_term=False)
    loss = float(program.loss(2, stage, received)(program.network, batch))
    with torch.no_grad():
        teacher = with_aligner(program, received)(*batch)
    assert loss == pytest.approx(float(infonce(*teacher.pair, 0.2)), abs=1e-6)


def test_without_its_extra_terms_fedrgb_is_averaging_of_encoders_and_of_aligners_on_frozen_features():
    class FrozenFeatures(FedRgb):
        def round_stages(self, round_number: int):
            stages = super().round_stages(round_number)
            return [replace(s, trained=self.align_names) if s.name == "teacher" else s for s in stages]

    made = rounds(guidance=0.0, beta=0.0, dro_task_term=False, rho=0.0)
    algorithm = FrozenFeatures(made.algorithm.setting, made.algorithm.options)
    made.algorithm = algorithm
    made.server = algorithm.server()
    made.programs = {site: algorithm.site(site) for site in made.programs}
    made.round(1)
    start = made.server.model()
    made.round(2)

    def averaged(stage: str, model: dict[str, torch.Tensor], trained: tuple[str, ...], sent: tuple[str, ...]):
        total = {name: torch.zeros(()) for name in sent}
        for site, program in made.programs.items():
            network = algorithm.network(model)
            parameters = [p for name, p in network.named_parameters() if name in trained]
            optimiser = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.05)
            generator = torch_generator(5, "batches", site, 2, stage)
            for rows in contrastive_batches(24, batch_size=8, steps=3, generator=generator):
                optimiser.zero_grad()
                for p in network.parameters():
                    p.requires_grad_(any(p is q for q in parameters))
                infonce(*network(*program.batch(rows)).pair, 0.2).backward()
                optimiser.step()
            local = read_parameters(network)
            total = {name: total[name] + local[name] / 5 for name in sent}
        return {**model, **total}

    names, encoder, align = algorithm.names, algorithm.encoder_names, algorithm.align_names
    between = averaged("encoder", start, names, encoder)
    expected = averaged("teacher", between, align, align)
    for name, value in made.server.model().items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)


def test_averaged_teacher_without_guidance_is_federated_averaging_bit_by_bit():
    drop = dict.fromkeys(("teacher_steps", "loss_batches", "loss_batch_size"))
    ours = rounds(teacher="averaged", guidance=0.0, **drop).run()
    theirs = Rounds(study(algorithm=AVERAGING)).run()
    assert [exchange.name for exchange in ours.algorithm.exchanges(2)] == ["encoder"]
    assert same(ours.server.model(), theirs.server.model())
    assert ours.server.metrics() == theirs.server.metrics()
    guided = rounds(teacher="averaged", guidance=5.0, **drop).run()
    assert not same(guided.server.model(), theirs.server.model())
