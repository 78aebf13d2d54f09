"""Few-shot linear probe: how much of a label one linear layer reads from frozen image features.

The model is frozen; one linear layer is trained on 1 % or 10 % of the labels, drawn by class, at least one of
each, in several draws. It reads the mean of an image's patches, or what pre-training itself reads. Features
are centred and scaled with all training images. The layer is the minimum of a convex function, so nothing
depends on the order of records, a step size or a start.

Simulation only: it pools records of several sites.

Source: the protocol is that of Zhang et al., "Contrastive Learning of Medical Visual Representations from
Paired Images and Text", MLHC 2022 (arXiv 2010.00747), section 4 (linear classification on 1 % and 10 %).
Data: PneumoniaMNIST of Yang et al., "MedMNIST v2", Scientific Data 10, 2023, CC BY 4.0.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from comparison import mean_of
from torch import nn

from secfed.algorithms.framework.randomness import torch_generator
from secfed.errors import ConfigError, DataError

if TYPE_CHECKING:
    from secfed.algorithms.models.dual_encoder import DualEncoder

DRAWS: Final = 5
_PENALTY: Final = 1.0  # the weight of the squared norm, against the sum of the losses
_BATCH: Final = 256
_LEAST_SCALE: Final = 1e-6
_FILE: Final = "pneumoniamnist.npz"


@dataclass(frozen=True, repr=False)
class Labelled:
    """Images [n, channels, size, size] standardised as the study's are, and their classes, [n] int64."""

    train: torch.Tensor
    train_y: torch.Tensor
    test: torch.Tensor
    test_y: torch.Tensor
    classes: int


def image_tokens(model: DualEncoder, images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Tokens [n, 1 + P, d] float32 of the frozen image encoder, of images [n, channels, size, size]."""
    return _in_batches(model, lambda some: model.image_encoder(some), images, device)


def path_features(model: DualEncoder, images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What pre-training reads of an image, [n, d]: its token after alignment, before the projection.

    The first token, as in the papers, or the mean of all, as the model's size says (``pool``). Pre-training
    shapes these; the mean of patches before alignment (:func:`pooled_features`) it reaches only through them.
    """
    return _in_batches(
        model, lambda some: model.image_align.features(model.image_encoder(some)), images, device
    )


def _in_batches(
    model: DualEncoder,
    of: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    device: torch.device,
) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found = [
            of(images[start : start + _BATCH].to(device)).to("cpu", torch.float32)
            for start in range(0, len(images), _BATCH)
        ]
    return torch.cat(found)


def pooled_features(model: DualEncoder, images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The mean of an image's patch tokens: [n, d] float32 on the CPU."""
    return image_tokens(model, images, device)[:, 1:].mean(dim=1)


def probe_findings(
    train: torch.Tensor,
    train_findings: torch.Tensor,
    test: torch.Tensor,
    test_findings: torch.Tensor,
    share: float,
    seed: int,
) -> dict[str, float]:
    """One binary probe per finding, of features [n, d] and findings [n, k] of several sites; their means."""
    if not train_findings.shape[1]:
        raise DataError("the data set has no findings to probe", remedy="leave this probe out")
    found = [
        probe_features(train, of, test, true, 2, share, seed)
        for of, true in zip(train_findings.T, test_findings.T, strict=True)
    ]
    return mean_of(found)


def probe_features(
    train: torch.Tensor,
    train_y: torch.Tensor,
    test: torch.Tensor,
    test_y: torch.Tensor,
    classes: int,
    share: float,
    seed: int,
) -> dict[str, float]:
    """:func:`probe` on features that are already there ([n, d], [n], [m, d], [m])."""
    if not len(test_y):
        raise DataError("there are no test images to probe", remedy="let the study hold pairs out")
    mean, scale = train.mean(dim=0), train.std(dim=0, correction=0).clamp_min(_LEAST_SCALE)
    train, test = ((part.double() - mean.double()) / scale.double() for part in (train, test))
    found = []
    for draw in range(DRAWS):
        rows = labelled_rows(train_y, classes, share, torch_generator(seed, "probe", draw))
        weight, bias = fit_linear(train[rows], train_y[rows], classes)
        found.append(_scores((test @ weight.T + bias).argmax(dim=1), test_y))
    return mean_of(found)


def labelled_rows(
    labels: torch.Tensor, classes: int, share: float, generator: torch.Generator
) -> torch.Tensor:
    """Rows of the labelled records: a share of each class, rounded, and at least one."""
    if not 0 < share <= 1:
        raise ConfigError(f"the share of labels must be above 0 and at most 1, not {share}")
    chosen = []
    for each in range(classes):
        rows = (labels == each).nonzero().flatten()
        if not len(rows):
            raise DataError(f"no training image has class {each}", remedy="probe a set that has every class")
        order = torch.randperm(len(rows), generator=generator)
        chosen.append(rows[order[: max(1, round(share * len(rows)))]])
    return torch.cat(chosen)


def fit_linear(
    features: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [C, d] and bias [C], float64: the minimum of the sum of cross entropies + 1/2 ||W||^2."""
    weight = torch.zeros(classes, features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=500, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
        solver.zero_grad()
        loss = nn.functional.cross_entropy(features @ weight.T + bias, labels, reduction="sum")
        value = loss + _PENALTY / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(objective)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def pneumonia(
    folder: Path, prepare: Callable[[torch.Tensor], torch.Tensor], image_shape: tuple[int, int, int]
) -> Labelled:
    """PneumoniaMNIST, as images of the study: 4708 for training, 624 for testing, two classes."""
    path = folder / _FILE
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            parts: Mapping[str, np.ndarray] = {
                name: stored[name] for name in ("train_images", "train_labels", "test_images", "test_labels")
            }
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{_FILE} cannot be read ({type(error).__name__})",
            remedy="set the environment variable SECFED_DATA to the folder that contains it",
        ) from None
    channels, size, _ = image_shape

    def images(name: str) -> torch.Tensor:
        grey = torch.from_numpy(parts[name].astype(np.float32) / 255.0)[:, None]
        larger = nn.functional.interpolate(
            grey, size=(size, size), mode="bilinear", align_corners=False, antialias=True
        )
        return prepare(larger).expand(-1, channels, -1, -1)

    def labels(name: str) -> torch.Tensor:
        return torch.from_numpy(parts[name].astype(np.int64)).flatten()

    return Labelled(
        images("train_images"), labels("train_labels"), images("test_images"), labels("test_labels"), 2
    )


def _scores(predicted: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    correct = (predicted == labels).double()
    of_class = [float(correct[labels == each].mean()) for each in labels.bincount().nonzero()]
    return {"accuracy": float(correct.mean()), "balanced_accuracy": math.fsum(of_class) / len(of_class)}
