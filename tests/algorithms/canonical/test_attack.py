"""An attacker who knows everything but one patient, at one sum of k-means: never more than the claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.canonical.site import CanonicalSite
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.attack.privacy import CONFIDENCE
from secfed.crypto.keystream import RoundingStream
from secfed.dp.accounting.empirical_bounds import Guesses, gaussian_epsilon_shown
from secfed.dp.accounting.interface import accountant, statement
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.unit_sums import UnitSums
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.canonical_case import SIZES, study

PATIENTS = (0, 1, 1, 1, 2, 2)
PRIVACY = {
    "unit": "group",
    "group_size": 3,
    "adjacency": "replace-patient",
    "noise": "sum",
    "epsilon": 100.0,
    "delta": 1e-4,
}


def noised(chosen: Study) -> tuple[Any, NoisedAlgorithm]:
    inner: Any = build(chosen)
    found = with_privacy(chosen, inner, inner.setting.sites)
    assert isinstance(found, NoisedAlgorithm)
    return inner, found


def shown_and_claimed(trials: int) -> tuple[float, float]:
    """One patient's records are all x, or all -x; centres in which everybody is in the first cluster."""
    chosen = study(protection__name="masked").replace("privacy", PRIVACY)
    inner, algorithm = noised(chosen)
    [stage] = [one for one in inner.plan.summing if one.exchange.name == "kmeans-01"]
    noise = algorithm._noises[stage.exchange]
    event = algorithm.event_of(stage.exchange)
    assert event is not None
    sent = {name: torch.zeros(shape).double() for name, shape in inner.plan.broadcast(stage).items()}
    for view, size in enumerate(SIZES[:2]):
        sent[f"projection/{view}"] = torch.eye(size, inner.plan.dimensions, dtype=torch.float64)
    made = []
    for sign in (1.0, -1.0):
        views = [torch.ones(len(PATIENTS), size) for size in SIZES[:2]]
        for view in views:
            view[1:4] = sign * torch.eye(view.shape[1])[0]
        labels = torch.zeros(len(PATIENTS), dtype=torch.int64)
        program = CanonicalSite(inner.plan, inner.maps, MultiviewSite(tuple(views), labels, PATIENTS))
        assert chosen.privacy is not None
        program.use_unit_sums(UnitSums(chosen.privacy, seed=1, random=lambda *_: SecureRandom()))
        made.append(torch.as_tensor(program.contribute(1, stage.exchange, sent)["sums"]))
    middle, apart = (made[0] + made[1]) / 2, made[0] - made[1]
    (run,) = noise.layout.shape.runs
    random, survivors = SecureRandom(), [f"hospital-{n}" for n in range(noise.min_survivors)]
    coins, guesses = random.bernoulli(0.5, trials), np.zeros(trials, dtype=bool)
    for trial in range(trials):
        total, lanes = np.zeros(run.count, run.dtype), np.empty(run.count, run.dtype)
        for honest in range(noise.min_survivors - noise.colluders):
            value = made[0 if coins[trial] else 1] if honest == 0 else torch.zeros_like(middle)
            rounding = RoundingStream(random.words(4).tobytes())
            source = noise.layout.encoder(noise.clip({"sums": value}), rounding)
            noise.noised(source, random.words(4).tobytes()).fill(run, lanes)
            total += lanes
        seen = noise.layout.decode((total,), tuple(survivors))["sums"]
        guesses[trial] = float(((seen - middle) * apart).sum()) > 0
    counted = Guesses(
        hits=int((guesses & coins).sum()),
        present=int(coins.sum()),
        false_alarms=int((guesses & ~coins).sum()),
        absent=int((~coins).sum()),
    )
    delta = 1e-4
    claimed = statement([event], delta, accountant("rdp")).epsilon
    return gaussian_epsilon_shown(counted, delta, confidence=CONFIDENCE), claimed


def test_a_patient_is_hidden_as_claimed() -> None:
    shown, claimed = shown_and_claimed(300)
    assert claimed / 4 < shown <= claimed


def test_a_patient_who_counts_as_often_as_it_has_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitSums, "weights", lambda *_: None)
    shown, claimed = shown_and_claimed(300)
    assert shown > claimed
