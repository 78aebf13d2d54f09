"""``mimic-cxr``: chest X-rays and radiology reports in the layout that PhysioNet distributes.

Access needs an agreement, so tests use a made-up miniature. ``data.path`` holds, as in MIMIC-CXR-JPG 2.0.0:

    mimic-cxr-2.0.0-{metadata,split,chexpert}.csv.gz   tables, packed or not; labels are 1, 0, -1 or empty
    files/p10/p10000032/s50414267/DICOM_ID.jpg         images
    mimic-cxr-reports.zip, or its folder               files/p10/p10000032/s50414267.txt

Source: Johnson et al., MIMIC-CXR, Scientific Data 6, 2019, and MIMIC-CXR-JPG, arXiv 1901.07042. Labels:
    Irvin et al., CheXpert, AAAI 2019. Division: FedDRA's, whose findings are those with any label
    (``present = "labelled"``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data.base import OfficialDivision, refuse_unused_alpha
from secfed.algorithms.data.image_files import ImageSource, open_source
from secfed.algorithms.data.image_text.chest_reports import FINDINGS
from secfed.algorithms.data.image_text.files import PairEntry, PooledPairs, divided_by
from secfed.algorithms.data.image_text.options import Present, counted, refuse_unused_rules
from secfed.algorithms.data.images_and_texts import DividedOptions, check_inside, drawn
from secfed.algorithms.data.table_lines import Line, read_table
from secfed.algorithms.data.tokens import words_of
from secfed.errors import DataError

COLUMNS: Final = ("Edema", "Pleural Effusion", "Consolidation", "Pneumothorax", "Pneumonia")
"""Columns of the label table, in the order of the findings."""

_TABLES: Final = "mimic-cxr-2.0.0-{}.csv"
_REPORT_BYTES: Final = 1 << 20
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_IMAGE: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
# A heading stands at the beginning of a line, in capitals, and ends with a colon.
_HEADING: Final = re.compile(r"^[ \t]*([A-Z][A-Z ,/()&-]{2,60}):", re.MULTILINE)

Section = Literal["findings", "impression"]


class MimicCxrOptions(DividedOptions):
    """Options of ``mimic-cxr``."""

    test_fraction: OfficialDivision = 0.0
    path: str = Field(description="the folder with the tables and files/, relative to the study file")
    reports: str = Field(
        default="mimic-cxr-reports.zip", description="the folder or .zip of reports in data.path"
    )
    partition: Literal["dirichlet", "iid"] = Field(default="dirichlet", description='"dirichlet" or "iid"')
    labels: Literal["chexpert", "negbio"] = Field(
        default="chexpert", description='the table of labels: "chexpert" or "negbio"'
    )
    uncertain: Literal["absent", "present"] = Field(
        default="absent", description='what an uncertain label means: "absent" or "present"'
    )
    present: Present = "positive"
    views: tuple[str, ...] = Field(
        default=("PA", "AP"), min_length=1, description='an array of views, such as "PA"'
    )
    sections: tuple[Section, ...] = Field(
        default=("findings",),
        min_length=1,
        description='an array: the parts of a report that are used, "findings" and "impression"',
    )
    held_out: tuple[Literal["validate", "test"], ...] = Field(
        default=("validate",), min_length=1, description='an array: held-out parts, "validate" and "test"'
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_unused_alpha(self, self.partition)
        refuse_unused_rules(self, self.present, COLUMNS)
        check_inside("data.reports", self.reports)
        return self

    @property
    def names_patients(self) -> bool:
        """Always: by ``subject_id``."""
        return True


def mimic_cxr(options: MimicCxrOptions, seed: int, folder: Path) -> PooledPairs:
    """MIMIC-CXR at simulated hospitals; studies without the wanted sections are left out."""
    return PooledPairs(
        options,
        FINDINGS,
        folder,
        seed,
        load=lambda: _entries(options, seed, folder),
        images=folder / options.path,
        divide=divided_by(options.partition, options.sites, options.alpha, options.min_records),
    )


def section(report: str, name: str) -> str:
    """One section of a radiology report, such as "findings", without its heading; "" where there is none.

    The section ends at the next heading: words in capitals and a colon at the beginning of a line.
    """
    headings = list(_HEADING.finditer(report))
    parts = []
    for at, heading in enumerate(headings):
        if heading.group(1).strip().lower() == name:
            end = headings[at + 1].start() if at + 1 < len(headings) else len(report)
            parts.append(" ".join(report[heading.end() : end].split()))
    return " ".join(part for part in parts if part)


def _entries(options: MimicCxrOptions, seed: int, folder: Path) -> list[PairEntry]:
    root = folder / options.path
    views = {_number(line, "dicom_id"): line.text("ViewPosition") for line in _table(root, "metadata")}
    labels = {_number(line, "study_id"): _findings(line, options) for line in _table(root, options.labels)}
    none = (0,) * len(COLUMNS)  # of a study without labels
    texts: dict[str, str] = {}
    entries = []
    with open_source(root / options.reports, "data.reports") as source:
        for line in _table(root, "split"):
            part, patient = line.text("split"), _number(line, "subject_id")
            image, study = _number(line, "dicom_id"), _number(line, "study_id")
            if part not in ("train", *options.held_out) or views.get(image) not in options.views:
                continue
            if not drawn(options.share, seed, "share", patient):
                continue
            place = f"files/p{patient[:2]}/p{patient}/s{study}"
            if study not in texts:
                texts[study] = _report(source, f"{place}.txt", options, line.where)
            if not texts[study]:
                continue
            findings, held_out = labels.get(study, none), part != "train"
            name = f"{place}/{image}.jpg"
            entries.append(PairEntry(name, texts[study], findings, held_out, line.where, patient))
    return entries


def _report(source: ImageSource, name: str, options: MimicCxrOptions, where: str) -> str:
    content = source.read(name, _REPORT_BYTES, f"{where}, its report")
    report = content.decode("utf-8", errors="replace")
    text = " ".join(section(report, wanted) for wanted in options.sections).strip()
    return text if words_of(text) else ""


def _findings(line: Line, options: MimicCxrOptions) -> tuple[int, ...]:
    counts = counted(options.uncertain, options.present)
    return tuple(line.flag(column, *counts) for column in COLUMNS)


def _table(root: Path, which: str) -> Iterator[Line]:
    name = _TABLES.format(which)
    plain, packed = root / name, root / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        message = f"data.path: {root} has neither {name} nor {name}.gz"
        raise DataError(message, remedy="name the folder of MIMIC-CXR-JPG")
    return read_table(plain if plain.exists() else packed)


def _number(line: Line, column: str) -> str:
    """A number of a patient, study or image, in the only form that may become part of a path."""
    value = line.text(column)
    if not (_IMAGE if column == "dicom_id" else _NUMBER).fullmatch(value):
        raise line.wrong(column, "does not have the published form", "use the published tables")
    return value
