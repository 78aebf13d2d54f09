"""``ophthalmology``: retinal photographs at two (or more) clinics, with captions made from two grades.

FedDRA has MESSIDOR as one client and BRSET as the other, and probes what they taught on mBRSET (``MBRSET``).
The captions are *made*, not written by a physician, and there are only as many different ones as combinations
of grades.

Source: Decenciere et al., MESSIDOR, Image Analysis and Stereology 33, 2014; Nakayama et al., BRSET, PLOS
    Digital Health 3, 2024; Wu et al., mBRSET, Scientific Data 12, 2025 (photographs of a portable camera).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from secfed.algorithms.data.image_text.files import FilePairs, PairEntry
from secfed.algorithms.data.images_and_texts import Channels, PairsOptions, TextLength, check_inside, drawn
from secfed.algorithms.data.table_lines import Line, read_table
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import suggestion
from secfed.errors import ConfigError

FINDINGS: Final = ("diabetic retinopathy", "macular edema")
CAPTION: Final = "retinal image with {} and {}"

_REQUIRED: Final = ("table", "images", "image_column", "retinopathy_column", "edema_column")
_OPTIONAL: Final = ("image_suffix", "patient_column", "ungraded")
_TABLE: Final = "a table with " + ", ".join(_REQUIRED) + " and, if needed, " + ", ".join(_OPTIONAL)

MBRSET: Final[Mapping[str, str]] = {
    "table": "labels_mbrset.csv",
    "images": "images",
    "image_column": "file",
    "retinopathy_column": "final_icdr",
    "edema_column": "final_edema",
    "patient_column": "patient",
    "ungraded": "skip",  # photographs too poor to grade have no grades
}
"""The folder of mBRSET 1.0 as PhysioNet publishes it, as one clinic."""

_WORDS: Final = {"no": "0", "yes": "1"}  # how mBRSET writes edema


class OphthalmologyOptions(PairsOptions):
    """Options of ``ophthalmology``.

    Example:
        One clinic, with the optional keys ``image_suffix``, ``patient_column`` and ``ungraded`` (only
        ``"skip"``: lines without one of the two grades are left out)::

            [data.clinics.brset]
            table = "labels.csv"
            images = "fundus_photos"
            image_column = "image_id"
            image_suffix = ".jpg"
            retinopathy_column = "DR_ICDR"
            edema_column = "macular_edema"
            patient_column = "patient_id"
            ungraded = "skip"
    """

    channels: Channels = 3
    text_length: TextLength = 24
    path: str = Field(default=".", description="the folder of the clinics' files, relative to the study")
    clinics: dict[str, dict[str, str]] = Field(
        min_length=1, description=f"[data.clinics.NAME], each {_TABLE}"
    )
    retinopathy: tuple[str, ...] = Field(
        default=(
            "no diabetic retinopathy",
            "mild diabetic retinopathy",
            "moderate diabetic retinopathy",
            "severe diabetic retinopathy",
            "proliferative diabetic retinopathy",
        ),
        min_length=2,
        description="an array: what each grade of retinopathy is called, from 0",
    )
    edema: tuple[str, ...] = Field(
        default=("no risk of macular edema", "risk of macular edema", "high risk of macular edema"),
        min_length=2,
        description="an array: what each grade of macular edema is called, from 0",
    )

    @model_validator(mode="after")
    def _check_clinics(self) -> Self:
        for name, clinic in self.clinics.items():
            for key in _REQUIRED:
                if key not in clinic:
                    message = f"data.clinics.{name}.{key}: is missing"
                    raise ConfigError(message, remedy=f"every clinic has {_TABLE}")
            for key in clinic:
                if key not in (*_REQUIRED, *_OPTIONAL):
                    raise ConfigError(
                        f"data.clinics.{name}.{key}: unknown key",
                        remedy=suggestion(key, (*_REQUIRED, *_OPTIONAL), "known keys: "),
                    )
            if clinic.get("ungraded", "skip") != "skip":
                message = f'data.clinics.{name}.ungraded: is not "skip"'
                raise ConfigError(message, remedy='set it to "skip", or remove it')
            for key in ("table", "images"):
                check_inside(f"data.clinics.{name}.{key}", clinic[key])
        return self

    def site_ids(self) -> tuple[SiteId, ...]:
        """The clinics."""
        return tuple(self.clinics)

    @property
    def names_patients(self) -> bool:
        """Whether every clinic's table has a column for them."""
        return all("patient_column" in clinic for clinic in self.clinics.values())


def ophthalmology(options: OphthalmologyOptions, seed: int, folder: Path) -> FilePairs:
    """Retinal photographs with captions made from grades; every clinic reads its own."""
    root = folder / options.path

    def read(site: SiteId) -> list[PairEntry]:
        clinic = options.clinics[site]
        # Without a column for patients, every image counts as its own patient.
        who = clinic.get("patient_column", clinic["image_column"])
        return [
            _entry(line, line.text(who), clinic, options, seed)
            for line in read_table(root / clinic["table"])
            if drawn(options.share, seed, "share", line.text(who)) and not _skipped(line, clinic)
        ]

    return FilePairs(
        options, FINDINGS, folder, read=read, images=lambda site: root / options.clinics[site]["images"]
    )


def _entry(
    line: Line, patient: str, clinic: dict[str, str], options: OphthalmologyOptions, seed: int
) -> PairEntry:
    retinopathy = _grade(line, clinic["retinopathy_column"], len(options.retinopathy), "retinopathy")
    edema = _grade(line, clinic["edema_column"], len(options.edema), "edema")
    return PairEntry(
        image=line.text(clinic["image_column"]) + clinic.get("image_suffix", ""),
        text=CAPTION.format(options.retinopathy[retinopathy], options.edema[edema]),
        findings=(int(retinopathy > 0), int(edema > 0)),
        held_out=drawn(options.test_fraction, seed, "held out", patient),
        where=line.where,
        patient=patient if "patient_column" in clinic else None,
    )


def _skipped(line: Line, clinic: Mapping[str, str]) -> bool:
    columns = (clinic["retinopathy_column"], clinic["edema_column"])
    return "ungraded" in clinic and any(_written(line, column) in ("", "nan") for column in columns)


def _written(line: Line, column: str) -> str:
    value = line.text(column).lower().removesuffix(".0")
    return _WORDS.get(value, value)


def _grade(line: Line, column: str, grades: int, key: str) -> int:
    """The grade in a column; at a hospital 0 for a value that is none."""
    value = _written(line, column)
    if value in map(str, range(grades)):
        return int(value)
    unfit(
        line.wrong(
            column,
            f"is not a grade from 0 to {grades - 1}",
            f"correct the table, name all grades in data.{key}, or leave lines without any out by "
            'ungraded = "skip"',
        )
    )
    return 0
