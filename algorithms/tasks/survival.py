"""When something happens: the hazard in each of a few intervals of time, and concordance from counts.

Cox's partial likelihood compares every patient with all who were then still at risk, at all hospitals: it
is no mean over records, so averaging models trained on each hospital's part of it is another estimate, and
no clipping of records bounds it. Here the model gives the log-odds of the hazard in every interval of a
declared grid (a logistic model in discrete time), whose likelihood is a sum over records. Proportional
hazards are not assumed. Cox regression itself is one of ``secfed analyse``'s models.

Somebody who was last seen inside an interval is known to have come through the ones before.

Sources: Gensheimer, Narasimhan, "A scalable discrete-time survival model for neural networks", PeerJ 7:e6257,
2019, equations 1 to 3; Harrell, Califf, Pryor, Lee, Rosati, JAMA 247, 1982 (concordance).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from secfed.algorithms.tasks.base import Metrics, SummedTask, Sums

RISK_BINS: Final = 256  # of the probability of the event within the grid
_RISKS: Final = "eval/risks"  # [without or with the event, interval, bin] records
_TIMES: Final = "eval/times"  # [without or with the event, interval] records


class Survival(SummedTask):
    """Discrete-time survival."""

    def _steps(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, intervals]: 1 for those that a record came through; 1 for the one in which the event was."""
        at = torch.arange(self.targets.outputs, device=targets.device)
        interval, event = targets[:, None] // 2, targets[:, None] % 2
        return (at < interval).to(torch.int64), ((at == interval) & (event == 1)).to(torch.int64)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Minus the log-likelihood of what is known of each record."""
        through, happened = self._steps(targets)
        softplus = nn.functional.softplus
        return (softplus(outputs) * through + softplus(-outputs) * happened).sum(dim=1)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Records by what happened and when, and by risk, too."""
        intervals = self.targets.outputs + 1  # the last: after the grid
        return {_TIMES: (2, intervals), _RISKS: (2, intervals, RISK_BINS)}

    def known(self, targets: torch.Tensor) -> Sums:
        """Records by what happened and when."""
        counts = torch.bincount(targets, minlength=2 * (self.targets.outputs + 1))
        return {_TIMES: counts.to(torch.float64).reshape(-1, 2).T.contiguous()}

    def add(self, sums: Sums, outputs: torch.Tensor, finite: torch.Tensor, targets: torch.Tensor) -> None:
        """Count records by risk; without a finite one it is 0 for those who had the event, else 1."""
        risk = 1.0 - torch.exp(-nn.functional.softplus(outputs).sum(dim=1))
        risk = torch.where(finite, risk, 1.0 - (targets % 2).double())
        bins = (risk * RISK_BINS).to(torch.int64).clamp(0, RISK_BINS - 1)
        sums[_RISKS].index_put_(
            (targets % 2, targets // 2, bins), torch.ones(len(targets), dtype=torch.float64), accumulate=True
        )

    def measured(self, totals: Mapping[str, torch.Tensor], records: float) -> Metrics:
        """``concordance``, and ``event_share``: how many of the records had the event within the grid."""
        found = {"event_share": float(totals[_TIMES][1].sum()) / records}
        agreed = concordance(totals[_RISKS])
        return found if agreed is None else {"concordance": agreed, **found}

    def chance(self) -> dict[str, float]:
        """Of concordance."""
        return {"concordance": 0.5}


def concordance(risks: torch.Tensor) -> float | None:
    """Harrell's C from counts, [2, intervals, bins]; None without a pair that can be compared.

    Of two records can be compared: one with the event, and one that is known to have come through that
    interval. Records of one bin count as half.
    """
    with_event = risks[1]
    both = risks.sum(dim=0)
    later = both.flip(0).cumsum(dim=0).flip(0) - both  # who came through each interval, by bin
    below = later.cumsum(dim=1) - later
    pairs = float((with_event.sum(dim=1) * later.sum(dim=1)).sum())
    return float((with_event * (below + later / 2)).sum()) / pairs if pairs > 0.5 else None
