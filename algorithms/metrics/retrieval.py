"""Text-to-image retrieval inside batches, as each site measures it on its own held-out pairs.

A report is scored against the images of its batch. Its rank is one plus the number of images that are
strictly more similar to it than its own, so a tie is not a loss. Recall at k is the share of ranks of at most
k; chance is k / B. The batch size is a public constant of the study, because recall depends on it.

A site averages over its complete batches; the last, incomplete one is left out. A site with less than one
batch makes one smaller batch of what it has, which is an easier task: with five pairs or fewer its recall
at 5 is 1. Batches are drawn once, by a fixed permutation, so they are the same in every round and do not
depend on how the files were sorted (slices of one examination are often neighbours and share a report).

A report whose similarity to its own image is NaN is never found, and an image whose similarity is NaN counts
as more similar; a batch whose loss is none counts with the largest that counts. So no model makes
evaluation fail, and the count of sites depends on no record.

Reports repeat: of several images with one report only one can be found first. A site's *ceiling* is the
recall at 1 that its batches leave possible, and its relative recall is its recall divided by that; a study
may also measure on one pair of every report.

What leaves a site is its own recall, inside a sum, and a 1 that counts it: the metric is the mean over
sites, not over pairs, and no number of records leaves. It leaves on a grid, for a sum of small fractions
could be taken apart (:mod:`secfed.algorithms.metrics.score_grid`).

Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021
(batch-wise similarity); InfoNCE: van den Oord, Li, Vinyals, arXiv 1807.03748, equation 4, in both directions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.metrics.score_grid import capped, mean_over_sites
from secfed.errors import RangeError
from secfed.wire.layout import Field
from secfed.wire.parts import all_finite

if TYPE_CHECKING:
    from secfed.algorithms.models.dual_encoder import DualEncoder

COUNTED: Final = "eval/counted"
METRICS: Final = ("recall_at_1", "recall_at_5", "infonce")
CEILINGS: Final = ("ceiling_at_1", "relative_recall_at_1")
SHARES: Final = tuple(  # fractions of a site's own number of pairs
    f"eval/{name}" for name in ("recall_at_1", "recall_at_5", *CEILINGS)
)

_BOUNDS: Final = {"eval/recall_at_1": 1.0, "eval/recall_at_5": 1.0, "eval/infonce": 2.0**20, COUNTED: 1.0}
_BITS: Final = 64
_ORDER_SEED: Final = 0  # public: the permutation only has to be the same everywhere
_NEVER: Final = 2**31  # the rank of what is not found


def fields(*, ceiling: bool = False) -> tuple[Field, ...]:
    """The fields that evaluation adds to a layout: four scalars of 64 bits, and two more with ceilings."""
    bounds = _BOUNDS | (dict.fromkeys((f"eval/{name}" for name in CEILINGS), 1.0) if ceiling else {})
    return tuple(Field(name, (), bound, _BITS) for name, bound in bounds.items())


def ranks(image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Rank of each report's own image among one batch's, from [B, d] embeddings row by row: [B], from 1."""
    if image.dim() != 2 or image.shape != text.shape:
        message = f"embeddings have shapes {tuple(image.shape)} and {tuple(text.shape)}"
        raise RangeError(message, remedy="give [B, d] of both, row for row")
    image, text = (part.detach().to(device="cpu", dtype=torch.float64) for part in (image, text))
    similarity = text @ image.T
    own = similarity.diagonal()
    more = ~(similarity <= own[:, None])  # NaN is not less
    finite = torch.isfinite(own)
    all_finite(finite, "similarities of held-out pairs")
    return torch.where(finite, 1 + more.sum(dim=1), _NEVER)


def recall(
    image: torch.Tensor, text: torch.Tensor, batch: int, at: Sequence[int] = (1, 5)
) -> dict[str, float]:
    """``recall_at_1`` and so on, text to image, over consecutive batches; empty without pairs."""
    parts = [ranks(image[rows], text[rows]) for rows in batches(len(image), batch)]
    if not parts:
        return {}
    rank = torch.cat(parts)
    return {f"recall_at_{k}": float((rank <= k).to(torch.float64).mean()) for k in at}


def batches(pairs: int, batch: int) -> Iterator[slice]:
    """The rows of each complete batch; of one smaller batch where there is no complete one."""
    if 0 < pairs < batch:
        yield slice(0, pairs)
    for start in range(0, pairs - batch + 1, batch):
        yield slice(start, start + batch)


def drawn_batches(pairs: int, batch: int, reports: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The positions in each batch that a site is evaluated on: the same in every round.

    With the [pairs, L] tokens of their reports, only the first drawn pair of every report.
    """
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(_ORDER_SEED))
    if reports is not None:
        first: dict[tuple[int, ...], int] = {}
        for row in order.tolist():
            first.setdefault(tuple(reports[row].tolist()), row)
        order = torch.tensor(list(first.values()), dtype=torch.int64)
    return [order[part] for part in batches(len(order), batch)]


def ceiling_at_1(images: torch.Tensor, reports: torch.Tensor) -> float:
    """The largest recall at 1 that a batch leaves possible; equal pairs are found together."""
    alike: dict[bytes, Counter[bytes]] = defaultdict(Counter)
    for image, report in zip(images.cpu().numpy(), reports.cpu().numpy(), strict=True):
        alike[report.tobytes()][image.tobytes()] += 1
    return sum(max(copies.values()) for copies in alike.values()) / max(len(images), 1)


def evaluate_site(
    model: DualEncoder,
    pairs: Pairs,
    batch: int,
    device: torch.device,
    *,
    ceiling: bool = False,
    distinct: bool = False,
) -> dict[str, float]:
    """What one site adds to the sums: its own recall and InfoNCE on its held-out pairs, by field name.

    Security: single-site values; they may leave only inside a protected sum.
    """
    sums = {field.name: 0.0 for field in fields(ceiling=ceiling)}
    rows = drawn_batches(len(pairs), batch, pairs.tokens if distinct else None)
    model.eval()
    for part in rows:  # all of one size, so their mean is the mean over pairs
        with torch.no_grad():
            aligned = model(pairs.images[part].to(device), pairs.tokens[part].to(device))
            infonce = float(capped(model.objective(aligned).infonce.double()))
        shares = recall(aligned.image, aligned.text, len(part))
        found = {**shares, "infonce": infonce}
        if ceiling:
            found["ceiling_at_1"] = ceiling_at_1(pairs.images[part], pairs.tokens[part])
        for name, value in found.items():
            sums[f"eval/{name}"] += value / len(rows)
    if ceiling and rows:
        sums["eval/relative_recall_at_1"] = sums["eval/recall_at_1"] / sums["eval/ceiling_at_1"]
    return {**sums, **counts(pairs)}


def counts(pairs: Pairs) -> dict[str, float]:
    """What no model changes: whether a site has held-out pairs."""
    return {COUNTED: float(len(pairs) > 0)}


def finish(totals: Mapping[str, torch.Tensor | float]) -> dict[str, float]:
    """Every metric that the totals hold, each the mean over sites that have held-out pairs."""
    names = (*METRICS, *(name for name in CEILINGS if f"eval/{name}" in totals))
    return mean_over_sites(totals, COUNTED, {name: f"eval/{name}" for name in names})
