"""Classification metrics that leave a site only as numerators and denominators to be summed.

Every quantity is a count or a sum over held-out records, so the metric over all hospitals' records is
computed from totals alone. The ROC curve comes from one histogram of scores per class.

A record that gets no finite scores, or makes the model fail, is counted like any other: as answered wrongly,
with the largest loss that counts, and at the wrong end of the ROC curve. So no number of records depends on
the model, and no model makes evaluation fail.

Source: Fawcett, "An introduction to ROC analysis", Pattern Recognition Letters 27, 2006, sections 5 and
7 (area under the curve as the probability that a positive record outranks a negative one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from secfed.algorithms.metrics.model_outputs import outputs_of
from secfed.algorithms.metrics.noise_error import mean_error, ratio_error, stated
from secfed.algorithms.metrics.score_grid import capped
from secfed.wire.layout import Field
from secfed.wire.parts import all_finite

Metrics = dict[str, float]

# The score axis is cut where it matters: bins are even in s / (1 + |s|) with s twice the log-odds, which
# is 0.001 wide in log-odds around even odds and still tells probabilities of 1 - 1e-6 and 1 - 1e-7 apart.
SCORE_BINS: Final = 1024
_COUNT_BOUND: Final = 2.0**32
_COUNT_BITS: Final = 64

# What is released with noise: per record one class, one answer that may be right, and nothing else.
NOISY: Final = ("eval/class_records", "eval/class_correct")
NOISY_L2: Final = math.sqrt(2.0)  # of what one record adds to them: two ones
_BATCH: Final = 1024
CERTAIN: Final = 1e100  # log-odds of the first and last bin


def fields(classes: int, *, noisy: bool = False) -> tuple[Field, ...]:
    """The fields that evaluation adds to a layout; all 64 bits wide. ``noisy``: those released with noise."""
    shapes: dict[str, tuple[int, ...]] = {
        "eval/records": (),
        "eval/loss": (),
        "eval/class_records": (classes,),
        "eval/class_correct": (classes,),
    }
    if classes == 2:
        shapes["eval/scores"] = (2, SCORE_BINS)
    return tuple(
        Field(name, shape, _COUNT_BOUND, _COUNT_BITS)
        for name, shape in shapes.items()
        if not noisy or name in NOISY
    )


def evaluate(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, classes: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """One site's float64 sums over its held-out records, by field name; all 0 without records."""
    sums = {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in fields(classes)}
    sums.update(counts(labels, classes))
    model.eval()
    with torch.no_grad():
        for start in range(0, len(labels), _BATCH):
            target = labels[start : start + _BATCH]
            scores = outputs_of(model, inputs[start : start + _BATCH].to(device), (classes,))
            finite = torch.isfinite(scores).all(dim=1)
            if not all_finite(finite, "scores of held-out records"):
                scores[~finite] = 0.0
            one_hot = nn.functional.one_hot(target, classes).to(torch.float64)
            correct = (finite & (scores.argmax(dim=1) == target)).to(torch.float64)
            losses = nn.functional.cross_entropy(scores, target, reduction="none")
            sums["eval/loss"] += capped(torch.where(finite, losses, torch.nan)).sum()
            sums["eval/class_correct"] += one_hot.T @ correct
            if classes == 2:
                wrong_end = (1.0 - 2.0 * target.double()) * CERTAIN
                odds = torch.where(finite, scores[:, 1] - scores[:, 0], wrong_end)
                sums["eval/scores"] += score_histograms(odds, target)
    return sums


def counts(labels: torch.Tensor, classes: int) -> dict[str, torch.Tensor]:
    """The sums that no model changes: how many records there are, in all and of each class."""
    of_class = torch.bincount(labels, minlength=classes).to(torch.float64)
    return {"eval/records": of_class.sum(), "eval/class_records": of_class}


def score_histograms(log_odds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Counts of class 1's log-odds, [n], for each of two classes: [2, SCORE_BINS] float64."""
    stretched = 2.0 * log_odds
    position = 0.5 + 0.5 * stretched / (1.0 + stretched.abs())
    bins = (position * SCORE_BINS).to(torch.int64).clamp(0, SCORE_BINS - 1)
    counts = torch.bincount(labels * SCORE_BINS + bins, minlength=2 * SCORE_BINS)
    return counts.to(torch.float64).reshape(2, SCORE_BINS)


def area_under_curve(histograms: torch.Tensor) -> float | None:
    """Area under the ROC curve of [2, bins] counts, negative records first; None if a class has none."""
    negative, positive = histograms.to(torch.float64)
    pairs = float(negative.sum() * positive.sum())
    if pairs <= 0:
        return None
    below = torch.cumsum(negative, dim=0) - negative
    return float((positive * (below + negative / 2)).sum()) / pairs


def chance(classes: int) -> dict[str, float]:
    """What guessing reaches, whatever the shares of the classes are."""
    return {"balanced_accuracy": 1 / classes, "roc_auc": 0.5}


def finish(totals: Mapping[str, torch.Tensor], classes: int, *, deviation: float = 0.0) -> Metrics:
    """``loss``, ``accuracy``, ``balanced_accuracy`` and, for two classes, ``roc_auc``, from sums.

    ``balanced_accuracy`` is the mean recall over the classes that occur. A metric without sums is left out.
    ``deviation`` is that of the noise in every element of sums that carry noise.
    """
    if "eval/records" not in totals:
        return _finish_noisy(totals, deviation) if NOISY[0] in totals else {}
    records = float(totals["eval/records"])
    if records <= 0:
        return {}
    of_class, correct = totals["eval/class_records"], totals["eval/class_correct"]
    occurs = of_class > 0
    metrics = {
        "loss": float(totals["eval/loss"]) / records,
        "accuracy": float(correct.sum()) / records,
        # Exact, for hospitals that open the sums: the order of a library's mean depends on the processor.
        "balanced_accuracy": math.fsum((correct[occurs] / of_class[occurs]).tolist()) / int(occurs.sum()),
    }
    if classes == 2:
        area = area_under_curve(totals["eval/scores"])
        if area is not None:
            metrics["roc_auc"] = area
    return metrics


def _finish_noisy(totals: Mapping[str, torch.Tensor], deviation: float) -> Metrics:
    """Accuracies from counts with noise, as they are, with their errors: one may be above 1."""
    of_class, correct = (totals[name].tolist() for name in NOISY)
    every = sum(correct), sum(of_class), deviation * math.sqrt(len(of_class))
    each = [(part, whole, deviation) for part, whole in zip(correct, of_class, strict=True)]
    recalls = [part / whole if whole else math.nan for part, whole in zip(correct, of_class, strict=True)]
    return {
        **stated("accuracy", every[0] / every[1] if every[1] else math.nan, ratio_error(*every)),
        **stated(
            "balanced_accuracy",
            sum(recalls) / len(recalls),
            mean_error(ratio_error(*one) for one in each),
        ),
    }
