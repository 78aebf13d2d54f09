"""One stage of local training: what moves and what does not, step scales, precision, batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.randomness import torch_generator
from secfed.algorithms.vision_language.stage import (
    begin_stage,
    contrastive_batches,
    frozen_copy,
    rising_rate,
    run_stage,
    train_only,
)
from secfed.dp.training.step import StepSettings
from secfed.errors import ConfigError, RangeError
from tests.algorithms.loop import same
from tests.algorithms.vlp_case import Toy, pairs

CPU = torch.device("cpu")


def toy() -> Toy:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Toy((1, 4, 4), pairs().vocabulary)


def objective(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return model.objective(model(*batch)).total


def batches(steps: int, seed: int = 0):
    train = pairs().site("hospital-1").train
    rows = contrastive_batches(
        len(train), batch_size=8, steps=steps, generator=torch_generator(seed, "batches")
    )
    return [(train.images[part], train.tokens[part]) for part in rows]


def train(
    model: Toy,
    *,
    trained=None,
    steps=5,
    loss=objective,
    seed=0,
    precision="float32",
    prepare=None,
    learning_rate=0.02,
    **options,
) -> float:
    names = [name for name, _ in model.named_parameters()] if trained is None else trained
    optimiser = begin_stage(model, names, learning_rate=learning_rate, **options)
    if prepare is not None:
        prepare(optimiser)
    return run_stage(
        model, optimiser, loss, batches(steps, seed), device=CPU, settings=StepSettings(precision)
    )


def moved(before, after) -> torch.Tensor:
    return torch.cat([(after[name] - before[name]).reshape(-1) for name in before])


class TestWhatMoves:
    def test_parameters_that_are_not_trained_keep_their_bits(self):
        model = toy()
        before = read_parameters(model)
        train(model, trained=model.align_names, weight_decay=0.5)
        after = read_parameters(model)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == set(model.align_names)

    def test_frozen_parts_are_in_evaluation_mode_and_get_no_gradient(self):
        model = toy()
        seen = []

        def loss(trained: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            features = trained.encode(*batch)
            seen.append((features.image.requires_grad, features.text.requires_grad))
            seen.append(tuple(part.training for part in (trained.image_encoder, trained.image_align)))
            return objective(trained, batch)

        train(model, trained=model.align_names, steps=1, loss=loss)
        assert seen == [(False, False), (False, True)]

    def test_an_activation_follows_the_part_that_it_is_in(self):
        model = nn.ModuleDict(
            {
                "frozen": nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
                "trained": nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
            }
        )
        train_only(model, ["trained.0.weight"])
        assert [model[part][1].training for part in ("frozen", "trained")] == [False, True]

    def test_afterwards_the_model_is_at_rest(self):
        model = toy()
        train(model)
        assert not any(module.training for module in model.modules())
        assert all(p.grad is None and not p.requires_grad for p in model.parameters())

    def test_a_name_that_the_model_does_not_have_is_refused(self):
        with pytest.raises(RangeError, match="text_head"):
            train(toy(), trained=["text_head.weight"])

    def test_a_frozen_copy_is_apart(self):
        model = toy()
        copy = frozen_copy(model)
        before = read_parameters(copy)
        train(model)
        assert same(read_parameters(copy), before)
        assert not any(parameter.requires_grad for parameter in copy.parameters())

    def test_a_model_that_holds_a_result_of_its_weights_cannot_be_copied(self):
        model = toy()
        model.doubled = next(model.parameters()) * 2
        with pytest.raises(ConfigError, match=r"model\.name: .* cannot be copied"):
            frozen_copy(model)


class TestSteps:
    def test_every_stage_begins_with_a_fresh_optimiser(self):
        model, other = toy(), toy()
        train(model, seed=0)
        other.load_state_dict(model.state_dict())
        train(model, seed=1)
        train(other, seed=1)
        assert same(read_parameters(model), read_parameters(other))

    def test_loss_is_the_mean_over_the_steps(self):
        values = []

        def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            values.append(objective(model, batch))
            return values[-1]

        assert train(toy(), loss=loss) == pytest.approx(sum(float(v.detach()) for v in values) / 5)
        assert math.isnan(train(toy(), steps=0))

    @pytest.mark.parametrize("name", ["adamw", "sgd"])
    def test_optimisers_hold_what_is_trained(self, name):
        model = toy()
        optimiser = begin_stage(model, model.align_names, optimizer=name, learning_rate=0.1, weight_decay=0.0)
        held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
        named = dict(model.named_parameters())
        assert held == {id(named[part]) for part in model.align_names}


class TestPrecision:
    @pytest.mark.parametrize("precision", ["bfloat16", "float16"])
    def test_reduced_precision_trains_float32_parameters_to_nearly_the_same_place(self, precision):
        exact, reduced = toy(), toy()
        before = read_parameters(exact)
        train(exact, optimizer="sgd", learning_rate=0.1)
        dtypes = []

        def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            dtypes.append(model.image_encoder(batch[0].flatten(1)).dtype)
            return objective(model, batch)

        train(reduced, optimizer="sgd", learning_rate=0.1, precision=precision, loss=loss)
        assert set(dtypes) == {getattr(torch, precision)}
        assert {parameter.dtype for parameter in reduced.parameters()} == {torch.float32}
        wanted = moved(before, read_parameters(exact))
        difference = moved(before, read_parameters(reduced)) - wanted
        assert difference.norm() / wanted.norm() < 0.05

    def test_step_hooks_see_gradients_of_their_true_size_in_float16(self):
        norms = {}
        for precision in ("float32", "float16"):
            found = norms[precision] = []

            def watch(optimiser: torch.optim.Optimizer, found: list[float] = found) -> None:
                def note(stepped: torch.optim.Optimizer, *_: object) -> None:
                    parts = [p.grad.norm() for group in stepped.param_groups for p in group["params"]]
                    found.append(float(torch.stack(parts).norm()))

                optimiser.register_step_pre_hook(note)

            train(toy(), steps=1, precision=precision, prepare=watch)
        assert norms["float16"] == pytest.approx(norms["float32"], rel=0.05)


class TestBatches:
    def rows(self, count: int, size: int, steps: int | None, seed: int = 0) -> list[torch.Tensor]:
        generator = torch_generator(seed, "batches")
        return list(contrastive_batches(count, batch_size=size, steps=steps, generator=generator))

    def test_a_pass_takes_no_record_twice(self):
        found = self.rows(20, 6, 9)
        for start in range(0, 9, 3):
            epoch = torch.cat(found[start : start + 3]).tolist()
            assert len(set(epoch)) == 18
        assert not torch.equal(found[0], found[3])

    def test_all_batches_have_one_size(self):
        assert {len(part) for part in self.rows(20, 6, 7)} == {6}

    def test_a_site_with_fewer_records_takes_all_of_them(self):
        assert [sorted(part.tolist()) for part in self.rows(3, 8, 2)] == [[0, 1, 2]] * 2

    def test_they_depend_on_the_generator_only(self):
        first, again, other = (self.rows(20, 6, 5, seed) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))

    def test_without_a_number_of_steps_there_is_no_end(self):
        found = contrastive_batches(4, batch_size=2, steps=None, generator=torch_generator(0, "b"))
        assert len([next(found) for _ in range(11)]) == 11


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_rising_learning_rate_reaches_its_value_and_stays_there(optimizer):
    model = nn.Linear(3, 2, bias=False)
    optimiser = begin_stage(model, ["weight"], optimizer=optimizer, learning_rate=0.1, weight_decay=0.0)
    rising_rate(optimiser, 4)
    rates = []
    for _ in range(6):
        model.weight.grad = torch.ones_like(model.weight)
        before = model.weight.detach().clone()
        optimiser.step()
        rates.append(optimiser.param_groups[0]["lr"])
        moved = float((before - model.weight.detach()).mean())
        assert moved == pytest.approx(rates[-1], rel=1e-4)  # both take steps of the rate's size here
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
