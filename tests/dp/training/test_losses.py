"""Declarations of losses: what is believed, what is checked numerically, what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from secfed.dp.training.losses import DeclaredLoss, check_decomposes, require_decomposes, supervised
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, INFO_NCE, LYING_INFO_NCE, mlp, pairs, table


def public_negatives(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """R2 of the specification: each record against its own partner and public negatives."""
    torch.manual_seed(9)
    public = nn.functional.normalize(model(torch.randn(16, 6)), dim=1).detach()
    images, texts = (nn.functional.normalize(model(part), dim=1) for part in batch)
    own = (images * texts).sum(dim=1, keepdim=True)
    logits = torch.cat([own, images @ public.T], dim=1) / 0.2
    return nn.functional.cross_entropy(logits, torch.zeros(len(images), dtype=torch.long), reduction="none")


def nt_xent(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    views = nn.functional.normalize(torch.cat([model(part) for part in batch]), dim=1)
    count = len(views)
    similar = (views @ views.T / 0.5).masked_fill(torch.eye(count, dtype=torch.bool), -1e9)
    partner = torch.arange(count).roll(count // 2)
    both = nn.functional.cross_entropy(similar, partner, reduction="none")
    return both[: count // 2] + both[count // 2 :]


def prototypes(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    features = model(batch[0])
    return ((features - features.mean(dim=0)) ** 2).sum(dim=1)


@pytest.mark.parametrize(
    ("function", "batch", "decomposes"),
    [
        (CROSS_ENTROPY.function, table(6), True),
        (public_negatives, pairs(6), True),
        (LYING_INFO_NCE.function, pairs(6), False),
        (nt_xent, pairs(6), False),
        (prototypes, pairs(6), False),
        (lambda model, batch: INFO_NCE(model, batch), pairs(6), False),  # no loss per record at all
    ],
)
def test_declarations_are_checked_numerically(function, batch, decomposes: bool) -> None:  # type: ignore[no-untyped-def]
    """Invariant 3: no record's loss or gradient moves (1e-5) when another record changes."""
    assert check_decomposes(DeclaredLoss("any", True, function), mlp(), batch) is decomposes


def test_batch_normalisation_couples_any_loss() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    assert not check_decomposes(CROSS_ENTROPY, model, table(6))
    layer = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)).train()
    assert check_decomposes(CROSS_ENTROPY, layer, table(6))


def test_nan_is_no_sign_that_a_loss_decomposes_and_one_record_is_none() -> None:
    def coupled(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        scores = model(batch[0]).sum(dim=1)
        return torch.log(scores.mean() - scores - 1e9)

    assert not check_decomposes(DeclaredLoss("any", True, coupled), mlp(), table(6))
    with pytest.raises(ConfigError, match="two records"):
        check_decomposes(CROSS_ENTROPY, mlp(), table(1))


def test_the_guard_names_the_loss_and_the_sound_choices() -> None:
    with pytest.raises(ConfigError, match="InfoNCE") as error:
        require_decomposes(INFO_NCE)
    assert 'privacy.unit = "group"' in error.value.remedy
    assert 'privacy.unit = "site"' in error.value.remedy
    assert "public" in error.value.remedy


@pytest.mark.parametrize(
    "criterion",
    [
        nn.functional.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.NLLLoss(),
    ],
)
def test_what_pytorch_ships_is_known_to_decompose(criterion) -> None:  # type: ignore[no-untyped-def]
    loss, (inputs, labels) = supervised(criterion), table(5)
    values = loss(mlp(), (inputs, labels))
    assert loss.decomposes
    assert values.shape == (5,)
    assert torch.allclose(values.mean(), criterion(mlp()(inputs), labels), rtol=1e-5)


def test_class_weights_do_not_couple_records() -> None:
    """PyTorch's weighted mean divides by the batch's weights, which couples; per record it is not used."""
    loss = supervised(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 9.0])))
    assert check_decomposes(loss, mlp(), table(6))


def test_dense_predictions_give_one_loss_per_record() -> None:
    model = nn.Conv2d(1, 3, 3, padding=1)
    batch = (torch.randn(4, 1, 5, 5), torch.randint(0, 3, (4, 5, 5)))
    assert supervised(nn.functional.cross_entropy)(model, batch).shape == (4,)


def test_an_own_criterion_must_declare_itself() -> None:
    def focal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (nn.functional.cross_entropy(output, target) ** 2).mean()

    with pytest.raises(ConfigError, match="'focal' does not declare"):
        supervised(focal)
    focal.decomposes = True  # type: ignore[attr-defined]
    loss = supervised(focal)
    assert (loss.name, loss.decomposes) == ("focal", True)
    assert check_decomposes(loss, mlp(), table(5))  # evaluated one record at a time, so the square is too
    focal.decomposes = False  # type: ignore[attr-defined]
    coupled = supervised(focal)
    assert coupled(mlp(), table(5)).shape == ()
    assert not coupled.decomposes


def test_an_own_criterion_may_be_any_callable() -> None:
    @dataclass  # compares by value, so it has no hash
    class Scaled:
        factor: float = 2.0
        decomposes: bool = True

        def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self.factor * nn.functional.cross_entropy(output, target)

    loss = supervised(Scaled())
    assert (loss.name, loss.decomposes) == ("Scaled", True)
    assert torch.allclose(loss(mlp(), table(5)), 2.0 * CROSS_ENTROPY(mlp(), table(5)))
