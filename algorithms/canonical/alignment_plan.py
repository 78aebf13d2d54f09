"""Which sums canonical alignment consists of: two that projections come from, and one for the scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from secfed.algorithms.canonical import pair_scores
from secfed.algorithms.canonical.pair_features import PairFeatures
from secfed.algorithms.canonical.plan import CanonicalPlan, CanonicalStage, Shapes

_SHARES: Final = (0.35, 0.65)  # of mu^2: of moments, and of the cross-covariance


@dataclass(frozen=True, kw_only=True)
class AlignmentPlan(CanonicalPlan):
    """The plan of one study; broadcasts are those of projections, without encoders."""

    features: PairFeatures
    evaluation_batch: int  # pairs to retrieve an image from

    @cached_property
    def summing(self) -> tuple[CanonicalStage, ...]:
        """Moments, and the cross-covariance."""
        return tuple(self.aligning(*_SHARES))

    @cached_property
    def scoring(self) -> tuple[CanonicalStage, ...]:
        """The stage that looks for the images of held-out texts."""
        return (CanonicalStage("retrieval", self.exchange("evaluate", "all", pair_scores.fields())),)

    def broadcast(self, stage: CanonicalStage) -> Shapes:
        """Names and shapes, without those of the encoders."""
        if stage.kind != "retrieval":
            return super().broadcast(stage)
        means: Shapes = {f"mean/{v}": (size,) for v, size in enumerate(self.sizes)}
        return means | {f"projection/{v}": (size, self.dimensions) for v, size in enumerate(self.sizes)}
