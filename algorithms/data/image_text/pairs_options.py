"""Options that all data sets of image-report pairs in files share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data.image_files import Preparation, stays_inside
from secfed.algorithms.data.pool import DataOptions, numbered_sites
from secfed.algorithms.data.tokens import FolderTokenizer, HashTokenizer, Tokenizer, WordTokenizer, read_words
from secfed.algorithms.framework.datasets import SiteId
from secfed.errors import ConfigError


def check_inside(key: str, name: str | None) -> None:
    """Refuse a name that would lead out of ``data.path``, the one place that a hospital has permitted.

    Raises:
        ConfigError: such a name.
    """
    if name is not None and not stays_inside(name):
        raise ConfigError(
            f"{key}: leads outside data.path", remedy="use a name inside data.path, with forward slashes"
        )


class PairsOptions(DataOptions):
    """How images and reports of files become tensors; the same at every site, and public.

    Every record is prepared by itself: with constants, or by its own mean and spread.
    """

    size: int = Field(default=224, ge=8, le=1024, description="pixels per side, 8 to 1024")
    channels: Literal[1, 3] = Field(default=1, description="1 (grey) or 3 (colour)")
    resize: Literal["pad", "crop", "stretch"] = Field(
        default="pad", description='"pad" (whole image, black borders), "crop" (the middle) or "stretch"'
    )
    normalise: Literal["constants", "image"] = Field(
        default="constants",
        description='"constants" (data.mean and data.std) or "image" (each by its own mean and spread)',
    )
    mean: tuple[float, ...] = Field(
        default=(0.5,),
        description="an array: what is subtracted from pixels in [0, 1], one per channel or one",
    )
    std: tuple[float, ...] = Field(
        default=(0.5,), description="an array: what pixels are then divided by, one per channel or one"
    )
    max_image_mib: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="the largest image file that is read, in MiB, 1 to 1024",
    )
    max_megapixels: int = Field(
        default=64,
        ge=1,
        le=150,
        description="the largest image that is decoded, in millions of pixels",
    )
    tokenizer: Literal["hash", "words", "folder"] = Field(
        default="hash",
        description='"hash", "words" (data.words_file) or "folder" (data.tokenizer_folder)',
    )
    buckets: int = Field(
        default=4096, ge=16, le=1_000_000, description="buckets of the hash tokenizer, 16 to 1000000"
    )
    words_file: str | None = Field(
        default=None, description="a public list of words, one on each line, relative to the study file"
    )
    tokenizer_folder: str | None = Field(
        default=None, description="a folder with a published tokenizer, relative to the study file"
    )
    text_length: int = Field(default=112, ge=2, le=512, description="tokens per report, 2 to 512")
    share: float = Field(
        default=1.0, gt=0, le=1, description="the share of the patients (or images) that is used, up to 1"
    )
    distinct_test: bool = Field(
        default=False, description="true or false: hold out only one image of each different report"
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for key, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels) or (key == "std" and min(numbers) <= 0):
                raise ConfigError(
                    f"data.{key}: needs one number for each of {self.channels} channels, or one for all",
                    remedy="for example mean = [0.5] and std = [0.5]; a spread is above 0",
                )
        for key, kind in (("buckets", "hash"), ("words_file", "words"), ("tokenizer_folder", "folder")):
            if key in self.model_fields_set and self.tokenizer != kind:
                raise ConfigError(
                    f'data.{key}: has no effect with tokenizer = "{self.tokenizer}"',
                    remedy=f'remove it, or set data.tokenizer = "{kind}"',
                )
            if self.tokenizer == kind and getattr(self, key) is None:
                raise ConfigError(f"data.{key}: is missing", remedy=f'tokenizer = "{kind}" needs it')
        if self.normalise == "image" and self.model_fields_set & {"mean", "std"}:
            raise ConfigError(
                'data.mean: data.mean and data.std have no effect with normalise = "image"',
                remedy='remove them, or set data.normalise = "constants"',
            )
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
        """The tokenizer; paths are relative to ``folder``.

        Raises:
            ConfigError: its files are missing or unusable.
        """
        if self.tokenizer == "words":
            return WordTokenizer(read_words(folder / (self.words_file or "")), self.text_length)
        if self.tokenizer == "folder":
            return FolderTokenizer(folder / (self.tokenizer_folder or ""), self.text_length)
        return HashTokenizer(self.buckets, self.text_length)


class DividedOptions(PairsOptions):
    """Options of one pool of pairs, divided among simulated hospitals."""

    sites: int = Field(default=5, ge=1, le=1000, description="the number of simulated hospitals, 1 to 1000")
    alpha: float = Field(
        default=1.0, ge=0.01, description="the Dirichlet concentration, 0.01 or more; smaller is more skewed"
    )
    min_records: int = Field(
        default=10, ge=1, description="the least number of training pairs of a simulated hospital"
    )

    def site_ids(self) -> tuple[SiteId, ...]:
        """``hospital-1`` and so on."""
        return numbered_sites(self.sites)
