"""Models and layers: what every engine computes exactly, and what is refused with a remedy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from secfed.dp.training.engine_check import checked_engine
from secfed.dp.training.engines import ClippedSum, EngineName, LoopEngine, attached
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, clipped, mechanism, mlp, run, sgd, table


class Patches(nn.Module):
    """A small vision transformer that owns its class token and position table, as timm's does."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.mix, self.norm, self.drop = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        cells = self.cut(images).flatten(2).transpose(1, 2)
        cells = torch.cat([self.token.expand(len(images), -1, -1), cells], dim=1) + self.place
        weights = torch.softmax(cells @ cells.transpose(1, 2) / 8**0.5, dim=-1)
        return self.head(self.drop(self.norm(self.mix(weights @ cells)))[:, 0])


class Affine(nn.Module):
    """Owns a matrix directly, so hooks recompute it, with all that is below, for every record."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 3))
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(inputs @ self.matrix))


class Words(nn.Module):
    """Embeddings with a position table; ``broadcast`` looks positions up once for the whole batch."""

    def __init__(self, *, broadcast: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Embedding(5, 6)
        self.head, self.broadcast = nn.Linear(6, 3), broadcast

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(5).expand(1 if self.broadcast else len(ids), -1).contiguous()
        return self.head((self.words(ids) + self.places(places)).mean(dim=1))


class Twice(nn.Module):
    """Runs one encoder on two views."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 4), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.encoder(inputs), self.encoder(inputs.flip(1))], dim=1))


class Wasted(nn.Module):
    """Opacus issue 461: a pass whose result is thrown away leaves its activations behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.layer(torch.zeros_like(inputs))
        return self.layer(inputs)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler = nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


class RunningMean(nn.Module):
    """Remembers a statistic of its inputs without telling anyone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(inputs.mean(dim=0).detach(), alpha=0.1)
        return self.layer(inputs - self.mean)


