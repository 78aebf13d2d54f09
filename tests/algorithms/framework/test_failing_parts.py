"""Work that fails in part leaves the other parts, later exchanges and what a site keeps as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.metrics import classification
from secfed.errors import BudgetExceeded, MalformedMessage, RangeError, TranscriptError, WrongState
from secfed.site.containment import Failure, contained
from secfed.study.build import build
from secfed.wire.layout import Exchange, Field, Layout, Summands
from secfed.wire.parts import is_finite, listening, otherwise
from tests.algorithms import fmcsc_case, vlp_case
from tests.algorithms.fedcola_case import tiny as fedcola
from tests.algorithms.loop import Rounds
from tests.properties.readiness_case import TRAP
from tests.properties.readiness_studies import tiny

INDEPENDENT = [BudgetExceeded, TranscriptError, WrongState, MalformedMessage]


def _fails(*_: Any, **__: Any) -> Any:
    raise RangeError("a value was in the way")


def tensors(found: Summands) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in found.items()}


class TestOtherwise:
    def test_what_fails_gives_way(self) -> None:
        heard: list[Exception] = []
        assert otherwise(3, lambda: 4) == 4
        with listening(heard.append):
            assert otherwise(3, _fails) == 3
            assert otherwise(3, lambda: 1 // 0) == 3
        assert [type(one) for one in heard] == [RangeError, ZeroDivisionError]
        otherwise(3, _fails)  # nobody listens any more
        assert len(heard) == 2

    @pytest.mark.parametrize("kind", INDEPENDENT)
    def test_what_no_record_decides_passes(self, kind: type[Exception]) -> None:
        def refuses() -> None:
            raise kind("for everybody alike")

        with pytest.raises(kind):
            otherwise(None, refuses)

    def test_a_listener_may_want_to_see_it(self) -> None:
        def wants(problem: Exception) -> None:
            raise problem

        with listening(wants), pytest.raises(ZeroDivisionError):
            otherwise(3, lambda: otherwise(4, lambda: 1 // 0))


class TestContained:
    """A part that gives way to something else is heard of where the whole is contained."""

    exchange = Exchange("sum", "all", Layout((Field("a", (), 1.0), Field("b", (), 1.0)), sites=3))

    def contribute(self, error: Exception) -> dict[str, Any]:
        def part() -> float:
            raise error

        return {"a": 1.0, "b": otherwise(0.5, part)}

    def test_the_alarm_names_the_error_and_the_rest_stays(self) -> None:
        alarms: list[Failure] = []
        work = partial(self.contribute, ValueError("a value"))
        found = contained(1, self.exchange, work, dict, alarms.append)
        assert {name: float(value) for name, value in found.items()} == {"a": 1.0, "b": 0.5}
        assert [one.kind for one in alarms] == ["ValueError"]

    def test_a_simulation_shows_defects_and_contains_values(self) -> None:
        simulated = partial(contained, 1, self.exchange, settled=dict, alarm=print, only_values=True)
        with pytest.raises(ValueError, match="a value"):
            simulated(work=partial(self.contribute, ValueError("a value")))
        found = simulated(work=partial(self.contribute, RangeError("a value")))
        assert float(found["b"]) == 0.5


class TestFedAvg:
    @pytest.mark.parametrize(("what", "left"), [("evaluate", "update"), ("train", "eval")])
    def test_evaluation_and_training_do_not_fail_together(
        self, what: str, left: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            *((classification, what) if what == "evaluate" else (FedAvg, "local_update")), _fails
        )
        algorithm = build(tiny("fedavg"))
        exchange, site = algorithm.exchanges(1)[0], algorithm.site("hospital-1")
        found = site.contribute(1, exchange, algorithm.server().broadcast(1, exchange))
        fields = {field.name for field in exchange.layout.fields}
        known = set(site.settled(1, exchange))
        assert known == {"weight", "eval/records", "eval/class_records"}
        assert set(found) == known | {
            name for name in fields if name.startswith(left) or (left == "update" and name == "train_loss")
        }

    def test_what_is_settled_is_what_is_contributed(self) -> None:
        algorithm = build(tiny("fedavg"))
        for number in (1, 3):
            exchange, site = algorithm.exchanges(number)[0], algorithm.site("hospital-2")
            found = site.contribute(number, exchange, algorithm.server().broadcast(number, exchange))
            for name, value in site.settled(number, exchange).items():
                assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value))


def test_fedcola_hands_out_zeros_for_attention_layers_after_a_training_that_failed() -> None:
    rounds = Rounds(fedcola())
    site = (
        rounds.programs["image-1"] if "image-1" in rounds.programs else next(iter(rounds.programs.values()))
    )
    own, attention = rounds.exchange(1, "own-image"), rounds.exchange(1, "attention-image")
    site._fit = _fails
    found = site.contribute(1, own, rounds.server.broadcast(1, own))
    assert not any(name.startswith("update/") for name in found)
    handed = site.contribute(1, attention, rounds.server.broadcast(1, attention))
    assert set(handed) == {field.name for field in attention.layout.fields}
    assert not any(bool(torch.as_tensor(value).any()) for name, value in handed.items() if name != "weight")


class TestFmcsc:
    def test_sites_still_teach_views_after_a_training_that_failed(self) -> None:
        rounds = fmcsc_case.until(3)
        site = rounds.programs["hospital-1"]
        full, view = rounds.algorithm.exchanges(3)[:2]
        fit, site._fit = site._fit, _fails
        found = site.contribute(3, full, rounds.server.broadcast(3, full))
        assert set(found) == {"weight", "sites"}
        site._fit = fit
        found = site.contribute(3, view, rounds.server.broadcast(3, view))
        assert found["sites"] == site.settled(3, view)["sites"] == 1.0
        assert 0.0 < float(found["weight"]) <= 1.0
        assert not all(bool(torch.isfinite(torch.as_tensor(value)).all()) for value in found.values())

    def test_a_model_of_ones_own_that_diverged_is_not_kept(self) -> None:
        rounds = fmcsc_case.until(3)
        site, index = rounds.programs["hospital-4"], 1  # of the sites with the first view alone
        rounds.take(3, 0)
        exchange = rounds.algorithm.exchanges(3)[index]
        state = rounds.server.broadcast(3, exchange)
        site.contribute(3, exchange, state)
        kept = {name: value.clone() for name, value in site._own.items()}
        whole, site._views = site._views, tuple(one if one is None else one * math.nan for one in site._views)
        site.contribute(4, exchange, state)
        assert is_finite(site._own)
        assert all(torch.equal(site._own[name], value) for name, value in kept.items())
        site._views = whole
        assert is_finite(tensors(site.contribute(4, exchange, state)))

    def test_records_without_features_are_counted(self) -> None:
        rounds = fmcsc_case.until(5)
        site = rounds.programs["hospital-1"]
        moments = rounds.algorithm.exchanges(5)[0]
        site._embed = _fails
        found = site.contribute(5, moments, rounds.server.broadcast(5, moments))
        assert float(found["records"]) == site._records
        assert not bool(torch.as_tensor(found["sum"]).any())
        clusters = rounds.algorithm.exchanges(5)[1]
        counted = site.contribute(5, clusters, rounds.server.broadcast(5, clusters))["counts"]
        assert bool((torch.as_tensor(counted).sum(dim=1) == site._records).all())


def _nan_images(site: Any) -> Callable[[], None]:
    """Let every training pair of a site be no number; what is returned undoes it."""
    images = site.data.train.images
    kept = images.clone()
    images.fill_(math.nan)

    def undo() -> None:
        images.copy_(kept)

    return undo


@pytest.mark.parametrize("name", ["vlp-fedema", "vlp-fedmoon"])
def test_a_model_of_ones_own_is_kept_only_if_it_is_finite(name: str) -> None:
    algorithm = build(tiny(name))
    exchange, site = algorithm.exchanges(1)[0], algorithm.site("hospital-1")
    state = algorithm.server().broadcast(1, exchange)
    site.contribute(1, exchange, state)
    kept = {key: value.clone() for key, value in site.save().items()}
    undo = _nan_images(site)
    found = site.contribute(2, exchange, state)
    assert not is_finite(tensors(found))
    assert all(torch.equal(site.save()[key], value) for key, value in kept.items())
    undo()
    assert is_finite(tensors(site.contribute(2, exchange, state)))


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_fedrgb_goes_on_with_the_aligner_that_a_failed_training_began_from(how: str) -> None:
    algorithm = build(tiny("fedrgb"))
    site, server = algorithm.site("hospital-1"), algorithm.server()
    encoder, *later = algorithm.exchanges(2)
    state = server.broadcast(2, encoder)
    fit, undo = site.fit, lambda: None
    if how == "raises":
        site.fit = _fails
    else:
        undo = _nan_images(site)
    site.contribute(2, encoder, state)
    site.fit = fit
    undo()
    assert all(torch.equal(value, state[f"model/{name}"]) for name, value in site.own.items())
    for exchange in later:
        found = site.contribute(2, exchange, server.broadcast(2, exchange))
        assert set(found) == {field.name for field in exchange.layout.fields}
        assert is_finite(tensors(found))


@pytest.mark.parametrize("dro_loss", [_fails, lambda *_: _fails], ids=["made", "computed"])
@pytest.mark.parametrize("name", ["feddra", "fedrgb"])
def test_a_loss_that_fails_counts_as_the_cap_and_training_goes_on(name: str, dro_loss: Any) -> None:
    algorithm = build(tiny(name))
    site, server = algorithm.site("hospital-1"), algorithm.server()
    site.dro_loss = dro_loss
    for exchange in algorithm.exchanges(2):
        found = site.contribute(2, exchange, server.broadcast(2, exchange))
        assert set(found) == {field.name for field in exchange.layout.fields}
        if "dro/a" in found:
            capped = algorithm.rule.summand(algorithm.rule.initial, algorithm.rule.cap)
            assert found["dro/a"] == pytest.approx(float(capped["dro/a"]), rel=1e-4)


def test_the_trap_of_the_property_test_is_finite_and_within_what_sites_take() -> None:
    algorithm = build(vlp_case.study())
    state = TRAP.of(algorithm.server().broadcast(1, algorithm.exchanges(1)[0]))
    assert is_finite(state)
    assert max(float(value.abs().max()) for value in state.values()) <= 1e6
