"""What servers keep in a checkpoint."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.framework.server_state import VersionMetrics, model_of, part_of
from secfed.errors import MalformedMessage


def test_metrics_come_back_whole_also_of_a_version_without_any():
    metrics = VersionMetrics()
    metrics.of(0)
    metrics.of(12).update({"acc": 0.1, "loss/own": 1e-300})
    other = VersionMetrics()
    other.of(3)["acc"] = 0.5
    other.load(metrics.save())
    assert other.all() == {0: {}, 12: {"acc": 0.1, "loss/own": 1e-300}}


def test_what_all_returns_is_a_copy():
    metrics = VersionMetrics()
    metrics.of(1)["acc"] = 0.5
    metrics.all()[1]["acc"] = 0.9  # type: ignore[index]  # a caller who writes anyway
    assert metrics.all() == {1: {"acc": 0.5}}


def test_a_part_is_what_starts_with_its_name():
    state = {"model/a/b": torch.ones(1), "models/a": torch.zeros(1), "answer/model/a": torch.zeros(1)}
    assert list(part_of(state, "model/")) == ["a/b"]


def test_a_model_is_copied_from_the_checkpoint():
    state = {"model/w": torch.zeros(2), "other": torch.zeros(1)}
    model = model_of(state, {"w": torch.ones(2)})
    model["w"] += 1
    assert state["model/w"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "own", [{"w": torch.ones(3)}, {"v": torch.ones(2)}, {}, {"w": torch.ones(2), "v": torch.ones(1)}]
)
def test_a_checkpoint_of_another_model_is_refused(own):
    with pytest.raises(MalformedMessage, match="another model"):
        model_of({"model/w": torch.zeros(2)}, own)
