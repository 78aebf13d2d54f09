"""``medpix``: real CT and MR images with the captions that physicians wrote, at simulated hospitals.

2050 images of 671 teaching cases; hospitals differ in modality and part of the body. The official division is
kept. One image of each caption is held out by default, because images of a case often share theirs.

Source: Siragusa et al., "MedPix 2.0", 2024 (arXiv 2407.02994); cases from MedPix, National Library of
Medicine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secfed.algorithms.data.base import OfficialDivision, refuse_unused, refuse_unused_alpha
from secfed.algorithms.data.folders import data_folder, existing_file
from secfed.algorithms.data.image_text.files import (
    Divide,
    PairEntry,
    Parts,
    PooledPairs,
    combined,
    divided_by,
)
from secfed.algorithms.data.image_text.partition import by_value
from secfed.algorithms.data.images_and_texts import DistinctTest, DividedOptions, Normalise, Size, TextLength
from secfed.algorithms.data.partition import Partition
from secfed.algorithms.data.table_lines import table_inside
from secfed.errors import ConfigError, DataError

TYPES: Final = ("CT", "MR")
LOCATIONS: Final = ("Head", "Abdomen", "Thorax", "Spine and Muscles", "Reproductive and Urinary System")
FINDINGS: Final = tuple(name.lower() for name in (*TYPES, *LOCATIONS))

_FILE: Final = "medpix2_160.zip"
_TABLES: Final = "descriptions_{}.jsonl"
_IMAGE: Final = "images/{}.jpg"


class MedpixOptions(DividedOptions):
    """Options of ``medpix``."""

    test_fraction: OfficialDivision = 0.0
    path: str | None = Field(default=None, description=f"{_FILE}, relative to the study, or in SECFED_DATA")
    size: Size = 64
    normalise: Normalise = "image"
    text_length: TextLength = 48
    distinct_test: DistinctTest = True
    shift: Literal["dirichlet", "location", "type", "iid"] = Field(
        default="dirichlet",
        description='"dirichlet" (over type and location), "location" (five sites, one part of the body '
        'each), "type" (CT sites and MR sites) or "iid"',
    )
    held_out: tuple[Literal["dev", "test"], ...] = Field(
        default=("dev", "test"), min_length=1, description='an array: the held-out parts, "dev" and "test"'
    )

    @model_validator(mode="after")
    def _check_shift(self) -> Self:
        wanted = {"location": len(LOCATIONS)}.get(self.shift, self.sites)
        if self.sites != wanted or (self.shift == "type" and self.sites < len(TYPES)):
            message = f'data.sites: shift = "{self.shift}" cannot divide the pairs among {self.sites} sites'
            raise ConfigError(message, remedy=f"set data.sites = {max(wanted, len(TYPES))}")
        refuse_unused_alpha(self, self.shift, "shift")
        if self.shift not in ("dirichlet", "iid"):
            refuse_unused(self, ["min_records"], f'with shift = "{self.shift}"')
        refuse_unused(self, ["share"], "on medpix, which is used as a whole")
        return self


def medpix(options: MedpixOptions, seed: int, folder: Path) -> PooledPairs:
    """MedPix 2.0 at simulated hospitals."""
    path = data_folder() / _FILE if options.path is None else folder / options.path
    return PooledPairs(
        options,
        FINDINGS,
        folder,
        seed,
        load=lambda: _entries(path, options),
        images=path,
        divide=_divide(options),
    )


def _entries(path: Path, options: MedpixOptions) -> list[PairEntry]:
    existing_file("medpix", path)
    entries = []
    for part in ("train", *options.held_out):
        for line in table_inside(path, _TABLES.format(part)):
            kind, location = line.text("Type"), line.text("Location Category")
            if kind not in TYPES or location not in LOCATIONS:
                raise DataError(f"{line.where}: an unknown type or location", remedy="use the published file")
            entries.append(
                PairEntry(
                    image=_IMAGE.format(line.text("image")),
                    text=line.text("Description.Caption"),
                    findings=tuple(int(name in (kind, location)) for name in (*TYPES, *LOCATIONS)),
                    held_out=part != "train",
                    where=line.where,
                )
            )
    return entries


def _divide(options: MedpixOptions) -> Divide:
    if options.shift in ("dirichlet", "iid"):
        return divided_by(options.shift, options.sites, options.alpha, options.min_records)
    # The findings that the shift goes by, and per value the sites that get it.
    if options.shift == "location":
        columns, takers = slice(len(TYPES), None), [[site] for site in range(len(LOCATIONS))]
    else:
        first, sites = (options.sites + 1) // 2, list(range(options.sites))
        columns, takers = slice(0, len(TYPES)), [sites[:first], sites[first:]]

    def divide(parts: Parts, rng: np.random.Generator) -> tuple[Partition, Partition]:
        divided = []
        for entries in parts:
            order = rng.permutation(len(entries))
            labels = combined(entries, len(FINDINGS))[order][:, columns].argmax(axis=1)
            divided.append([np.sort(order[rows]) for rows in by_value(labels, takers)])
        return divided[0], divided[1]

    return divide
