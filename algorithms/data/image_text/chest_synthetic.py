"""``chest-synthetic``: SYNTHETIC pairs of chest images and reports, made on the spot; no patient is in them.

Image and report are both drawn from what a record shows: findings, side, severity, heart size, device. Sites
differ in which findings their patients have (Dirichlet), and in how images and reports look (a style each).
A site makes its own records only, from the study's seed and its own name. Preparation is public: subtract the
mean of 200 images from a fixed seed, divide by the image's spread. Without it a small encoder hardly learns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.image_files import FLAT
from secfed.algorithms.data.image_text.base import ImageTextSite, Pairs, check_image_text
from secfed.algorithms.data.image_text.chest_images import Images, render, site_style
from secfed.algorithms.data.image_text.chest_reports import FINDINGS, LONGEST, draw_latents, reports, words
from secfed.algorithms.data.partition import class_shares
from secfed.algorithms.data.tokens import WordTokenizer
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.config.schema import LATER
from secfed.errors import ConfigError

COMBINATIONS: Final = 1 << len(FINDINGS)
_PREVALENCE: Final = 0.28  # of each finding
_NORMAL: Final = 1.5  # how much more often than that there is no finding
_TEMPLATE_IMAGES: Final = 200
_LEAST_SHARE: Final = 1e-12
_DRAWS: Final = 100


class ChestSyntheticOptions(base.DataOptions):
    """Options of ``chest-synthetic``, a synthetic data set."""

    test_fraction: base.OfficialDivision = 0.0
    sites: int = Field(default=5, ge=1, le=100, description="the number of simulated hospitals, 1 to 100")
    train: int | tuple[int, ...] = Field(
        default=1500, description="training pairs of every site, or an array with one number per site"
    )
    test: int | tuple[int, ...] = Field(
        default=256, description="held-out pairs of every site, or an array with one number per site"
    )
    size: int = Field(default=32, ge=16, le=512, description="pixels per side, 16 to 512")
    partition: Literal["dirichlet", "iid"] = Field(
        default="dirichlet",
        description='"dirichlet" (sites differ in findings and style) or "iid" (all sites mix all styles)',
    )
    alpha: base.BoundedAlpha = 1.0
    test_mixture: Literal["own", "common"] = Field(
        default="own",
        json_schema_extra=LATER,
        description='held-out pairs: "own" (findings as often as in the site\'s training pairs) or "common" '
        "(as often at every site)",
    )
    style: float = Field(default=0.7, ge=0, le=1, description="how much the sites' machines differ, 0 to 1")

    @model_validator(mode="after")
    def _check(self) -> Self:
        base.refuse_unused_alpha(self, self.partition)
        for key, counts, least in (("train", self.train, 1), ("test", self.test, 0)):
            if isinstance(counts, tuple) and len(counts) != self.sites:
                message = f"data.{key}: has {len(counts)} numbers for {self.sites} sites"
                raise ConfigError(message, remedy="give one number for all sites, or one for each")
            listed = counts if isinstance(counts, tuple) else (counts,)
            if not all(least <= count <= 1_000_000 for count in listed):
                message = f"data.{key}: a site cannot have so many pairs"
                raise ConfigError(message, remedy=f"use {least} to 1000000")
        return self


class ChestSynthetic(base.RecordByRecord):
    """Synthetic image-report pairs of simulated hospitals; another seed, other records and division."""

    def __init__(self, options: ChestSyntheticOptions, seed: int) -> None:
        self.sites: tuple[SiteId, ...] = options.site_ids()
        self.image_shape: tuple[int, int, int] = (1, options.size, options.size)
        self.findings: tuple[str, ...] = FINDINGS
        self._tokenizer = WordTokenizer(words(), LONGEST)
        self.text_length = self._tokenizer.length
        self.vocabulary = self._tokenizer.vocabulary
        self._options, self._seed = options, seed
        # How often each combination of findings is drawn at each site: [sites, 32], rows sum to 1.
        self.mixtures = _mixtures(options, seed)

    def site(self, site_id: SiteId) -> ImageTextSite:
        """One site's synthetic pairs."""
        index = base.site_index(self.sites, site_id)
        options = self._options
        train, test = (
            self._pairs(
                counts if isinstance(counts, int) else counts[index],
                self.mixtures[index],
                self._styles(index),
                numpy_generator(self._seed, "chest-synthetic", site_id, part),
            )
            for part, counts in (("train", options.train), ("test", options.test))
        )
        if options.test_mixture == "common":
            test = self.common(site_id)
        return check_image_text(site_id, ImageTextSite(train, test), self)

    def common(self, site_id: SiteId) -> Pairs:
        """Held-out pairs in one site's style whose findings have their usual frequencies, equal at all sites.

        Recall on them differs between sites by the style and by the model, and not by which reports repeat.
        """
        index = base.site_index(self.sites, site_id)
        test = self._options.test
        rng = numpy_generator(self._seed, "chest-synthetic", site_id, "common")
        return self._pairs(test if isinstance(test, int) else test[index], prior(), self._styles(index), rng)

    def _styles(self, index: int) -> tuple[int, ...]:
        """Whose styles a site's pairs have: its own, or with an even partition those of all."""
        return tuple(range(self._options.sites)) if self._options.partition == "iid" else (index,)

    def unseen(self, pairs: int = 256, *, site: int | None = None) -> Pairs:
        """Synthetic pairs in the style of a hospital outside the study, to test how a model carries over.

        The findings have their usual frequencies, as in no site's own mixture. ``site`` is the position of
        the style; by default the first that no site of the study has.
        """
        outside = self._options.sites if site is None else site
        rng = numpy_generator(self._seed, "chest-synthetic", "unseen", outside)
        return self._pairs(pairs, prior(), (outside,), rng)

    def _pairs(
        self, count: int, mixture: NDArray[np.float64], dialects: tuple[int, ...], rng: np.random.Generator
    ) -> Pairs:
        drawn = rng.choice(COMBINATIONS, size=count, p=mixture).astype(np.int64)
        latents = draw_latents(drawn, rng)
        which = rng.integers(len(dialects), size=count)
        styles = tuple(site_style(dialect, self._options.style) for dialect in dialects)
        images, masks = render(latents, self._options.size, styles, which, rng)
        texts = reports(latents, np.array(dialects)[which], rng)
        return Pairs(
            images=torch.from_numpy(prepared(images)),
            tokens=self._tokenizer.encode(texts),
            findings=torch.from_numpy(latents.present.astype(np.int64)),
            masks=torch.from_numpy(masks),
        )


