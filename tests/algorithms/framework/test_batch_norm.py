"""Batch normalisation: pooled statistics are those of one batch of all records; frozen ones stay."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from secfed.algorithms.framework.batch_norm import FrozenBatchNorm, with_batch_norm
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.models.encoder_libraries import timm_layers
from secfed.errors import ConfigError
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import simulate as play

STUDY = """
study = { name = "norms", rounds = 2, seed = 3 }
algorithm = { name = "fedavg", batch_norm = "pooled", learning_rate = 0.05 }
model = { name = "tests.algorithms.framework.test_batch_norm:network" }
data = { name = "digits", sites = 3 }
protection = { name = "masked" }
"""
PRIVACY = {"unit": "record", "epsilon": 20.0, "delta": 1e-4, "accountant": "rdp"}


class Branches(nn.Module):
    """Layers are run in another order than they are declared in, and two of them beside each other."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.BatchNorm1d(8)
        self.one, self.other = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3)
        self.beside = nn.BatchNorm2d(4)
        self.first = nn.BatchNorm2d(4, affine=False)
        self.down, self.head = nn.Linear(4 * 36, 8), nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.first(self.one(x)) + self.beside(self.other(x)).relu()
        found: torch.Tensor = self.head(self.last(self.down(seen.flatten(1))).relu())
        return found


def network(shape: tuple[int, ...], classes: int, repeated: bool = False, bare: bool = False) -> nn.Module:
    if repeated:
        norm = nn.BatchNorm1d(4)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 4), norm, nn.Linear(4, 4), norm, nn.Linear(4, classes)
        )
    if bare:
        keeps = nn.BatchNorm1d(4, track_running_stats=False)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), keeps, nn.Linear(4, classes))
    assert shape == (1, 8, 8)
    return Branches(classes)


def changed(**changes: Any) -> Study:
    study = Study.parse(STUDY)
    for key, value in changes.items():
        study = study.replace(key.replace("__", "."), value)
    return study


def all_records(study: Study) -> torch.Tensor:
    algorithm: Any = build(study)
    return torch.cat([algorithm.site_data(site).train_x for site in algorithm.setting.sites])


@pytest.mark.parametrize("protection", ["masked", "plain"])
def test_pooled_statistics_are_those_of_one_forward_pass_over_all_records(protection: str) -> None:
    study = changed(protection__name=protection)
    model = _final(study).double()
    records = all_records(study).double()
    model.eval()
    with torch.no_grad():
        evaluated = model(records)
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0  # what it keeps is this batch's
    kept = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    with torch.no_grad():
        in_one_batch = model(records)
    assert torch.allclose(evaluated, in_one_batch, atol=1e-6)
    for name, value in model.named_buffers():
        if name in kept:
            places = len(records) * (36 if kept[name].shape == (4,) else 1)
            share = (places - 1) / places if "var" in name else 1.0  # PyTorch keeps the unbiased one
            assert torch.allclose(kept[name], share * value, atol=1e-6, rtol=1e-6), name


def _final(study: Study) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        simulate(study, out=Path(folder))
        state = load_file(Path(folder) / "model.safetensors")
    algorithm: Any = build(study)
    model: nn.Module = algorithm.setting.model()
    write_parameters(model, state)
    return model


def test_statistics_are_computed_as_often_as_the_study_says_and_always_at_the_end() -> None:
    for every, counts in ((1, (4, 4, 4)), (2, (4, 1, 4)), (0, (1, 1, 4))):
        algorithm = build(changed(algorithm__statistics_every=every))
        assert tuple(len(algorithm.exchanges(number)) for number in (1, 2, 3)) == counts
    names = [one.name for one in algorithm.exchanges(3)]
    assert names == ["norm-001", "norm-002", "norm-003", "evaluate"]


def test_frozen_statistics_stay_and_no_record_changes_anothers_output() -> None:
    algorithm: Any = build(changed(algorithm__batch_norm="frozen"))
    model: nn.Module = algorithm.setting.model()
    assert sum(isinstance(layer, FrozenBatchNorm) for layer in model.modules()) == 3
    before = read_parameters(model)
    records = all_records(changed())[:6]
    model.train()
    assert torch.allclose(model(records)[:2], model(records[:2]), atol=1e-6)
    server = play(changed(algorithm__batch_norm="frozen"))
    after = server.model()
    for name, value in before.items():
        assert torch.equal(after[name], value) == ("running" in name), name


def test_frozen_gives_what_evaluation_mode_gives() -> None:
    plain = network((1, 8, 8), 10)
    for name, value in plain.named_buffers():
        if "running" in name:
            value.uniform_(0.5, 1.5)
    x = torch.randn(5, 1, 8, 8)
    expected = plain.eval()(x)
    algorithm: Any = build(changed())
    frozen = with_batch_norm(replace(algorithm.setting, model=lambda: plain), "frozen").model().train()
    assert torch.allclose(frozen(x), expected, atol=1e-5)


@pytest.mark.parametrize("engine", ["hooks", "loop"])
def test_frozen_trains_under_privacy(engine: str) -> None:
    study = changed(algorithm__batch_norm="frozen", algorithm__weighting="equal", study__rounds=1)
    report = simulate(study.replace("privacy", {**PRIVACY, "engine": engine}))
    assert report.rounds[0].aborted is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm__batch_norm": None}, r"batch normalisation.*batch_norm = \"pooled\""),
        ({"privacy": PRIVACY, "algorithm__weighting": "equal"}, r"no epsilon.*batch_norm = \"frozen\""),
        ({"algorithm__batch_norm": "local"}, "fedbn"),
        ({"model__repeated": True}, "runs layer '2' more than once"),
        ({"model__bare": True}, "layer '2' keeps no statistics"),
        ({"model": {"name": "mlp"}}, "no effect on a model without"),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(changed(**changes))


def test_fedbn_keeps_every_layer_of_batch_normalisation_by_one_key() -> None:
    study = changed(algorithm={"name": "fedbn", "batch_norm": "local"})
    algorithm: Any = build(study)
    assert set(algorithm.site_memory()) >= {"first.running_mean", "beside.weight", "last.running_var"}
    assert not any("first" in name or "beside" in name or "last" in name for name in algorithm.trained)
    with pytest.raises(ConfigError, match="local_layers: is missing"):
        changed(algorithm={"name": "fedbn"})


def test_a_cohort_that_changes_is_never_asked_for_statistics_of_records() -> None:
    algorithm = build(
        changed(data__sites=6, protection__sites_per_round=3, algorithm__weighting="equal", study__rounds=4)
    )
    sites = tuple(f"hospital-{number}" for number in range(1, 7))
    asked = {
        tuple(algorithm.members(number, one, sites))
        for number in range(1, 6)
        for one in algorithm.exchanges(number)
        if one.name.startswith("norm-")
    }
    assert len(asked) == 1


def timm_resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    timm = pytest.importorskip("timm")
    model: nn.Module = timm.create_model("resnet18", num_classes=classes, in_chans=shape[0])
    return model


@pytest.mark.slow
def test_a_resnet_of_timm_trains_under_masks_with_pooled_statistics() -> None:
    timm_layers()  # which mends a torchvision that does not fit
    study = changed(
        model={"name": "tests.algorithms.framework.test_batch_norm:timm_resnet"},
        algorithm__statistics_every=0,
    )
    report = simulate(study)
    assert report.final["accuracy"] > 0.5
    model, records = _final(study).double(), all_records(study).double()
    with torch.no_grad():
        evaluated, in_one_batch = model.eval()(records), model.train()(records)
    assert torch.allclose(evaluated, in_one_batch, atol=1e-4)
