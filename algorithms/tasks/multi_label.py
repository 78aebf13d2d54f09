"""Several labels per record, each 0 or 1: a logistic loss per label, F1 and areas under ROC curves.

A label is predicted where its score (log-odds) is above 0. A record without finite scores has every label
predicted wrongly, at the wrong end of every ROC curve.

Sources: Fawcett, "An introduction to ROC analysis", 2006 (areas); Hanley, McNeil, Radiology 143, 1982 (their
standard errors); Sokolova, Lapalme, Information Processing & Management 45, 2009 (micro and macro averages).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from secfed.algorithms.metrics.classification import CERTAIN, SCORE_BINS, area_under_curve, score_histograms
from secfed.algorithms.metrics.noise_error import NORMAL_95
from secfed.algorithms.tasks.base import INTERVAL_95, Metrics, SummedTask, Sums

_POSITIVE: Final = "eval/label_records"  # records that have each label
_HITS: Final = "eval/label_hits"  # of them those that the model says so of
_PREDICTED: Final = "eval/label_predicted"
_SCORES: Final = "eval/label_scores"


class MultiLabel(SummedTask):
    """Labels that do not exclude each other."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean logistic loss over the labels."""
        wanted = targets.to(outputs.dtype)
        loss = nn.functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        return loss.mean(dim=1)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Counts, and a histogram of scores without and with each label."""
        labels = self.targets.outputs
        return {
            _POSITIVE: (labels,),
            _HITS: (labels,),
            _PREDICTED: (labels,),
            _SCORES: (labels, 2, SCORE_BINS),
        }

    def known(self, targets: torch.Tensor) -> Sums:
        """How many records have each label."""
        return {_POSITIVE: targets.to(torch.float64).sum(dim=0)}

    def add(self, sums: Sums, outputs: torch.Tensor, finite: torch.Tensor, targets: torch.Tensor) -> None:
        """Count what is predicted and what of it is right, and where the scores are."""
        wrong_end = (1.0 - 2.0 * targets.double()) * CERTAIN
        scores = torch.where(finite[:, None], outputs, wrong_end)
        predicted = scores > 0
        sums[_PREDICTED] += predicted.double().sum(dim=0)
        sums[_HITS] += (predicted & (targets == 1)).double().sum(dim=0)
        for label in range(self.targets.outputs):
            sums[_SCORES][label] += score_histograms(scores[:, label], targets[:, label])

    def measured(self, totals: Mapping[str, torch.Tensor], records: float) -> Metrics:
        """``f1_micro``, ``f1_macro``, and ``roc_auc``: the mean over the labels that have both values.

        ``roc_auc_1`` and so on are those of single labels, in the order of the targets.
        """
        del records
        positive, hits, predicted = (totals[name] for name in (_POSITIVE, _HITS, _PREDICTED))
        found: Metrics = {}
        said = positive + predicted
        occurs = said > 0.5
        if bool(occurs.any()):
            found |= f1_with_interval("f1_micro", float(hits.sum()), float(said.sum()))
            found["f1_macro"] = float((2 * hits[occurs] / said[occurs]).mean())
        areas: Metrics = {}
        for label, histograms in enumerate(totals[_SCORES], start=1):
            area = area_under_curve(histograms)
            if area is not None:
                negative, having = histograms.sum(dim=1).tolist()
                areas[f"roc_auc_{label}"] = area
                areas[f"roc_auc_{label}{INTERVAL_95}"] = area_interval(area, negative, having)
        single = [value for name, value in areas.items() if not name.endswith(INTERVAL_95)]
        return {**found, **({"roc_auc": sum(single) / len(single)} if single else {}), **areas}

    def chance(self) -> dict[str, float]:
        """Of areas."""
        return {"roc_auc": 0.5}


def f1_with_interval(name: str, hits: float, said: float) -> Metrics:
    """F1 = 2 J / (1 + J), with J the share of hits in all that is true or predicted, and its interval.

    By the delta method from a binomial J: it takes the decisions about labels for independent.
    """
    union = said - hits
    share = hits / union
    error = 2 / (1 + share) ** 2 * math.sqrt(max(0.0, share * (1 - share)) / union)
    return {name: 2 * hits / said, name + INTERVAL_95: NORMAL_95 * error}


def area_interval(area: float, negative: float, positive: float) -> float:
    """Half the width of the 95 % interval of an area under the ROC curve."""
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (positive - 1) * (first - area**2) + (negative - 1) * (second - area**2)
    return NORMAL_95 * math.sqrt(max(0.0, variance) / (negative * positive))
