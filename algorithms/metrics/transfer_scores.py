"""Scores of FedCola's three models: accuracy of classifiers, and retrieval between images and captions.

Retrieval is measured inside galleries of a public number of images with all their captions, because recall
depends on their number. An image is found if its best caption is one of its own, a caption if its best
image is its own; a tie with a strange one is a loss, so a model that embeds everything alike scores 0. A
site averages over its whole galleries; one with fewer images than a gallery makes one smaller gallery of
what it has. Which images meet in a gallery is a fixed permutation, the same in every round.

What leaves a site is its own score, inside a sum and on a grid, and a 1 that counts it, as in
:mod:`secfed.algorithms.metrics.retrieval`. A record without finite scores counts as wrong or not found.

Source of the protocol: Sun et al., ECCV 2024, arXiv 2404.12467 (recall at 1 in folds of 1,000 images and in
the whole gallery, summed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from secfed.algorithms.data.transfer.base import Kind, Samples
from secfed.algorithms.metrics.score_grid import mean_over_sites
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder
from secfed.errors import WrongState
from secfed.wire.layout import Field
from secfed.wire.parts import all_finite

COUNTED: Final = "score/counted"
METRICS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "image": ("image_accuracy",),
    "text": ("text_accuracy",),
    "pairs": ("image_to_text_recall_at_1", "text_to_image_recall_at_1"),
}
_ORDER_SEED: Final = 0  # public: the permutation only has to be the same everywhere
_ROWS: Final = 256  # rows that are embedded at a time


def fields(kind: Kind) -> tuple[Field, ...]:
    """The fields of one group's sum: scalars of 64 bits."""
    return tuple(Field(name, (), 1.0, 64) for name in (*(f"score/{name}" for name in METRICS[kind]), COUNTED))


def finish(kind: Kind, totals: Mapping[str, torch.Tensor | float]) -> dict[str, float]:
    """Metrics from the sums: each the mean over the sites that have held-out records; empty if none has."""
    return mean_over_sites(totals, COUNTED, {name: f"score/{name}" for name in METRICS[kind]})


def counts(kind: Kind, held_out: Samples) -> dict[str, float]:
    """What no model changes: whether a site has held-out records of its kind."""
    inputs = held_out.tokens if kind == "text" else held_out.images
    return {COUNTED: float(inputs is not None and len(inputs) > 0)}


def score(
    network: Classifier | PairEncoder, held_out: Samples, gallery: int, device: torch.device
) -> dict[str, float]:
    """What one site adds to the sum of its group's scores; only zeros without held-out records.

    Security: single-site values; they may leave only inside a protected sum.
    """
    kind = "pairs" if isinstance(network, PairEncoder) else network.kind
    counted = counts(kind, held_out)
    if not counted[COUNTED]:
        return dict.fromkeys((field.name for field in fields(kind)), 0.0)
    network.eval()
    shares: tuple[float, ...]
    if isinstance(network, PairEncoder):
        image = outputs(network.encode_images, held_out.images, device)
        text = outputs(network.encode_texts, held_out.tokens, device)
        shares = recall(image, text, required(held_out.sources), gallery)
    else:
        logits = outputs(network, held_out.images if kind == "image" else held_out.tokens, device)
        finite = torch.isfinite(logits).all(dim=1)
        all_finite(finite, "scores of held-out records")
        shares = (float((finite & (logits.argmax(dim=1) == held_out.labels)).to(torch.float64).mean()),)
    return {**{f"score/{name}": one for name, one in zip(METRICS[kind], shares, strict=True)}, **counted}


def outputs(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """What a network makes of records, without gradients, in parts that fit into memory: on the CPU."""
    with torch.no_grad():
        return torch.cat([model(rows.to(device)).cpu() for rows in torch.split(required(inputs), _ROWS)])


def required(part: torch.Tensor | None) -> torch.Tensor:
    """What the records of a kind have."""
    if part is None:  # check_transfer refuses such records
        raise WrongState("the site's records lack what its kind has")
    return part


def recall(
    image: torch.Tensor, text: torch.Tensor, sources: torch.Tensor, gallery: int
) -> tuple[float, float]:
    """Recall at 1, image to text and text to image: the means over galleries.

    ``image``, [m, d], and ``text``, [n, d], are features; ``sources``, [n] int64, says which image each
    caption describes. Fewer images than a gallery make one smaller gallery.
    """
    order = torch.randperm(len(image), generator=torch.Generator().manual_seed(_ORDER_SEED))
    whole = [order[at : at + gallery] for at in range(0, len(order) - gallery + 1, gallery)] or [order]
    shares = [_in_gallery(image, text, sources, rows) for rows in whole]
    return sum(one for one, _ in shares) / len(shares), sum(other for _, other in shares) / len(shares)


def _in_gallery(
    image: torch.Tensor, text: torch.Tensor, sources: torch.Tensor, rows: torch.Tensor
) -> tuple[float, float]:
    place = torch.full((len(image),), -1, dtype=torch.int64)
    place[rows] = torch.arange(len(rows))
    own = place[sources]
    captions = own >= 0
    if not bool(captions.any()):
        return 0.0, 0.0
    own, similarity = own[captions], text[captions].double() @ image[rows].double().T  # [captions, images]
    # The best of several that are not all numbers is none, and nothing is better than that or worse.
    finite = torch.isfinite(similarity)
    if not all_finite(finite, "similarities of held-out pairs"):
        similarity = torch.where(finite, similarity, torch.nan)
    at_own = torch.zeros(similarity.shape, dtype=torch.bool)
    at_own[torch.arange(len(own)), own] = True
    ours = torch.where(at_own, similarity, -torch.inf)
    strange = torch.where(at_own, -torch.inf, similarity)
    image_found = ours.amax(dim=0) > strange.amax(dim=0)  # an image without a caption finds none
    caption_found = ours.amax(dim=1) > strange.amax(dim=1)
    return float(image_found.double().mean()), float(caption_found.double().mean())
