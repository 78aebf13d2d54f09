"""Options of ``scenes``, ``flickr-transfer`` and ``transfer-files``: image, text and pairs sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data.base import BoundedAlpha, DataOptions, MinRecords, OfficialDivision, refuse_unused
from secfed.algorithms.data.images_and_texts import Channels, PairsOptions, Size, TextLength, check_file_name
from secfed.algorithms.data.tokens import Tokenizer
from secfed.algorithms.data.transfer.base import Kind
from secfed.algorithms.framework.datasets import SiteId
from secfed.config.schema import LATER
from secfed.errors import ConfigError

_KINDS: Final[Mapping[str, Kind]] = {"image_sites": "image", "text_sites": "text", "pair_sites": "pairs"}
_SETS: Final = 2  # of one kind, at most
_NO_SITES: Final = 1  # classes of a kind that the study has no sites of: a classifier of none cannot be built


class KindsOptions(DataOptions):
    """Sites of three kinds, each listed or a number of simulated ones: ``image-1`` and so on."""

    @property
    def kind_of(self) -> dict[SiteId, Kind]:
        """Every site in order, and what it holds: image sites, then text sites, then pairs sites."""
        of_kind: dict[SiteId, Kind] = {}
        for key, kind in _KINDS.items():
            sites: int | tuple[SiteId, ...] = getattr(self, key)
            if isinstance(sites, int):
                sites = tuple(f"{kind}-{number}" for number in range(1, sites + 1))
            of_kind |= dict.fromkeys(sites, kind)
        return of_kind

    def site_ids(self) -> tuple[SiteId, ...]:
        """All of them."""
        return tuple(self.kind_of)


class GroupOptions(KindsOptions):
    """How many simulated sites of each kind there are."""

    image_sites: int = Field(default=6, ge=0, le=1000, description="the number of image sites, 0 to 1000")
    text_sites: int = Field(default=6, ge=0, le=1000, description="the number of text sites, 0 to 1000")
    pair_sites: int = Field(default=4, ge=1, le=1000, description="the number of pairs sites, 1 to 1000")


class ScenesOptions(GroupOptions):
    """Options of ``scenes``, a synthetic data set."""

    test_fraction: OfficialDivision = 0.0
    records: int = Field(
        default=400, ge=1, le=1_000_000, description="about so many records a site trains on"
    )
    pairs: int = Field(default=200, ge=1, le=1_000_000, description="training pairs of a pairs site, about")
    uneven: float = Field(
        default=0.4, ge=0, le=0.9, description="how far sites' sizes lie from that, 0 to 0.9"
    )
    images: Literal["scenes", "stripes"] = Field(
        default="scenes",
        json_schema_extra=LATER,
        description='what image sites hold: "scenes" as sites with pairs, or "stripes", of another domain',
    )
    texts: Literal["scenes", "lists"] = Field(
        default="scenes",
        json_schema_extra=LATER,
        description='what text sites hold: descriptions of "scenes", or "lists" of words, of another domain',
    )
    test_records: int = Field(default=100, ge=0, le=1_000_000, description="records that a site holds out")
    test_pairs: int = Field(default=250, ge=0, le=1_000_000, description="held-out pairs of a pairs site")


class _ArrayOptions(PairsOptions):
    """What both data sets of files share: images of any size, texts of any words, and no shares of them."""

    size: Size = 32
    channels: Channels = 3
    text_length: TextLength = 40

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        unused = ("share", "distinct_test", "max_image_mib", "max_megapixels")
        refuse_unused(self, unused, f"on {self.name}")
        return self

    def first_token_tokenizer(self, folder: Path) -> Tokenizer:
        """The tokenizer, checked to begin every text with the same token: the model reads a text off that.

        ``ConfigError``: its files are missing or unusable, or texts begin with their first word.
        """
        tokenizer = self.make_tokenizer(folder)
        first = tokenizer.encode(["one", "two"])[:, 0]
        if int(first[0]) != int(first[1]):
            message = "data.tokenizer_folder: this tokenizer puts no [CLS] token before a text"
            raise ConfigError(message, remedy="use a tokenizer of the BERT family")
        return tokenizer


class FlickrTransferOptions(GroupOptions, _ArrayOptions):
    """Options of ``flickr-transfer``: published sets, divided among simulated sites."""

    path: str | None = Field(
        default=None, description="the folder of files, relative to the study, or SECFED_DATA"
    )
    images: Literal["cifar-100", "organcmnist"] = Field(
        default="cifar-100",
        json_schema_extra=LATER,
        description='what image sites hold: "cifar-100" (30 of its classes) or "organcmnist" (11 organs)',
    )
    captions: Literal["flickr8k", "coco"] = Field(
        default="flickr8k",
        json_schema_extra=LATER,
        description='what pairs sites hold: "flickr8k" or "coco" (the folder coco, as published)',
    )
    texts: Literal["ag-news", "med-abstracts"] = Field(
        default="ag-news", description='what text sites hold: "ag-news" or "med-abstracts"'
    )
    more_images: Literal["cifar-100", "organcmnist"] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="another of them, which the second half of the image sites holds instead; its classes "
        "follow those of the first",
    )
    more_texts: Literal["ag-news", "med-abstracts"] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="another of them, which the second half of the text sites holds instead, likewise",
    )
    test_fraction: float = Field(
        default=0.2,
        ge=0,
        le=0.9,
        description="the share of held-out texts, 0 to 0.9; images and pairs have an official division",
    )
    captions_per_image: int = Field(default=5, ge=1, le=5, description="captions of an image in use, 1 to 5")
    alpha: BoundedAlpha = 0.5
    min_records: MinRecords = 10

    @model_validator(mode="after")
    def _check_square(self) -> Self:
        refuse_unused(self, ["resize"], "on square images")
        for key, first, sites in (
            ("more_images", self.images, self.image_sites),
            ("more_texts", self.texts, self.text_sites),
        ):
            more = getattr(self, key)
            if more == first:
                message = f'data.{key}: is "{first}", as data.{key.removeprefix("more_")}'
                raise ConfigError(message, remedy="name another set, or remove it")
            if more is not None and sites < _SETS:
                message = (
                    f"data.{key}: needs {_SETS} {key.removeprefix('more_')[:-1]} sites, one for each set"
                )
                raise ConfigError(message, remedy="add sites, or remove it")
        return self


class TransferFilesOptions(KindsOptions, _ArrayOptions):
    """Options of ``transfer-files``: a folder with one ``SITE.npz`` per site.

    Real sites have names, so there is a list of them per kind.
    """

    path: str = Field(description="the folder with the .npz files, relative to the study file")
    image_sites: tuple[str, ...] = Field(default=(), description="an array: the names of the image sites")
    text_sites: tuple[str, ...] = Field(default=(), description="an array: the names of the text sites")
    pair_sites: tuple[str, ...] = Field(min_length=1, description="an array: the names of the pairs sites")
    size: Size = 224
    image_classes: int | None = Field(
        default=None, ge=2, le=1_000_000, description="classes at image sites, 2 or more"
    )
    text_classes: int | None = Field(
        default=None, ge=2, le=1_000_000, description="classes at text sites, 2 or more"
    )
    patients: bool = Field(default=False, description="true (files must name patients) or false (they may)")

    @property
    def names_patients(self) -> bool:
        """Whether every file must name them."""
        return self.patients

    @property
    def classes(self) -> tuple[int, int]:
        """Classes at image sites and at text sites; 1 where there are no such sites."""
        return self.image_classes or _NO_SITES, self.text_classes or _NO_SITES

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        listed: set[str] = set()
        for key in _KINDS:
            for site in getattr(self, key):
                check_file_name(key, site)
                if site.lower() in listed:  # some file systems hold SITE.npz and site.npz to be one file
                    raise ConfigError(
                        f"data.{key}: the site {site!r} is listed twice, or differs in capitals only",
                        remedy="list every site once; a site holds one kind of records",
                    )
                listed.add(site.lower())
        for key, sites in (("image_classes", self.image_sites), ("text_classes", self.text_sites)):
            if sites and getattr(self, key) is None:
                raise ConfigError(f"data.{key}: is missing", remedy="set it to the number of classes")
            if not sites:
                refuse_unused(self, [key], "without such sites", f"remove it, or list {key[:-8]} sites")
        return self
