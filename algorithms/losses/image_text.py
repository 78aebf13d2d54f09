"""Objectives of image-report pre-training: symmetric InfoNCE, ConVIRT, and what GLoRIA and MGCA share.

An objective is a module: it takes the embeddings of a batch of pairs and gives an ``ObjectiveValue``, the
number that training minimises and beside it the plain InfoNCE of the whole-image and whole-report
embeddings. The second is the same formula at the same temperature for every objective, so client weights
made from it do not depend on which objective a study trains.

All of them compare every pair with the other pairs of the batch, and do not decompose over records.

Source: van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018,
equation (4); Zhang, Jiang, Miura, Manning, Langlotz, "Contrastive Learning of Medical Visual
Representations from Paired Images and Text" (ConVIRT), MLHC 2022, equations (2) to (4), with equal weights
of the two directions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.objective import Objective
from secfed.errors import ConfigError


class ConVirt(Objective):
    """ConVIRT, or CLIP: the symmetric InfoNCE and nothing else."""

    def total(self, aligned: Aligned, plain: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """``plain`` itself."""
        return plain


def make_objective(
    name: str,
    *,
    temperature: float,
    embedding: int,
    prototypes: int,
    continuations: Iterable[int] = (),
    **more: Any,
) -> Objective:
    """The objective that a study names: "convirt", "gloria" or "mgca".

    Its parameters, if it has any, are drawn from torch's global generator, as those of layers are.
    ``prototypes`` are for "mgca", ``continuations`` (token ids that continue the word before them) for
    "gloria"; ``more`` are further arguments of that objective's class.
    """
    from secfed.algorithms.losses.gloria import Gloria
    from secfed.algorithms.losses.mgca import Mgca

    match name:
        case "convirt":
            return ConVirt(temperature, **more)
        case "gloria":
            return Gloria(temperature, continuations=continuations, **more)
        case "mgca":
            return Mgca(temperature, embedding=embedding, prototypes=prototypes, **more)
        case _:
            message = f"model.objective: there is no {name!r}"
            raise ConfigError(message, remedy='use "convirt", "gloria" or "mgca"')