def prior() -> NDArray[np.float64]:
    """How often each of the 32 combinations of findings occurs over all hospitals: [32], sums to 1.

    Each finding has the same prevalence, independently; "no finding" is made more frequent.
    """
    present = (np.arange(COMBINATIONS)[:, np.newaxis] >> np.arange(len(FINDINGS))) % 2
    chances: NDArray[np.float64] = np.where(present == 1, _PREVALENCE, 1 - _PREVALENCE).prod(axis=1)
    chances[0] *= _NORMAL
    return np.asarray(chances / chances.sum())


def prepared(images: Images) -> Images:
    """Images ([n, size, size] in [0, 1]) less the template, by their own spread: [n, 1, size, size]."""
    rest = images - template(images.shape[1])
    spread = rest.std(axis=(1, 2), keepdims=True)
    return np.ascontiguousarray((rest / np.maximum(spread, FLAT))[:, np.newaxis], dtype=np.float32)


@lru_cache(maxsize=8)
def template(size: int) -> Images:
    """The public template: [size, size] float32 in [0, 1], read-only."""
    rng = numpy_generator(0, "chest-synthetic template")
    latents = draw_latents(rng.choice(COMBINATIONS, size=_TEMPLATE_IMAGES, p=prior()).astype(np.int64), rng)
    neutral = (site_style(0, 0.0),)
    images, _ = render(latents, size, neutral, np.zeros(_TEMPLATE_IMAGES, dtype=np.int64), rng)
    mean: Images = images.mean(axis=0)
    mean.setflags(write=False)
    return mean


def _mixtures(options: ChestSyntheticOptions, seed: int) -> NDArray[np.float64]:
    """The division of the prior among the sites, as one distribution per site: [sites, 32]."""
    if options.partition == "iid":
        return np.tile(prior(), (options.sites, 1))
    rng = numpy_generator(seed, "chest-synthetic", "partition")
    for _ in range(_DRAWS):
        parts = (prior()[:, np.newaxis] * class_shares(COMBINATIONS, options.sites, options.alpha, rng)).T
        if parts.sum(axis=1).min() > _LEAST_SHARE:
            return np.asarray(parts / parts.sum(axis=1, keepdims=True))
    message = f"data.alpha: {options.alpha} leaves some of {options.sites} sites without patients"
    raise ConfigError(message, remedy="raise data.alpha, or lower data.sites")
