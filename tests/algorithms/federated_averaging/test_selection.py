"""What trains and leaves: by patterns of names, or as low-rank adapters beside linear layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.federated_averaging.fedbn import FedBn, FedBnOptions
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.selection import _selected
from secfed.algorithms.framework.parameters import trainable
from secfed.errors import ConfigError, MalformedMessage
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from tests.algorithms.loop import BREAST_CANCER, Rounds, changed

NET = "tests.algorithms.federated_averaging.test_selection:net"


def net(input_shape: tuple[int, ...], classes: int, scale: float = 1.0) -> nn.Module:
    made = nn.Sequential()
    made.add_module("body", nn.Linear(input_shape[0], 16))
    made.add_module("act", nn.ReLU())
    made.add_module("inner", nn.Linear(16, 8))
    made.add_module("head", nn.Linear(8, classes))
    with torch.no_grad():
        made.body.weight.mul_(scale)
    return made


def study(**keys: Any) -> Any:
    own = {"name": "fedavg", "learning_rate": 0.05, **keys}
    return changed(BREAST_CANCER, {"model": {"name": NET}, "algorithm": own})


HEAD = {"head.weight", "head.bias"}
LORA = {"body.down.weight", "body.up.weight", "inner.down.weight", "inner.up.weight"}


@pytest.mark.parametrize(
    ("keys", "trained"),
    [
        ({"travels": ["head.*"]}, HEAD),
        ({"frozen": ["body.*", "inner.*"]}, HEAD),
        ({"travels": ["head.*"], "frozen": ["*.bias"]}, {"head.weight"}),
        ({"adapters": ["body", "inner"]}, LORA),
        ({"adapters": ["body", "inner"], "travels": ["head.*"], "adapter_rank": 2}, LORA | HEAD),
    ],
)
def test_only_what_the_study_names_trains_and_travels(keys: dict[str, Any], trained: set[str]) -> None:
    rounds = Rounds(study(**keys))
    broadcast = rounds.server.broadcast(1, rounds.exchange(1, 0))
    assert set(broadcast) == {*trained, "study/home"}
    given = rounds.round(1)["update"]
    for one in given.values():
        assert {name.removeprefix("update/") for name in one if name.startswith("update/")} == trained
    assert set(rounds.server.model()) == trained
    before, after = build(study(**keys)).initial, rounds.server.model()
    assert any(not torch.equal(before[name], after[name]) for name in trained)


@pytest.mark.parametrize("protection", [{"name": "masked"}, {"name": "masked", "reveal": "sites"}])
def test_adapters_train_under_masks(protection: dict[str, str]) -> None:
    made = study(adapters=["body"], travels=["head.*"], learning_rate=0.5, optimizer="sgd")
    report = simulate(made.replace("protection", protection))
    assert report.final["loss"] < 0.8 * report.initial["loss"]
    assert report.oracle is not None  # the model without what stays at home is measured as well
    full = simulate(study(learning_rate=0.5).replace("protection", protection))
    mine, all_of_it = (one.rounds[1].bytes_up_per_site.mean for one in (report, full))
    assert mine < all_of_it


@pytest.mark.slow
def test_adapters_train_under_privacy_of_records() -> None:
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "clip_norm": 1.0, "metrics": "unprotected"}
    made = study(adapters=["body"], weighting="equal").replace("data.standardize", "public")
    report = simulate(made.replace("privacy", privacy))
    assert report.privacy is not None
    assert not report.zeroed


def test_another_model_at_home_is_refused() -> None:
    rounds, other = Rounds(study(travels=["head.*"])), study(travels=["head.*"])
    exchange = rounds.exchange(1, 0)
    broadcast = rounds.server.broadcast(1, exchange)
    rounds.algorithm.check_broadcast(1, exchange, broadcast)
    scaled = build(other.replace("model", {"name": NET, "scale": 1.01}))
    with pytest.raises(MalformedMessage, match="at home"):
        scaled.check_broadcast(1, exchange, broadcast)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"travels": ["haed.*"]}, r"algorithm.travels: nothing .* near it: head"),
        ({"frozen": ["bodi.weight"]}, r"algorithm.frozen: nothing .* near it: body.weight"),
        ({"adapters": ["act"]}, "no linear layer"),
        ({"adapter_rank": 2}, "without algorithm.adapters"),
        ({"frozen": ["*"]}, "no trainable parameters"),
        ({"name": "fedbn", "local_layers": ["haed*"]}, r"algorithm.local_layers: nothing .* near it: head"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(study(**keys))


def test_local_layers_are_named_by_patterns_too() -> None:
    named, by_pattern = (build(study(name="fedbn", local_layers=one)) for one in (["head"], ["he*"]))
    assert named.trained == by_pattern.trained


class Tied(nn.Module):
    """Two layers that share a weight, and a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.personal, self.head = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.personal.weight = self.embed.weight
        self.prefix = nn.Parameter(torch.zeros(4))


def leaves(layers: tuple[str, ...]) -> set[str]:
    fedbn: Any = FedBn.__new__(FedBn)
    fedbn.options = FedBnOptions(name="fedbn", local_layers=layers)
    assert set(trainable(Tied())) - set(fedbn._local(Tied())) == set(fedbn.summed_parameters(Tied()))
    return set(fedbn.summed_parameters(Tied()))


def test_what_is_shared_stays_or_leaves_under_all_its_names() -> None:
    assert trainable(Tied()) == ("prefix", "embed.weight", "head.weight")
    assert leaves(("personal", "embed")) == {"prefix", "head.weight"}
    assert leaves(("prefix*",)) == {"embed.weight", "head.weight"}  # a parameter of no layer
    for one in ("personal", "embed", "pers*"):
        with pytest.raises(ConfigError, match=r"local_layers: names .* which is one parameter with"):
            leaves((one,))
    for key in ("frozen", "travels"):
        for one in ("personal.*", "embed.weight"):
            with pytest.raises(ConfigError, match=rf"algorithm\.{key}: names .* which is one parameter with"):
                _selected(Tied(), FedAvgOptions(**{"name": "fedavg", key: (one,)}), 1)
    frozen = _selected(Tied(), FedAvgOptions(name="fedavg", frozen=("personal.*", "embed.*")), 1)
    assert trainable(frozen) == ("prefix", "head.weight")


def test_what_trains_may_stay_at_its_hospital() -> None:
    keys = {"name": "fedbn", "local_layers": ["head"], "frozen": ["inner.*"]}
    rounds = Rounds(study(**keys))
    one = rounds.round(1)["update"]["hospital-1"]
    assert {name for name in one if name.startswith("update/")} == {"update/body.weight", "update/body.bias"}


def test_studies_without_these_keys_keep_their_digest() -> None:
    assert study(adapters=["body"]).digest() != study().digest()
    assert study(travels=[], frozen=[]).digest() == study().digest()
