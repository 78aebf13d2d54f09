"""A vision-language study that takes well under a second: a few hundred parameters, a few dozen pairs."""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.data.image_text.base import ImageTextSite, Pairs
from secfed.algorithms.losses.features import Aligned, Features
from secfed.algorithms.losses.image_text import make_objective
from secfed.study.study import Study
from secfed.wire.layout import Summands
from tests.algorithms import loop
from tests.algorithms.loop import changed

torch.set_num_threads(1)

WIDTH, CONCEPTS, LENGTH = 6, 8, 5

TINY = """
[study]
name = "vlp-tiny"
rounds = 3
seed = 5
[algorithm]
name = "feddra"
align_steps = 2
joint_steps = 3
batch_size = 8
learning_rate = 0.02
loss_batches = 2
loss_batch_size = 8
evaluation_batch = 8
[model]
name = "tests.algorithms.vlp_case:toy"
[data]
name = "tests.algorithms.vlp_case:pairs"
[protection]
name = "plain"
threshold = 4
colluders = 1
"""


class Toy(nn.Module):
    """The interface of ``DualEncoder``, with linear encoders and alignment modules."""

    def __init__(self, image_shape: tuple[int, int, int], vocabulary: int) -> None:
        super().__init__()
        self.image_encoder = nn.Linear(image_shape[1] * image_shape[2], WIDTH)
        self.text_encoder = nn.Embedding(vocabulary, WIDTH)
        self.image_align, self.text_align = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.objective = make_objective("convirt", temperature=0.2, embedding=WIDTH, prototypes=2)
        names = [name for name, _ in self.named_parameters()]
        self.encoder_names = tuple(name for name in names if "encoder" in name)
        self.align_names = tuple(name for name in names if "align" in name)

    def encode(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        image = torch.tanh(self.image_encoder(images.flatten(1)))[:, None]
        return Features(image, self.text_encoder(tokens), tokens != 0)

    def align(self, features: Features, tokens: torch.Tensor | None = None) -> Aligned:
        words = features.words[..., None]
        text = (features.text * words).sum(1) / words.sum(1)
        image = nn.functional.normalize(self.image_align(features.image[:, 0]), dim=1)
        text = nn.functional.normalize(self.text_align(text), dim=1)
        nothing = image.new_zeros(len(image), 0, WIDTH)
        return Aligned(image, text, nothing, nothing, features.words[:, :0], tokens=tokens)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> Aligned:
        return self.align(self.encode(images, tokens), tokens)


def toy(image_shape: tuple[int, int, int], text_shape: tuple[int, int]) -> Toy:
    """The factory of ``[model]``."""
    return Toy(image_shape, text_shape[1])


class ToyPairs:
    """Every concept has an image and two words; every site has its own mixture of concepts and its noise."""

    image_shape = (1, 4, 4)
    text_length = LENGTH
    vocabulary = 2 * CONCEPTS + 1
    findings: tuple[str, ...] = ("even",)

    def __init__(self, sites: int, train: int, test: int, skew: float) -> None:
        self.sites = tuple(f"hospital-{at + 1}" for at in range(sites))
        self._train, self._test, self._skew = train, test, skew

    def site(self, site_id: str) -> ImageTextSite:
        at = self.sites.index(site_id)
        count = self._train + self._test
        generator = torch.Generator().manual_seed(100 + at)
        images = torch.randn(CONCEPTS, *self.image_shape, generator=torch.Generator().manual_seed(9))
        share = torch.ones(CONCEPTS)
        share[: 1 + at % CONCEPTS] += self._skew
        concept = torch.multinomial(share, count, replacement=True, generator=generator)
        noise = torch.randn(count, *self.image_shape, generator=generator) * (0.2 + 0.2 * at)
        tokens = torch.zeros(count, LENGTH, dtype=torch.int64)
        tokens[:, 0] = 1 + 2 * concept
        tokens[:, 1] = 2 + 2 * concept
        pairs = Pairs(images[concept] + noise, tokens, (concept % 2 == 0).long()[:, None])
        rows = torch.arange(count)
        return ImageTextSite(pairs.take(rows[: self._train]), pairs.take(rows[self._train :]))


def pairs(sites: int = 5, train: int = 24, test: int = 16, skew: float = 4.0) -> ToyPairs:
    """The factory of ``[data]``."""
    return ToyPairs(sites, train, test, skew)


def study(**changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__rho``."""
    return changed(TINY, changes)


# What replaces FedDRA's [algorithm] for the baselines: the same training, without its keys.
AVERAGING = {
    "name": "vlp-fedavg",
    "local_steps": 3,
    "batch_size": 8,
    "learning_rate": 0.02,
    "evaluation_batch": 8,
}


class Rounds(loop.Rounds):
    """A study with robust weights, exchange by exchange."""

    @property
    def weights(self) -> dict[str, float]:
        return {site: program.weight.weight for site, program in self.programs.items()}


def updates(summands: Summands) -> dict[str, torch.Tensor]:
    """Updates among summands, by parameter."""
    return {name.removeprefix("update/"): v for name, v in summands.items() if name.startswith("update/")}
