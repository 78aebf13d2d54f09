"""The checks of an algorithm find what is wrong with deliberately wrong ones, and say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.fedsgd import FedSGD
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.framework.base import UnitBound
from secfed.study.registry import ALGORITHMS
from secfed.study.study import Study
from secfed.testing import AlgorithmFault, check_algorithm
from secfed.wire.layout import Field


class Misnamed(FedAvg):
    def fields(self) -> Any:
        return (*super().fields(), Field("forgotten", (), 1.0))


class Unbounded(FedAvg):
    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        given = super().local_update(model, data, context)
        return {name: value * 1e3 for name, value in given.items()}


class Diverging(FedAvg):
    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        return {
            name: value * float("nan") for name, value in super().local_update(model, data, context).items()
        }


class Tiny(FedAvg):
    def fields(self) -> Any:
        return tuple(Field(one.name, one.shape, 2.0**30, one.bits) for one in super().fields())


class Weighted(FedAvg):
    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        given = super().local_update(model, data, context)
        return {name: value * len(data.train_y) / 100 for name, value in given.items()}


class Reweighting(FedAvg):
    def site(self, site_id: str) -> Any:
        program = super().site(site_id)
        original = program.contribute

        def contribute(*where: Any) -> Any:
            return {name: v * (0.5 if "/" in name else 1) for name, v in original(*where).items()}

        program.contribute = contribute  # type: ignore[method-assign]
        return program


class Counting(FedAvg):
    def server_step(self, model: Any, mean: Any, state: Any) -> Any:
        moved = super().server_step(model, mean, state)
        return {n: model[n] + (v - model[n]) * len(mean.survivors) for n, v in moved.items()}


class Forgetful(FedAvg):
    def server(self) -> Any:
        self.velocity: dict[str, Any] = {}
        return super().server()

    def server_step(self, model: Any, mean: Any, state: Any) -> Any:
        for name in self.trained:
            self.velocity[name] = self.velocity.get(name, 0.0) + mean[f"update/{name}"]
        return {name: model[name] + self.velocity[name] for name in self.trained}


class Rolling(FedAvg):
    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        given = super().local_update(model, data, context)
        return {**given, "train_loss": torch.rand(())}


class Remembering(FedAvg):
    def site(self, site_id: str) -> Any:
        program, before = super().site(site_id), [0.0]
        original = program.contribute

        def contribute(*where: Any) -> Any:
            before[0] += 0.1
            return {n: v + before[0] if n == "train_loss" else v for n, v in original(*where).items()}

        program.contribute = contribute  # type: ignore[method-assign]
        return program


class Enrolled(FedAvg):
    def server_step(self, model: Any, mean: Any, state: Any) -> Any:
        share = len(mean.survivors) / len(self.setting.sites)
        return {n: model[n] + share * mean[f"update/{n}"] for n in self.trained}


class Whispering(FedAvg):
    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        self.heard = getattr(self, "heard", 0) + 1
        return super().local_update(model, data, context)

    def server_step(self, model: Any, mean: Any, state: Any) -> Any:
        moved = super().server_step(model, mean, state)
        return {name: value + 0.01 * getattr(self, "heard", 0) for name, value in moved.items()}


class Leaking(FedAvg):
    private_units = ("record",)

    def fields(self) -> Any:
        return (*super().fields(), Field("extra", (), 100.0))

    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        return {**super().local_update(model, data, context), "extra": data.train_x.mean()}


class Recalling(Leaking):
    private_units = ("record",)

    def site_memory(self) -> Any:
        return {"before": torch.zeros(())}

    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        given = {**super().local_update(model, data, context), "extra": context.memory["before"]}
        context.memory["before"] = data.train_x.mean()
        return given


class Unpaid(FedAvg):
    private_units = ("group",)

    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        return {**self.difference(model, context.received), "train_loss": 0.0}


class Overspending(FedAvg):
    private_units = ("record",)

    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        super().local_update(model, data, context)
        return super().local_update(model, data, context)


class Unplanned(FedAvg):
    private_units = ("record",)

    def phases(self, data: Any) -> Any:
        return ()


class Unmixed(FedAvg):
    private_units = ("site",)

    def unprotected(self, exchange: Any) -> Any:
        return [exchange.layout.fields[0].name]


class Invented(FedAvg):
    private_units: ClassVar[Any] = ("ward",)


class Summed(FedSGD):
    private_units: ClassVar[Any] = ()
    summed_units: ClassVar[Any] = ("record",)


class Understated(Summed):
    def unit_bound(self, exchange: Any) -> Any:
        found = super().unit_bound(exchange)
        return None if found is None else replace(found, norm=found.norm * 0.8)


class Scaled(Summed):
    def unit_bound(self, exchange: Any) -> Any:
        found = super().unit_bound(exchange)
        scales = dict.fromkeys((one.name for one in exchange.layout.fields), 0.9)
        return None if found is None else replace(found, scales=scales)


class Unclipped(Summed):
    summed_units: ClassVar[Any] = ("group",)

    def local_update(self, model: Any, data: Any, context: Any) -> Any:
        given = super().local_update(model, data, context)
        beside = 0.0 if context.sums is None else data.train_x.sum()
        return {name: value + beside for name, value in given.items()}


class Sharing(Summed):
    def unit_bound(self, exchange: Any) -> Any:
        found = super().unit_bound(exchange)
        return None if found is None else UnitBound(found.norm)


class Unshared(Summed):
    def unit_bound(self, exchange: Any) -> Any:
        found = super().unit_bound(exchange)
        return None if found is None or exchange.name == "update" else replace(found, share=0.0)


class Boundless(Summed):
    def unit_bound(self, exchange: Any) -> Any:
        return super().unit_bound(exchange) if exchange.name == "update" else None


class Warding(Summed):
    summed_units: ClassVar[Any] = ("site",)


WRONG = [
    (Misnamed, "sums: field 'forgotten' of 'update' gets no value"),
    (Unbounded, r"bounds: field '[\w/.]+' gets [\d.e+]+, above its bound 4"),
    (Diverging, "sums: field .* gets NaN or Inf"),
    (Tiny, "sums: the model from fixed-point sums is another"),
    (Reweighting, "pooled mean: the server's mean of .* is not the pooled mean"),
    (Weighted, "pooled mean: a hospital whose records are all there twice"),
    (Counting, "pooled mean: two and four hospitals"),
    (Forgetful, "state: a server that continues from its checkpoint"),
    (Rolling, "restart: work from what the hospital saved gives another 'train_loss'"),
    (Remembering, "restart: work from what the hospital saved gives another 'train_loss'"),
    (Enrolled, "dropout: with one hospital fewer"),
    (Whispering, "dropout: programs of one algorithm object"),
    (Leaking, r"privacy plan \(record\): 'extra' depends on records and leaves without noise"),
    (Recalling, r"privacy plan \(record\): 'extra' depends on records .* in round 2"),
    (Unpaid, r"privacy plan \(group\): nothing is paid"),
    (Overspending, r"privacy plan \(record\): the study pays epsilon [\d.]+ of 8"),
    (Unplanned, r"privacy plan \(record\): refused: .*was not planned"),
    (Unmixed, r"privacy plan \(site\): refused: .*would leave without noise beside"),
    (Invented, r"privacy plan \(ward\): there is no such unit"),
    (Understated, r"unit sums \(record\): one record adds [\d.]+ to '\w+', above 0\.80"),
    (Scaled, r"unit sums \(record\): one record adds [\d.]+ to '\w+', above"),
    (Unclipped, r"unit sums \(group\): one group adds [\d.e+]+ to 'update', above 1\b"),
    (Sharing, r"unit sums \(record\): the shares of its sums are 1, 1"),
    (Unshared, r"unit sums \(record\): the shares of its sums are 0"),
    (Boundless, r"unit sums \(record\): refused: .*'evaluate' has no bound on what one record adds"),
    (Warding, r"unit sums \(site\): there is no such unit"),
]


@pytest.mark.parametrize(("wrong", "fault"), WRONG, ids=lambda item: getattr(item, "__name__", ""))
def test_a_wrong_algorithm_is_told_what_is_wrong(wrong: type[FedAvg], fault: str) -> None:
    if "private_units" not in vars(wrong):
        wrong.private_units = ()
    with pytest.raises(AlgorithmFault, match=f"^{wrong.__name__}, {fault}.*; "):
        check_algorithm(wrong)


MORE: dict[str, dict[str, object]] = {"fedprox": {"mu": 0.5}, "fedbn": {"local_layers": ["0"]}}
NAMES = ["fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fedavgm", "fednova", "scaffold"]
NAMES += ["fedbn", "ditto", "fedsgd"]


@pytest.mark.parametrize("name", NAMES)
def test_the_algorithms_of_weighted_means_pass(name: str) -> None:
    check_algorithm(ALGORITHMS[name].build, **MORE.get(name, {}))  # type: ignore[arg-type]


class OwnOptions(FedAvgOptions):
    strength: float


class Own(FedAvg):
    options_type = OwnOptions


def test_a_class_of_ones_own_has_its_options_checked() -> None:
    text = """
        study = { name = "own", rounds = 1 }
        algorithm = { name = "tests.secfed.test_testing:Own", strength = 2.0 }
        model = { name = "logistic-regression" }
        data = { name = "breast-cancer" }
        """
    import tests.secfed.test_testing as named
    from secfed.errors import ConfigError
    from secfed.study.build import build

    study = Study.parse(text)
    algorithm: Any = build(study)
    assert isinstance(algorithm, named.Own)
    assert algorithm.options.strength == 2.0
    with pytest.raises(ConfigError, match="strength"):
        study.replace("algorithm.strength", "much")