class Mixing(nn.Module):
    """Centres a batch: couples records without any layer a guard could know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        return self.second(hidden - hidden.mean(dim=0, keepdim=True))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].weight = model[0].weight
    return model


def images(records: int = 6) -> Batch:
    torch.manual_seed(3)
    return torch.randn(records, 1, 8, 8), torch.arange(records) % 3


def sentences(records: int = 6, padded: int = 0) -> Batch:
    """Of five words, of which the last so many are padding."""
    torch.manual_seed(3)
    words = torch.randint(0, 11, (records, 5))
    words[:, 5 - padded :] = 0
    return words, torch.arange(records) % 3


def padded() -> nn.Module:
    model = Words(broadcast=False)
    model.words = nn.Embedding(11, 6, padding_idx=0)
    return model


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (mlp, table(6)),
        (convolutions, images()),
        (Patches, images()),
        (lambda: Words(broadcast=False), sentences()),
        (padded, sentences(padded=2)),
    ],
    ids=["mlp", "cnn", "vit-like", "bert-like", "padded"],
)
def test_clipped_sums_equal_the_loop(engine: EngineName, make, batch: Batch) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = make()
    wanted = clipped("loop", model, CROSS_ENTROPY, batch)
    found = clipped(engine, model, CROSS_ENTROPY, batch)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    if make is padded:  # no engine trains the row of the padding
        assert torch.equal(found[:6], torch.zeros(6, dtype=torch.float64))


def test_frozen_parts_get_no_gradient_and_need_none() -> None:
    model = Patches(dropout=0.2)
    model.token.requires_grad_(False)
    model.place.requires_grad_(False)
    # With its own parameters frozen the root is no longer recomputed, so dropout is welcome.
    private = PrivateTraining(mechanism(), engine="hooks")
    frozen = model.place.detach().clone()
    private.run(model, sgd(model), CROSS_ENTROPY, images(), steps=2)
    assert torch.equal(model.place, frozen)


@pytest.mark.parametrize("engine", ["loop", "hooks", "ghost"])
def test_batch_statistics_are_refused_everywhere(engine: EngineName) -> None:
    norm = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"layer '1' \(BatchNorm1d\) mixes the records"):
        run(norm, table(6), engine)
    running = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True))
    with pytest.raises(ConfigError, match="InstanceNorm2d"):
        run(running, images(), engine)
    with pytest.raises(ConfigError, match="changed buffer 'mean'"):
        run(RunningMean(), table(6), engine)


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
@pytest.mark.parametrize(
    ("make", "batch", "why"),
    [
        (Twice, table(6), "layer 'encoder' ran a second time"),
        (Wasted, table(6), "layer 'layer' ran a second time"),
        (Unused, table(6), "layer 'pooler' ran not once"),
        (Mixing, table(6), "and the plain loop disagree"),
        (tied, table(6), "layers '0' and '1' share a parameter"),
        (lambda: Affine(dropout=0.1), table(6), "contains dropout"),
        (lambda: Words(broadcast=True), sentences(), "'places.weight' has no gradient for each of the"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
            table(6),
            r"layer '1' \(ReLU\) works in place",
        ),
        (lambda: nn.TransformerEncoderLayer(6, 2, 8), table(6), "MultiheadAttention"),
        (lambda: nn.Sequential(nn.LSTM(6, 3)), table(6), "LSTM"),
    ],
)
def test_hooks_refuse_what_they_would_get_wrong(  # type: ignore[no-untyped-def]
    make, batch: Batch, why: str, engine: EngineName
) -> None:
    model = make()
    before = [value.detach().clone() for value in model.parameters()]
    with pytest.raises(ConfigError, match=why) as error:
        run(model, batch, engine)
    assert error.value.remedy
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (Twice, table(6)),
        (Wasted, table(6)),
        (tied, table(6)),
        (lambda: Patches(0.1), images()),
        (lambda: Words(broadcast=True), sentences()),
        (Unused, table(6)),
    ],
)
def test_the_loop_computes_all_of_these(make, batch: Batch) -> None:  # type: ignore[no-untyped-def]
    run(make(), batch, "loop")


def test_an_optimiser_over_other_parameters_and_a_model_with_nothing_to_train_are_refused() -> None:
    model, other = mlp(), mlp()
    with pytest.raises(ConfigError, match="not in the model"):
        run(model, table(6), "loop", torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0))
    with pytest.raises(ConfigError, match="no trainable parameters"):
        run(mlp().requires_grad_(False), table(6), "loop", sgd(mlp()))


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
def test_a_loss_that_is_not_one_per_record_is_refused(engine: EngineName) -> None:
    model = mlp()
    mean = DeclaredLoss("mean", True, lambda net, batch: CROSS_ENTROPY(net, batch).mean())
    with pytest.raises(ConfigError, match=r"loss 'mean' gave shape \(\) for 3 records"):
        PrivateTraining(mechanism(rate=1.0), engine=engine).run(model, sgd(model), mean, table(6), steps=1)


def test_the_engine_check_passes_for_dropout_and_restores_it() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    with attached("hooks", model, CROSS_ENTROPY) as engine:
        checked_engine("hooks", engine, model, CROSS_ENTROPY, table(6))
    assert model[1].p == 0.5


def test_an_engine_that_gives_nan_disagrees_with_the_loop() -> None:
    class Broken(LoopEngine):
        def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
            next(iter(into.sums.values())).fill_(torch.nan)

    model = mlp()
    with pytest.raises(ConfigError, match="disagree"):
        checked_engine("ghost", Broken(model, CROSS_ENTROPY), model, CROSS_ENTROPY, table(6))


@pytest.mark.parametrize("engine", ["loop", "hooks", "ghost"])
def test_an_embedding_that_shortens_what_is_looked_up_is_refused(engine: EngineName) -> None:
    """It writes to its weights in the forward pass: which records were drawn would leave without noise."""
    model = Words(broadcast=False)
    model.words = nn.Embedding(11, 6, max_norm=1.0)
    with pytest.raises(ConfigError, match=r"layer 'words' \(Embedding\) shortens"):
        run(model, sentences(), engine)
