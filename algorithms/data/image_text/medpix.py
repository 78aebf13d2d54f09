"""``medpix``: real CT and MR images with the captions that physicians wrote, at simulated hospitals.

2050 images of 671 teaching cases. What differs between hospitals is the kind of images: CT or MR, and the
part of the body. The official division into training, development and test pairs is kept; no case is in two
of them. The images of one case often share a caption, so by default one image of each caption is held out,
and a batch holds few pairs that a search could not tell apart.

The archive is not part of secfed: it is looked for as ``medpix2_160.zip`` in the folder that the environment
variable SECFED_DATA names.

Source: Siragusa, Contino, La Ciura, Alicata, Pirrone, "MedPix 2.0: a comprehensive multimodal biomedical
    dataset for advanced AI applications", 2024 (arXiv 2407.02994); cases from MedPix, National Library of
    Medicine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secfed.algorithms.data.folders import data_folder
from secfed.algorithms.data.image_files import open_source
from secfed.algorithms.data.image_text.files import Divide, PooledPairs, divided_by, evenly
from secfed.algorithms.data.image_text.pairs_options import DividedOptions
from secfed.algorithms.data.image_text.partition import by_value
from secfed.algorithms.data.image_text.table import MAX_TABLE_BYTES, PairEntry, combined, parse_table, text_of
from secfed.algorithms.data.partition import Partition
from secfed.errors import ConfigError, DataError

TYPES: Final = ("CT", "MR")
LOCATIONS: Final = (
    "Head",
    "Abdomen",
    "Thorax",
    "Spine and Muscles",
    "Reproductive and Urinary System",
)
FINDINGS: Final = tuple(name.lower() for name in (*TYPES, *LOCATIONS))

_FILE: Final = "medpix2_160.zip"
_TABLES: Final = "descriptions_{}.jsonl"
_READY: Final = ("train_1", "train_2")


class MedpixOptions(DividedOptions):
    """Options of ``medpix``."""

    test_fraction: float = Field(
        default=0.0, ge=0, le=0, description="0: the official division is used (leave it away)"
    )
    path: str | None = Field(
        default=None, description=f"{_FILE}, relative to the study file; by default in SECFED_DATA"
    )
    size: int = Field(default=64, ge=8, le=1024, description="pixels per side, 8 to 1024")
    normalise: Literal["constants", "image"] = Field(
        default="image",
        description='"constants" (data.mean and data.std) or "image" (each by its own mean and spread)',
    )
    text_length: int = Field(default=48, ge=2, le=512, description="tokens per report, 2 to 512")
    distinct_test: bool = Field(
        default=True, description="true or false: hold out only one image of each different report"
    )
    shift: Literal["dirichlet", "location", "type", "ready", "iid"] = Field(
        default="dirichlet",
        description='"dirichlet" (over type and location), "location" (five sites, one part of the body '
        'each), "type" (CT sites and MR sites), "ready" (the two published shares) or "iid"',
    )
    held_out: tuple[Literal["dev", "test"], ...] = Field(
        default=("dev", "test"), min_length=1, description='an array: the held-out parts, "dev" and "test"'
    )

    @model_validator(mode="after")
    def _check_shift(self) -> Self:
        wanted = {"location": len(LOCATIONS), "ready": len(_READY)}.get(self.shift, self.sites)
        if self.sites != wanted or (self.shift == "type" and self.sites < len(TYPES)):
            raise ConfigError(
                f'data.sites: shift = "{self.shift}" cannot divide the pairs among {self.sites} sites',
                remedy=f"set data.sites = {max(wanted, len(TYPES))}",
            )
        if self.shift != "dirichlet" and "alpha" in self.model_fields_set:
            raise ConfigError(
                f'data.alpha: has no effect with shift = "{self.shift}"',
                remedy='remove it, or set data.shift = "dirichlet"',
            )
        if self.shift not in ("dirichlet", "iid") and "min_records" in self.model_fields_set:
            raise ConfigError(
                f'data.min_records: has no effect with shift = "{self.shift}"', remedy="remove it"
            )
        if "share" in self.model_fields_set:
            raise ConfigError("data.share: medpix is used as a whole", remedy="remove it")
        return self


def medpix(options: MedpixOptions, seed: int, folder: Path) -> PooledPairs:
    """MedPix 2.0 at simulated hospitals.

    Args:
        options: the ``[data]`` table.
        seed: the study's seed.
        folder: where the study file is.

    Raises:
        ConfigError: the tokenizer's files are missing or unusable.
    """
    path = data_folder() / _FILE if options.path is None else folder / options.path
    return PooledPairs(
        options,
        lambda: _entries(path, options),
        path,
        _divide(options, path),
        sites=options.site_ids(),
        findings=FINDINGS,
        tokenizer=options.make_tokenizer(folder),
        seed=seed,
    )


def _entries(path: Path, options: MedpixOptions) -> list[PairEntry]:
    if not path.exists():
        raise DataError(
            f"medpix: {path} does not exist",
            remedy=f"set data.path to {_FILE}, or the environment variable SECFED_DATA to its folder",
        )
    entries = []
    with open_source(path, "data.path") as source:
        for part in ("train", *options.held_out):
            name = _TABLES.format(part)
            for line in parse_table(source.read(name, MAX_TABLE_BYTES, f"medpix, {name}"), name):
                kind, location = text_of(line, "Type"), text_of(line, "Location Category")
                if kind not in TYPES or location not in LOCATIONS:
                    raise DataError(
                        f"{line.where}: an unknown type or location",
                        remedy="use the published file",
                    )
                entries.append(
                    PairEntry(
                        image=f"images/{text_of(line, 'image')}.jpg",
                        text=text_of(line, "Description.Caption"),
                        findings=tuple(
                            int(name == value)
                            for names, value in ((TYPES, kind), (LOCATIONS, location))
                            for name in names
                        ),
                        held_out=part != "train",
                        where=line.where,
                    )
                )
    return entries


def _divide(options: MedpixOptions, path: Path) -> Divide:
    if options.shift in ("dirichlet", "iid"):
        return divided_by(options.shift, options.sites, options.alpha, options.min_records)
    if options.shift == "ready":
        return lambda train, test, rng: (_ready(path, train), evenly(2, 0)(test, test, rng)[0])
    columns, takers = _takers(options)

    def divide(
        train: Sequence[PairEntry], test: Sequence[PairEntry], rng: np.random.Generator
    ) -> tuple[Partition, Partition]:
        parts = []
        for entries in (train, test):
            order = rng.permutation(len(entries))
            labels = combined(entries, len(FINDINGS))[order][:, columns].argmax(axis=1)
            parts.append([np.sort(order[rows]) for rows in by_value(labels, takers)])
        return parts[0], parts[1]

    return divide


def _takers(options: MedpixOptions) -> tuple[slice, list[list[int]]]:
    """The findings that the shift goes by, and per value the sites that get it."""
    if options.shift == "location":
        return slice(len(TYPES), None), [[site] for site in range(len(LOCATIONS))]
    first = (options.sites + 1) // 2
    return slice(0, len(TYPES)), [list(range(first)), list(range(first, options.sites))]


def _ready(path: Path, train: Sequence[PairEntry]) -> Partition:
    """The two published shares of the training pairs."""
    shares = []
    position = {entry.image: at for at, entry in enumerate(train)}
    with open_source(path, "data.path") as source:
        for part in _READY:
            name = _TABLES.format(part)
            lines = parse_table(source.read(name, MAX_TABLE_BYTES, f"medpix, {name}"), name)
            images = [f"images/{text_of(line, 'image')}.jpg" for line in lines]
            if not set(images) <= position.keys():
                raise DataError(f"medpix, {name}: names other images", remedy="use the published file")
            shares.append(np.sort(np.array([position[image] for image in images], dtype=np.int64)))
    return shares
