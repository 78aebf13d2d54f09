"""The defaults of optional hooks, the example that documents them, and registration."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.fednova import FedNova
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework import base
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.registry import find_algorithms, register
from secfed.algorithms.framework.setting import Setting
from secfed.errors import ConfigError, MalformedMessage
from secfed.study.build import build
from secfed.wire.layout import Exchange, Field, Layout, State, Summands, Totals
from tests.properties.readiness_case import SITES
from tests.properties.readiness_studies import tiny


class CountSite(base.SiteProgram):
    def __init__(self, records: int) -> None:
        self.records = records

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        return {"records": float(self.records)}


class CountServer(base.ServerProgram):
    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        return {}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None: ...

    def model(self) -> State:
        return {}

    def metrics(self) -> dict[int, Any]:
        return {}

    def save(self) -> State:
        return {}

    def load(self, state: State) -> None: ...


@pytest.fixture
def count() -> Any:
    text = (base.__doc__ or "").split("::\n")[1]
    known = {"Algorithm": base.Algorithm, "CountServer": CountServer, "CountSite": CountSite}
    names = {**known, "Field": Field, "Layout": Layout, "Exchange": Exchange, "check_shapes": check_shapes}
    exec(textwrap.dedent(text), names)  # the example of the module
    setting: Setting = build(tiny("fedavg")).setting  # type: ignore[attr-defined]
    return names["Count"](setting, None)  # type: ignore[operator]


def test_the_example_of_the_hooks_is_an_algorithm(count: Any) -> None:
    (exchange,) = count.exchanges(1)
    assert count.members(1, exchange, SITES) == SITES
    assert count.site(SITES[0]).contribute(1, exchange, {}) == {"records": 9.0}
    count.check_broadcast(1, exchange, {})
    with pytest.raises(MalformedMessage):
        count.check_broadcast(1, exchange, {"x": torch.zeros(1)})


def test_the_other_hooks_have_defaults(count: Any) -> None:
    (exchange,) = count.exchanges(1)
    program, server = count.site(SITES[0]), count.server()
    assert (count.private_units, count.warm_start, count.options_type) == (("site",), False, None)
    assert (count.contributors(1, exchange), count.unprotected(exchange), count.per_site({})) == ((), (), {})
    assert (program.settled(1, exchange), program.save()) == ({}, {})
    program.load({})
    with pytest.raises(MalformedMessage):
        program.load({"x": torch.zeros(1)})
    with pytest.raises(ConfigError, match=r"privacy\.unit"):
        program.use_privacy(None)
    with pytest.raises(ConfigError, match=r"model\.start"):
        server.begin({})


def test_a_program_that_forwards_has_every_method_of_its_own() -> None:
    hooks = {name for name, value in vars(base.SiteProgram).items() if callable(value) and name[0] != "_"}
    assert hooks <= set(vars(base.ForwardingProgram))


def test_training_of_ones_own_is_not_taken_for_private() -> None:
    class Mine(FedAvg):
        def local_update(self, model: Any, data: Any, context: Any) -> Any:
            return {}

    class Declared(Mine):
        private_units = ("record",)

    class OfSteps(FedNova):
        def local_update(self, model: Any, data: Any, context: Any) -> Any:
            return {}

    assert Mine.private_units == ("site",)
    assert OfSteps.private_units == ()
    assert Declared.private_units == ("record",)
    assert (Mine.noised_fields, Declared.noised_fields) == ((), ())


def test_two_algorithms_cannot_have_one_name() -> None:
    with pytest.raises(ConfigError, match="two algorithms have the name 'fedavg'"):

        @register("fedavg", options=FedAvgOptions)
        class Another(FedAvg):
            pass

    assert find_algorithms()["fedavg"].build is FedAvg
