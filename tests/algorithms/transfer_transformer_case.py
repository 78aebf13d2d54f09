"""Models of transfer learning between modalities, small enough for tests, and records for them."""

from __future__ import annotations

import torch

from secfed.algorithms.models.transfer_options import (
    Modality,
    ModelKind,
    TransferFacts,
    TransferTransformerOptions,
)
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder, build
from secfed.config.schema import checked
from secfed.wire.layout import State

torch.set_num_threads(1)

FACTS = TransferFacts(image_shape=(3, 12, 12), text_length=9, vocabulary=20, image_classes=5, text_classes=4)
KINDS: list[ModelKind] = ["image", "text", "pairs"]
MODALITIES: list[Modality] = ["image", "text"]


def options(**more: object) -> TransferTransformerOptions:
    table = {"name": "transfer-transformer", "width": 16, "depth": 2, "heads": 2, **more}
    return checked(TransferTransformerOptions, table, "model")


def model(kind: ModelKind, **more: object) -> Classifier | PairEncoder:
    torch.manual_seed(0)
    return build(kind, FACTS, options(**more))


def classifier(kind: Modality, **more: object) -> Classifier:
    torch.manual_seed(0)
    return Classifier(kind, FACTS, options(**more))


def images(records: int = 6) -> torch.Tensor:
    return torch.randn(records, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def texts(records: int = 6) -> torch.Tensor:
    tokens = torch.randint(2, 20, (records, 9), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = 1
    for row in range(records):
        tokens[row, 4 + row % 6 :] = 0
    return tokens


def inputs(kind: Modality) -> torch.Tensor:
    return images() if kind == "image" else texts()


def blocks(state: State, kind: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{kind}."): value
        for name, value in state.items()
        if name.startswith(f"{kind}.blocks.")
    }
