"""What data sets of images and texts in files share: their options, and how records become tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import torch
from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.encoder_packages import resolved
from secfed.algorithms.data.image_cache import loaded_images
from secfed.algorithms.data.image_files import ImageSource, Preparation, normalised, stays_inside
from secfed.algorithms.data.tokens import FolderTokenizer, HashTokenizer, Tokenizer, WordTokenizer, read_words
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import ConfigError, DataError

Size = Annotated[int, Field(ge=8, le=1024, description="pixels per side, 8 to 1024")]
Channels = Annotated[Literal[1, 3], Field(description="1 (grey) or 3 (colour)")]
Normalise = Annotated[
    Literal["constants", "image"],
    Field(description='"constants" (data.mean and data.std) or "image" (each by its own mean and spread)'),
]
TextLength = Annotated[int, Field(ge=2, le=512, description="tokens per text, 2 to 512")]
DistinctTest = Annotated[bool, Field(description="true or false: hold out only one image of each text")]

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_TOKENIZER_KEYS: Final = {"hash": "buckets", "words": "words_file", "folder": "tokenizer_folder"}


def check_inside(key: str, name: str | None) -> None:
    """Refuse a name that would lead out of ``data.path``, the one place that a hospital has permitted."""
    if name is not None and not stays_inside(name):
        raise ConfigError(f"{key}: leads outside data.path", remedy="use a name inside, with forward slashes")


def check_file_name(key: str, site: SiteId) -> None:
    """Refuse a site whose name cannot be the name of its file."""
    if not _FILE_NAME.fullmatch(site):
        message = f"data.{key}: {site!r} cannot be part of a file name"
        raise ConfigError(message, remedy="use letters, digits, -, _ and .")


class PairsOptions(base.DataOptions):
    """How images and reports of files become tensors; the same at every site, and public.

    Every record is prepared by itself: with constants, or by its own mean and spread.
    """

    size: Size = 224
    channels: Channels = 1
    resize: Literal["pad", "crop", "stretch"] = Field(
        default="pad", description='"pad" (whole image, black borders), "crop" (the middle) or "stretch"'
    )
    normalise: Normalise = "constants"
    mean: tuple[float, ...] = Field(
        default=(0.5,),
        description="an array: what is subtracted from pixels in [0, 1], one per channel or one",
    )
    std: tuple[float, ...] = Field(
        default=(0.5,), description="an array: what pixels are then divided by, one per channel or one"
    )
    max_image_mib: int = Field(
        default=32, ge=1, le=1024, description="the largest image file, in MiB, 1 to 1024"
    )
    max_megapixels: int = Field(
        default=64, ge=1, le=150, description="the largest image, in millions of pixels"
    )
    tokenizer: Literal["hash", "words", "folder"] = Field(
        default="hash", description='"hash", "words" (data.words_file) or "folder" (data.tokenizer_folder)'
    )
    buckets: int = Field(default=4096, ge=16, le=1_000_000, description="buckets for words, 16 to 1000000")
    words_file: str | None = Field(
        default=None, description="a public list, one word a line, relative to the study"
    )
    tokenizer_folder: str | None = Field(
        default=None,
        description='a tokenizer\'s folder, relative to the study, or "package:minilm-l6-v2" for that of an '
        "installed encoder",
    )
    text_length: TextLength = 112
    share: float = Field(default=1.0, gt=0, le=1, description="the share of patients (or images) in use")
    distinct_test: DistinctTest = False

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for key, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels) or (key == "std" and min(numbers) <= 0):
                raise ConfigError(
                    f"data.{key}: needs one number for each of {self.channels} channels, or one for all",
                    remedy="for example mean = [0.5] and std = [0.5]; a spread is above 0",
                )
        for kind, key in _TOKENIZER_KEYS.items():
            if self.tokenizer != kind:
                why, remedy = f'with tokenizer = "{self.tokenizer}"', f'set data.tokenizer = "{kind}"'
                base.refuse_unused(self, [key], why, f"remove it, or {remedy}")
            elif getattr(self, key) is None:
                raise ConfigError(f"data.{key}: is missing", remedy=f'tokenizer = "{kind}" needs it')
        if self.normalise == "image":
            remedy = 'remove it, or set data.normalise = "constants"'
            base.refuse_unused(self, ["mean", "std"], 'with normalise = "image"', remedy)
        return self

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, self.size, self.size)

    def preparation(self) -> Preparation:
        """How an image file becomes a tensor."""
        return Preparation(
            size=self.size,
            channels=self.channels,
            resize=self.resize,
            constants=(self.mean, self.std) if self.normalise == "constants" else None,
            max_bytes=self.max_image_mib << 20,
            max_pixels=self.max_megapixels * 1_000_000,
        )

    def make_tokenizer(self, folder: Path) -> Tokenizer:
        """The tokenizer; paths are relative to ``folder``."""
        if self.tokenizer == "words":
            return WordTokenizer(read_words(folder / (self.words_file or "")), self.text_length)
        if self.tokenizer == "folder":
            return FolderTokenizer(resolved(self.tokenizer_folder or "", folder), self.text_length)
        return HashTokenizer(self.buckets, self.text_length)


class DividedOptions(PairsOptions):
    """Options of one pool of pairs, divided among simulated hospitals."""

    sites: base.SiteCount = 5
    alpha: base.BoundedAlpha = 1.0
    min_records: base.MinRecords = 10


class ImagesAndTexts(base.RecordByRecord):
    """A data set of images and texts in files: public facts, and files to tensors.

    A record's part (training or held out) follows from its own line or row. Where neighbouring data sets
    replace a record, what is hidden is a replacement that changes neither its part nor whether it is used.
    """

    def __init__(self, options: PairsOptions, tokenizer: Tokenizer) -> None:
        self.sites: tuple[SiteId, ...] = options.site_ids()
        self.image_shape: tuple[int, int, int] = options.image_shape
        self.text_length = tokenizer.length
        self.vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        self._rules = options.preparation()

    def _images(self, named: Sequence[tuple[str, str]], source: ImageSource) -> torch.Tensor:
        """Images by file name, and where it stands; at a hospital a blank one for one that cannot be used."""
        images = torch.empty((len(named), *self.image_shape), dtype=torch.float32)
        with closing(loaded_images(named, source, self._rules)) as loaded:
            for at, pixels in enumerate(loaded):
                if isinstance(pixels, DataError):
                    unfit(pixels)
                    images[at] = 0.0
                else:
                    images[at] = torch.from_numpy(normalised(pixels, self._rules))
        return images


def drawn(share: float, seed: int, purpose: str, who: str) -> bool:
    """Whether somebody (a patient, an image) is drawn, with this probability, by name and seed alone."""
    return derive_seed(seed, "image-text", purpose, who) < share * 2.0**63
