"""Small models, losses and data for the tests of private training."""

from __future__ import annotations

import threading

import torch
from torch import nn

from secfed.dp.accounting.unit import Adjacency, GroupPartition, PrivacyUnit, Unit
from secfed.dp.training.engines import ClippedSum, EngineName, attached
from secfed.dp.training.losses import Batch, DeclaredLoss, supervised
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.private_loop import PrivateTraining

RECORD = PrivacyUnit(Unit.RECORD, Adjacency.ADD_OR_REMOVE_RECORD)
GROUP = PrivacyUnit(Unit.GROUP, Adjacency.REPLACE_RECORD)
ENGINES: list[EngineName] = ["loop", "hooks", "ghost"]
CROSS_ENTROPY = supervised(nn.functional.cross_entropy)


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def table(records: int = 40, seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    inputs = torch.randn(records, 6)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def sgd(model: nn.Module, rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def mechanism(
    unit: PrivacyUnit = RECORD, *, clip: float = 1.0, sigma: float = 1.0, rate: float = 0.5
) -> Mechanism:
    return Mechanism(unit, clip, sigma, rate)


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters() if value.requires_grad])


def no_thread_is_left() -> bool:
    """Whether every pool of threads has ended."""
    return not any(one.name.startswith("ThreadPoolExecutor") for one in threading.enumerate())


def plain_gradient(model: nn.Module, loss: DeclaredLoss, batch: Batch) -> torch.Tensor:
    values = [value for value in model.parameters() if value.requires_grad]
    found = torch.autograd.grad(loss(model, batch).mean(), values)
    return torch.cat([part.reshape(-1) for part in found])


def info_nce(model: nn.Module, batch: Batch, temperature: float = 0.07) -> torch.Tensor:
    """Row losses of InfoNCE over (images, texts): every row sees every record."""
    images, texts = (nn.functional.normalize(model(part), dim=1) for part in batch)
    return nn.functional.cross_entropy(
        images @ texts.T / temperature, torch.arange(len(images)), reduction="none"
    )


INFO_NCE = DeclaredLoss("InfoNCE", False, lambda model, batch: info_nce(model, batch).mean())
LYING_INFO_NCE = DeclaredLoss("InfoNCE", True, info_nce)


def one_tower(model: nn.Module, batch: Batch) -> torch.Tensor:
    """InfoNCE against fixed embeddings of the partners: one forward pass, and still coupled."""
    similar = nn.functional.normalize(model(batch[0]), dim=1) @ batch[1].T
    return nn.functional.cross_entropy(similar, torch.arange(len(batch[0])), reduction="none")


LYING_ONE_TOWER = DeclaredLoss("InfoNCE", True, one_tower)


def pairs(records: int = 32, seed: int = 2) -> Batch:
    torch.manual_seed(seed)
    images = torch.randn(records, 6)
    return images, images + 0.1 * torch.randn(records, 6)


def partition(records: int = 32, size: int = 4) -> GroupPartition:
    return GroupPartition.of(records, size, seed=0)


def clipped(
    engine: EngineName, model: nn.Module, loss: DeclaredLoss, batch: Batch, clip: float = 0.3
) -> torch.Tensor:
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    total = ClippedSum(parameters, clip_norm=clip, grid=0.0)
    rows = [tuple(part[at : at + 1] for part in batch) for at in range(len(batch[0]))]
    with attached(engine, model.train(), loss) as runner:
        runner.add(rows if engine == "loop" else [batch], total)
    return torch.cat([part.reshape(-1) for part in total.sums.values()])


def run(
    model: nn.Module, batch: Batch, engine: EngineName, optimiser: torch.optim.Optimizer | None = None
) -> None:
    private = PrivateTraining(mechanism(rate=1.0), engine=engine)
    private.run(model, optimiser or sgd(model), CROSS_ENTROPY, batch, steps=1)
