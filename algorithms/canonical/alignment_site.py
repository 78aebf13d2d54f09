"""The site's half of canonical alignment: moments of its pairs, and how well its held-out pairs are found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import torch

from secfed.algorithms.canonical.alignment_plan import AlignmentPlan
from secfed.algorithms.canonical.pair_features import take_over
from secfed.algorithms.canonical.pair_scores import SHARES, finish, recalls
from secfed.algorithms.canonical.site import CanonicalSite, finite
from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.framework.server_state import MODEL, part_of
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.feature_maps import FeatureMap
from secfed.errors import WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import otherwise

_BATCH: Final = 64  # pairs that are encoded at a time where no bound rests on single ones


class AlignmentSite(CanonicalSite):
    """Runs inside one hospital; everything but its pairs comes with each broadcast, the encoders too.

    Security: under privacy every training pair is encoded by itself. In a batch the last digits of one row
    depend on which others there are, and whoever chooses the weights can make them as large as the row.
    """

    def __init__(
        self,
        plan: AlignmentPlan,
        maps: Sequence[FeatureMap],
        train: MultiviewSite,
        test: Pairs,
        network: DualEncoder | None,
    ) -> None:
        super().__init__(plan, maps, train)
        self._alignment, self._test, self._network = plan, test, network

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """How many pairs it has; whether any are held out."""
        if self._plan.stage(round_number, exchange).kind == "retrieval":
            return retrieval.counts(self._test)
        return super().settled(round_number, exchange)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """One sum's part."""
        if take_over(self._network, part_of(broadcast, MODEL)):
            self.__dict__.pop("_fixed", None)  # features of other encoders
        given = {name: value for name, value in broadcast.items() if not name.startswith(MODEL)}
        if self._plan.stage(round_number, exchange).kind != "retrieval":
            return super().contribute(round_number, exchange, given)
        found = otherwise(dict.fromkeys(SHARES, 0.0), self.recalls, given)
        return {**found, **self.settled(round_number, exchange)}

    @cached_property
    def _fixed(self) -> list[torch.Tensor]:
        images, tokens = self._data.views
        zeros = [torch.zeros(self._records, size, dtype=torch.float64) for size in self._plan.sizes]
        batch = _BATCH if self._plan.privacy is None else 1
        views = otherwise(zeros, self._described, images, tokens, batch)
        return [finite(view, "features of pairs") for view in views]

    def _described(
        self, images: torch.Tensor | None, tokens: torch.Tensor | None, batch: int
    ) -> list[torch.Tensor]:
        if images is None or tokens is None:
            raise WrongState("a pair has an image and a text")
        features = self._alignment.features
        return features.mapped(self._network, (images, tokens), self._maps, self._plan.seed, batch)

    def metrics(self, model: State) -> dict[str, float]:
        """The same of a model that comes with its encoders, as metrics."""
        take_over(self._network, part_of(model, MODEL))
        return finish({**self.recalls(model), **retrieval.counts(self._test)})

    def recalls(self, model: State) -> dict[str, float]:
        """How well its held-out pairs are found, by field name."""
        views = self._described(self._test.images, self._test.tokens, _BATCH)
        return recalls(views, model, self._alignment.evaluation_batch)
