"""FedCola's server step as arithmetic: what each group's total is divided by.

With S_X the sum of w * (trained - received) over the sites X of one exchange, and n_X the sum of their w,
every model moves by S_X / D. Attention layers of one modality are summed once over all sites that hold it,
so that S and n of the image sum stand for image and pairs sites together.

===============  =====================  ===============================  ===============================
                 ``fedavg``             ``collaborative``                ``compensated``
===============  =====================  ===============================  ===============================
attention, I     n_I                    n_(I+P)                          n_(I+P)
attention, T     n_T                    n_(T+P)                          n_(T+P)
attention, P     n_P                    image n_(I+P), text n_(T+P)      n_I + n_T + n_P
all else         n of the own group     n of the own group               as attention of the same model
===============  =====================  ===============================  ===============================

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning", ECCV 2024, arXiv 2404.12467:
collaborative aggregation and its compensation. The first entry of the last row of the compensation matrix
is misprinted there (its row would sum to 2 n_T / (n_T + n_P)); what is used here sums to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from secfed.algorithms.data.transfer.base import Kind
from secfed.algorithms.models.transfer_options import Modality

Aggregation = Literal["fedavg", "collaborative", "compensated"]
MODALITIES: Final[tuple[Modality, ...]] = get_args(Modality)


@dataclass(frozen=True)
class Denominators:
    """What totals are divided by: attention layers by group and modality, the rest by the group's ``own``."""

    own: Mapping[Kind, float]
    attention: Mapping[tuple[Kind, Modality], float]


def denominators(
    own: Mapping[Kind, float], shared: Mapping[Modality, float], aggregation: Aggregation
) -> Denominators:
    """The column of the table above.

    ``own`` are n_I, n_T and n_P; a group without sites is left out. ``shared`` are n_(I+P) and n_(T+P), from
    the sums of attention layers (not read for ``fedavg``): a site lost between the two is in one of them
    only.
    """
    image, text, pairs = own.get("image", 0.0), own.get("text", 0.0), own["pairs"]
    if aggregation == "fedavg":
        both: dict[tuple[Kind, Modality], float] = {("pairs", "image"): pairs, ("pairs", "text"): pairs}
        return Denominators(own, {("image", "image"): image, ("text", "text"): text, **both})
    with_image, with_text = shared["image"], shared["text"]
    alone: dict[tuple[Kind, Modality], float] = {("image", "image"): with_image, ("text", "text"): with_text}
    if aggregation == "collaborative":
        return Denominators(own, {**alone, ("pairs", "image"): with_image, ("pairs", "text"): with_text})
    return Denominators(
        {"image": image + pairs, "text": text + pairs, "pairs": image + text + pairs},
        {**alone, ("pairs", "image"): with_image + text, ("pairs", "text"): with_text + image},
    )
