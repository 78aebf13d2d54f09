"""How one more round at a single site distorts the alignment of every site's pairs.

    D[i, j] = meancos(server model, test pairs of j) - meancos(server model retrained at i, test pairs of j)

with meancos the mean cosine between the two embeddings of a pair. A large positive entry means that
training at i alone pulls apart the pairs of j: the drift that FedRGB and FedDRA are made against. The gain
in mean cosine from round to round is a measure of convergence.

Simulation only: it takes the held-out pairs of all sites and models that never leave a site.

Source: the drift probe of the FedRGB paper (distortion of alignment after retraining at one site).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import write_parameters
from secfed.errors import ConfigError, DataError
from secfed.wire.layout import State

if TYPE_CHECKING:
    from secfed.algorithms.models.dual_encoder import DualEncoder

_BATCH: Final = 256


def mean_cosine(model: DualEncoder, pairs: Pairs, device: torch.device) -> float:
    """Mean cosine between the embeddings of a pair, -1 to 1. Security: a single site's; simulation only."""
    if not len(pairs):
        raise DataError("there are no pairs to compare", remedy="let the study hold pairs out")
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(pairs), _BATCH):
            rows = slice(start, start + _BATCH)
            aligned = model(pairs.images[rows].to(device), pairs.tokens[rows].to(device))
            cosines = torch.nn.functional.cosine_similarity(aligned.image, aligned.text, dim=1)
            total += float(cosines.double().sum())
    return total / len(pairs)


def distortion_matrix(
    model: DualEncoder,
    server: State,
    retrained: Mapping[SiteId, State],
    tests: Mapping[SiteId, Pairs],
    device: torch.device,
) -> torch.Tensor:
    """D[i, j] float64, for the sites in the order of ``retrained`` (rows) and ``tests`` (columns)."""
    if not retrained or not tests:
        raise ConfigError("a distortion matrix needs at least one site", remedy="retrain at every site")

    def cosines(state: State) -> torch.Tensor:
        write_parameters(model, state)
        found = [mean_cosine(model, pairs, device) for pairs in tests.values()]
        return torch.tensor(found, dtype=torch.float64)

    before = cosines(server)
    return torch.stack([before - cosines(state) for state in retrained.values()])
