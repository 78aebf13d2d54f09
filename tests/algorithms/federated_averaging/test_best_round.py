"""Schedules, the best round and early stopping: decided from sums, the same at every replica."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from secfed.algorithms.federated_averaging.best_round import BestRound
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.errors import ConfigError
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.terminal.tables import summary
from tests.algorithms.loop import BREAST_CANCER, Rounds, changed, same

OVERSHOOTS = {"algorithm__learning_rate": 5.0, "study__rounds": 8}  # so that later rounds are worse


def study(**changes: Any) -> Any:
    return changed(BREAST_CANCER, changes)


def options(**keys: Any) -> FedAvgOptions:
    return FedAvgOptions(name="fedavg", **keys)


def stamped(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def told(accuracies: list[float], **keys: Any) -> BestRound:
    best = BestRound(options(**keys), stamped(0.0))
    for number, accuracy in enumerate(accuracies):
        best.measured(number, {"accuracy": accuracy, "loss": -accuracy}, stamped(float(number)))
    return best


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_best_is_kept_and_the_first_of_equals(metric: str) -> None:
    best = told([0.1, 0.9, 0.5, 0.9], keep="best", best_by=metric)
    assert best.round == 1
    assert best.kept(stamped(3.0))["w"].item() == 1.0
    assert told([0.1, 0.9], patience=1).kept(stamped(7.0))["w"].item() == 7.0  # nobody asked to keep it


def test_training_ends_after_so_many_rounds_that_were_no_better() -> None:
    assert told([0.1, 0.9, 0.5, 0.8, 0.7], patience=2).stopped == 4  # when 3 was measured, 4 was summed
    assert told([0.1, 0.9, 0.5, 0.95, 0.7], patience=2).stopped is None
    assert told([0.5, float("nan"), float("nan")], patience=1).stopped is None  # was not measured


def test_a_checkpoint_goes_on_where_it_was() -> None:
    one = told([0.1, 0.9, 0.5], keep="best", patience=2)
    other = BestRound(options(keep="best", patience=2), stamped(0.0))
    other.load(one.save())
    for best in (one, other):
        best.measured(3, {"accuracy": 0.2}, stamped(3.0))
        assert (best.round, best.stopped) == (1, 4)
    assert same(one.save(), other.save())
    assert not told([0.1]).save()  # studies without these keys keep the bytes of their checkpoints


def test_the_best_round_is_the_model_that_is_given(tmp_path: Path) -> None:
    made = study(**OVERSHOOTS, algorithm__keep="best", algorithm__best_by="loss", protection__name="masked")
    report = simulate(made, out=tmp_path)
    losses = [report.initial["loss"], *(one.metrics["loss"] for one in report.rounds)]
    kept = report.kept_round
    assert kept is not None
    assert losses[kept] == min(losses) == report.final["loss"]
    assert json.loads((tmp_path / "run.json").read_text())["kept_round"] == kept
    console = Console(width=100, record=True)
    console.print(summary(console, report))
    assert f"that after round {kept}, the best" in console.export_text()
    shorter = Rounds(study(**{**OVERSHOOTS, "study__rounds": kept})).run()
    whole = Rounds(made).run()
    assert same(whole.server.model(), shorter.server.model(), atol=1e-5)


@pytest.mark.parametrize("protection", [{"name": "masked"}, {"name": "masked", "reveal": "sites"}])
def test_training_that_gets_no_better_ends(protection: dict[str, str], tmp_path: Path) -> None:
    keys = {f"protection__{name}": value for name, value in protection.items()}
    made = study(**OVERSHOOTS, algorithm__patience=2, algorithm__best_by="loss", **keys)
    report = simulate(made, out=tmp_path)
    stopped = report.stopped_after
    assert stopped is not None
    assert stopped < made.rounds
    if "reveal" in protection:  # the aggregator cannot know; it goes on asking, and nothing moves
        assert len(report.rounds) == made.rounds
    else:
        assert [one.round for one in report.rounds] == list(range(1, stopped + 1))
        lines = [json.loads(line) for line in (tmp_path / "transcript.jsonl").read_text().splitlines()]
        assert [one["body"] for one in lines if one["kind"] == "stopped"] == [{"round": stopped}]
    shorter = Rounds(study(**{**OVERSHOOTS, "study__rounds": stopped})).run()
    whole = Rounds(made).run()
    assert same(whole.server.model(), shorter.server.model(), atol=1e-6)
    assert whole.server.metrics()[stopped] == pytest.approx(shorter.server.metrics()[stopped], abs=1e-5)


def test_sites_train_nothing_once_training_is_over() -> None:
    rounds = Rounds(study(algorithm__patience=1))
    exchange = rounds.exchange(2, 0)
    state = {**rounds.server.broadcast(2, exchange), "study/stopped": torch.tensor(1.0)}
    rounds.algorithm.check_broadcast(2, exchange, state)
    given = rounds.programs["hospital-1"].contribute(2, exchange, state)
    assert "weight" in given
    updates = [value for name, value in given.items() if name.startswith("update/")]
    assert updates
    assert not any(bool(value.any()) for value in updates)
    assert float(given["eval/loss"]) > 0  # it is measured as ever


def test_step_sizes_rise_and_fall() -> None:
    cosine = options(schedule="cosine", final_rate=0.1, warmup_rounds=1)
    assert [cosine.rate(number, 4) for number in (1, 2, 3, 4)] == pytest.approx([0.5, 1.0, 0.55, 0.1])
    falling = options(schedule="exponential", final_rate=0.01)
    assert [falling.rate(number, 3) for number in (1, 2, 3)] == pytest.approx([1.0, 0.1, 0.01])
    assert options().rate(3, 3) == options(schedule="cosine").rate(1, 1) == 1.0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox"])
def test_a_round_trains_with_its_step_size(name: str) -> None:
    common = {"algorithm__name": name, "study__rounds": 2}
    own = {"algorithm__mu": 0.0} if name == "fedprox" else {}
    scheduled = Rounds(study(**common, **own, algorithm__warmup_rounds=1)).round(1)
    halved = Rounds(study(**common, **own, algorithm__learning_rate=0.025)).round(1)
    for site, given in scheduled["update"].items():
        for field in (field for field in given if field.startswith("update/")):
            assert torch.allclose(given[field], halved["update"][site][field], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"best_by": "loss"}, "nothing is decided"),
        ({"final_rate": 0.5}, "does not fall"),
        ({"name": "ditto", "keep": "best"}, "sites keep a part"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(study(**{f"algorithm__{name}": value for name, value in keys.items()}))


def test_metrics_that_do_not_leave_decide_nothing() -> None:
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "clip_norm": 1.0, "metrics": "withheld"}
    with pytest.raises(ConfigError, match="do not leave"):
        build(
            study(
                algorithm__patience=2,
                algorithm__weighting="equal",
                data__standardize="public",
                privacy=privacy,
            )
        )


def test_studies_without_these_keys_keep_their_digest() -> None:
    spelt = {"algorithm__keep": "last", "algorithm__schedule": "constant", "algorithm__warmup_rounds": 0}
    assert study(**spelt).digest() == study().digest()
