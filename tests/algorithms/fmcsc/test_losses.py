from __future__ import annotations

import pytest
import torch

from secfed.algorithms.fmcsc.losses import (
    distillation_loss,
    multiview_loss,
    pretraining_loss,
    single_view_loss,
)
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.site import adam_over
from secfed.algorithms.framework.local_training import fit
from secfed.algorithms.models.multiview import MultiviewModelOptions, MultiviewNetwork
from secfed.dp.accounting.unit import GroupPartition, PrivacyUnit, Unit
from secfed.dp.training.losses import check_decomposes, require_decomposes
from secfed.dp.training.mechanism import Mechanism
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError

OPTIONS = FmcscOptions(name="fmcsc")
_SEEDED = torch.Generator().manual_seed(1)
X, Y = torch.rand(7, 6, generator=_SEEDED), torch.rand(7, 5, generator=_SEEDED)


@pytest.fixture
def network() -> MultiviewNetwork:
    torch.manual_seed(0)
    return MultiviewNetwork((6, 5), MultiviewModelOptions(name="multiview", hidden=(8,), features=4))


def target() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(7, 4), dim=1)


def decomposing():
    return [
        (pretraining_loss((0, 1)), (X, Y)),
        (pretraining_loss((1,)), (Y,)),
        (distillation_loss(0, OPTIONS), (X, Y, target())),
        (single_view_loss(1, 2, OPTIONS), (Y, target())),
    ]


@pytest.mark.parametrize("case", range(4))
def test_losses_that_say_they_decompose_do(network, case):
    loss, batch = decomposing()[case]
    require_decomposes(loss)
    assert loss(network, batch).shape == (7,)
    assert check_decomposes(loss, network, batch)


@pytest.mark.parametrize("contrast", ["eq5", "ntxent"])
def test_feature_contrast_is_refused_where_records_are_the_privacy_unit(network, contrast):
    loss = multiview_loss(FmcscOptions(name="fmcsc", contrast=contrast))
    assert not check_decomposes(loss, network, (X, Y))
    with pytest.raises(ConfigError, match="feature contrast"):
        require_decomposes(loss)


PARTS = [("enc", "dec"), ("enc.1", "dec.1"), ("enc", "dec", "fuse_head"), ("enc", "dec.1", "fuse_head")]


@pytest.mark.parametrize("case", range(4))
def test_losses_that_decompose_train_with_per_record_gradients(network, case):
    loss, batch = decomposing()[case]
    before = network.dec[1][0].weight.detach().clone()
    mechanism = Mechanism(PrivacyUnit.default(Unit.RECORD), 1.0, 1.0, 0.5)
    PrivateTraining(mechanism, engine="loop").run(
        network, adam_over(network, PARTS[case], 0.01), loss, batch, steps=2
    )
    assert not torch.equal(network.dec[1][0].weight, before)


def test_feature_contrast_trains_with_groups_of_records_as_units(network):
    optimiser = adam_over(network, ("enc", "dec", "view_head", "fuse_head"), 0.01)
    before = network.view_head[0][0].weight.detach().clone()
    training = PrivateTraining(
        Mechanism(PrivacyUnit.default(Unit.GROUP), 1.0, 1.0, 0.5),
        engine="loop",
        partition=GroupPartition.of(7, 3, seed=1),
    )
    training.run(network, optimiser, multiview_loss(OPTIONS), (X, Y), steps=2)
    assert not torch.equal(network.view_head[0][0].weight, before)


def test_pretraining_is_the_mean_squared_error_of_the_views_that_are_held(network):
    rebuilt = [network.reconstruct(v, network.enc[v](x)) for v, x in enumerate((X, Y))]
    both = sum(torch.nn.functional.mse_loss(r, x) for r, x in zip(rebuilt, (X, Y), strict=True))
    assert torch.allclose(pretraining_loss((0, 1))(network, (X, Y)).mean(), both)
    own = torch.nn.functional.mse_loss(rebuilt[1], Y)
    assert torch.allclose(pretraining_loss((1,))(network, (Y,)).mean(), own)


def test_training_changes_the_named_parts_only_and_lowers_the_loss(network):
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    loss = pretraining_loss((0,))
    first = float(loss(network, (X,)).mean().detach())
    batches = [(part,) for part in torch.split(X, 4)]
    last = fit(
        network,
        adam_over(network, ("enc.0", "dec.0"), 0.01),
        loss,
        lambda: batches,
        epochs=50,
        device=torch.device("cpu"),
    )
    assert last < first / 2
    changed = {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}
    assert {name.rsplit(".", 2)[0] for name in changed} == {"enc.0", "dec.0"}
