"""``notes``: a table of texts with one label each, as rows of token ids, at named or simulated hospitals.

No vocabulary is learnt from records: words are hashed into buckets, or a published tokenizer is read from a
folder. Every text is prepared by itself, so a study may hide records as it is. Ids are float32, which holds
them exactly; the model turns them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.folders import data_folder, existing_file
from secfed.algorithms.data.pool import PooledData, divide_by
from secfed.algorithms.data.prepare import SPLITS, Facts, Preparation, PreparedRecords, PreparedSites
from secfed.algorithms.data.table_lines import Line, read_table
from secfed.algorithms.data.tokens import FolderTokenizer, HashTokenizer, Tokenizer
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.unfit import unfit
from secfed.errors import ConfigError

MED_ABSTRACTS = "medabstracts_test2888.csv.gz"


class NotesOptions(base.SplitOptions):
    """Options of ``notes``."""

    path: str | None = Field(
        default=None,
        description="a .csv or .jsonl file, or that with .gz, relative to the study file; left away, "
        f"{MED_ABSTRACTS} in the folder of SECFED_DATA",
    )
    partition: Literal["by-column", "iid", "dirichlet"] = Field(
        default="by-column", description='"by-column", "iid" or "dirichlet"'
    )
    site_column: str | None = Field(default=None, description="the column that names a text's site")
    sites: int | tuple[str, ...] = Field(description="an array of sites, or a number for iid and dirichlet")
    alpha: base.Alpha = 0.5
    min_records: base.MinRecords = 10
    patient_column: base.PatientColumn = None
    text_column: str = Field(description="the column that holds the text")
    label_column: str = Field(description="the column that holds the label")
    labels: tuple[str, ...] = Field(min_length=2, description="an array of all labels, texts in class order")
    length: int = Field(default=128, ge=2, le=4096, description="tokens per text, 2 to 4096; others are cut")
    buckets: int = Field(default=8192, ge=16, le=1_000_000, description="buckets for words, 16 to 1000000")
    tokenizer_folder: str | None = Field(
        default=None,
        description="a published tokenizer's folder, relative to the study file",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        base.refuse_unused_alpha(self, self.partition)
        base.refuse_repeated("labels", "label", self.labels)
        if self.tokenizer_folder is not None:
            base.refuse_unused(self, ["buckets"], "with tokenizer_folder")
        if self.partition == "by-column":
            base.check_listed_sites(self.sites, "by-column")
            if self.site_column is None:
                message = "data.site_column: is missing"
                raise ConfigError(message, remedy='name it, or set data.partition = "iid" or "dirichlet"')
        elif not isinstance(self.sites, int) or self.sites < 1 or self.site_column is not None:
            message = f"data.sites: {self.partition} divides the texts among a number of simulated sites"
            raise ConfigError(message, remedy="set data.sites to a number, and remove data.site_column")
        return self


def notes(options: NotesOptions, seed: int, folder: Path) -> PreparedSites:
    """The data set that a table of texts describes; the file is read when a site is asked for."""
    tokenizer: Tokenizer = HashTokenizer(options.buckets, options.length)
    if options.tokenizer_folder is not None:
        tokenizer = FolderTokenizer(folder / options.tokenizer_folder, options.length)
    path = data_folder() / MED_ABSTRACTS if options.path is None else folder / options.path

    def read(site: SiteId | None = None) -> PreparedRecords:
        lines = list(read_table(existing_file("notes", path)))
        if site is not None and options.site_column is not None:
            lines = [line for line in lines if line.name(options.site_column) == site]
        x = tokenizer.encode([line.text(options.text_column) for line in lines]).numpy()
        y = np.array([_label(line, options) for line in lines], dtype=np.int64)
        patients = None
        if options.patient_column is not None:
            patients = tuple(line.name(options.patient_column) for line in lines)
        return PreparedRecords(x, y, patients=patients, where=tuple(line.where for line in lines))

    rules = Preparation(options.test_fraction, standardize=False, split=SPLITS[options.split])
    facts = Facts(options.site_ids(), rules, (options.length,), len(options.labels), seed)
    if isinstance(options.sites, tuple):
        return PreparedSites(read, facts)
    divide = divide_by(options.partition, options.sites, options.alpha, options.min_records)
    return PooledData(read, facts, divide)


def _label(line: Line, options: NotesOptions) -> int:
    """The position of its label; at a hospital 0 for what is not listed."""
    text = line.text(options.label_column)
    if text in options.labels:
        return options.labels.index(text)
    unfit(line.wrong(options.label_column, "is not one of data.labels", "list it, or correct the table"))
    return 0
