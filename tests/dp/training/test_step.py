"""How a step is carried out: nothing of it changes what is learnt, but for last digits."""

from __future__ import annotations

import copy
import math
import shutil
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.models.transfer_options import TransferFacts, TransferTransformerOptions
from secfed.algorithms.models.transfer_transformer import build
from secfed.dp.training import step
from secfed.dp.training.plain_loop import Training, make_loader, make_optimiser, train_locally
from secfed.dp.training.step import Steps, StepSettings
from secfed.errors import ConfigError
from secfed.study.build import build as build_study
from secfed.study.study import Study
from tests.algorithms import fedcola_case, vlp_case
from tests.secfed.privacy_case import study as private_study

CPU = torch.device("cpu")


def _trained(settings: StepSettings) -> tuple[nn.Module, float]:
    with seeded(3):
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        inputs, labels = torch.randn(70, 6), torch.randint(3, (70,))
    optimiser = make_optimiser(model, "sgd", learning_rate=0.1, momentum=0.0, weight_decay=0.0)
    loader = make_loader(inputs, labels, batch_size=32, generator=torch.Generator().manual_seed(1))
    training = Training(model, optimiser, nn.functional.cross_entropy, loader)
    return model, train_locally(training, epochs=3, device=CPU, settings=settings)


def _distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_the_mean_loss_counts_records_and_leaves_out_empty_batches() -> None:
    weight = nn.Parameter(torch.ones(1))
    steps = Steps(torch.optim.SGD([weight], lr=0.0), lambda x: (weight * x).mean(), CPU, StepSettings())
    assert math.isnan(steps.mean())
    assert steps.mean(empty=0.0) == 0.0
    for values in ([2.0, 4.0], [], [9.0]):
        steps.take((torch.tensor(values),), len(values))
    assert steps.mean() == 5.0
    assert weight.isfinite().all() or weight.isnan().all()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_reduced_precision_stays_close(precision: Any) -> None:
    (exact, loss), (reduced, other) = _trained(StepSettings()), _trained(StepSettings(precision))
    assert 0 < _distance(exact, reduced) < 5e-3
    assert other == pytest.approx(loss, rel=1e-2)
    assert {value.dtype for value in reduced.parameters()} == {torch.float32}


def test_compiled_is_the_loss_of_the_step_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_(loss: Any) -> Any:
        compiled.append(loss)
        return loss

    monkeypatch.setattr(step.torch, "compile", compile_)
    (plain, _), (other, _) = _trained(StepSettings()), _trained(StepSettings(compile=True))
    assert len(compiled) == 1
    assert _distance(plain, other) == 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the processor with g++")
def test_compiled_steps_stay_close() -> None:
    (plain, _), (other, _) = _trained(StepSettings()), _trained(StepSettings(compile=True))
    assert _distance(plain, other) < 1e-5


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_activations_that_are_computed_again_give_the_same_gradients(drop_path: float) -> None:
    facts = TransferFacts((1, 12, 12), 6, 20, 3, 2)
    options = TransferTransformerOptions(name="t", width=16, depth=3, heads=2, drop_path=drop_path)
    with seeded(4):
        kept = build("image", facts, options).train()
        images = torch.randn(5, 1, 12, 12)
    again = copy.deepcopy(kept)
    again.tower._again = True
    for model in (kept, again):
        with seeded(9):
            model(images).square().sum().backward()
    pairs = list(zip(kept.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs if one.grad is not None)
    assert sum(one.grad is not None for one, _ in pairs) > 10


def test_the_keys_reach_the_model_and_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fedcola_case.tiny(model__gradient_checkpointing=True)
    assert made.plan.network("image", made.initial["image"], CPU).tower._again
    seen = set()
    monkeypatch.setattr(Steps, "take", lambda self, _batch, _count=1: seen.add(self._precision))
    study = vlp_case.study(algorithm={**vlp_case.AVERAGING, "precision": "bfloat16"})
    for number, chosen in enumerate((study, fedcola_case.study(algorithm__precision="float16")), start=1):
        algorithm = build_study(chosen)
        site = algorithm.site(algorithm.setting.data.sites[0])
        exchange = algorithm.exchanges(1)[0]
        site.contribute(1, exchange, algorithm.server().broadcast(1, exchange))
        assert len(seen) == number


@pytest.mark.parametrize(
    ("study", "key", "value", "said"),
    [
        (private_study("record"), "precision", "bfloat16", "too coarse"),
        (private_study("record"), "precision", "float16", "losses to be scaled"),
        (private_study("record"), "compile", True, "not compiled"),
        (vlp_case.study(privacy=vars(private_study("group", privacy="group_size = 4"))["privacy"].model_dump(
            exclude_unset=True)), "compile", True, "not compiled"),
    ],
)  # fmt: skip
def test_what_private_steps_are_not_sound_with_is_refused(
    study: Study, key: str, value: object, said: str
) -> None:
    build_study(study)
    with pytest.raises(ConfigError, match=rf"algorithm\.{key}: .*{said}"):
        build_study(study.replace(f"algorithm.{key}", value))


def test_noise_for_whole_sites_leaves_steps_as_they_are() -> None:
    study = private_study("site", epsilon=50.0)
    build_study(study.replace("algorithm.precision", "float16").replace("algorithm.compile", True))


def test_studies_without_the_later_keys_keep_their_digest() -> None:
    study = private_study()
    assert not {"precision", "compile"} & set(study.tables()["algorithm"])
    for key, value in (("precision", "float32"), ("compile", False)):
        assert study.replace(f"algorithm.{key}", value).digest(operational=True) == study.digest()
    compiled, reduced = (
        study.replace(f"algorithm.{key}", value)
        for key, value in (("compile", True), ("precision", "bfloat16"))
    )
    assert compiled.digest() == study.digest() != compiled.digest(operational=True)
    assert reduced.digest() != study.digest()
    assert "precision" in vlp_case.study().tables()["algorithm"]  # there from the beginning
