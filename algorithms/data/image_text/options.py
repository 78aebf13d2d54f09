"""Options of ``image-text``: what the columns of a table of image-report pairs mean."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.images_and_texts import PairsOptions, check_file_name, check_inside
from secfed.config.schema import LATER
from secfed.errors import ConfigError

SITE: Final = "{site}"
Present = Annotated[
    Literal["positive", "labelled"],
    Field(
        json_schema_extra=LATER,
        description='when a finding is present: "positive" (1; -1 as data.uncertain says) or "labelled" '
        "(1, 0 or -1: mentioned at all)",
    ),
]


def counted(uncertain: str, present: str) -> tuple[int, int]:
    """What an uncertain label and a negative one count as, 0 or 1 each, by the options of these names."""
    labelled = present == "labelled"
    return int(labelled or uncertain == "present"), int(labelled)


def refuse_unused_rules(options: PairsOptions, present: str, columns: Collection[str]) -> None:
    """Refuse rules of labels that would change nothing."""
    if present == "labelled":
        base.refuse_unused(options, ["uncertain"], 'with present = "labelled"')
    if not columns:
        base.refuse_unused(options, ["present"], "without data.finding_columns")


class ImageTextOptions(PairsOptions):
    """Options of ``image-text``: a table of pairs (JSON Lines or CSV) with a folder or zip of images.

    Columns inside other columns (JSON Lines only) are written with a dot, as in "Description.Caption".
    """

    path: str = Field(description="the folder or .zip with table and images, relative to the study file")
    table: str = Field(description="the .jsonl or .csv file in data.path; {site} in it for one file per site")
    test_table: str | None = Field(default=None, description="a file like data.table, of held-out pairs")
    images: str | None = Field(
        default=None,
        description="the folder or .zip with the images, inside data.path; left away, data.path itself",
    )
    partition: Literal["by-column", "by-file", "dirichlet", "iid"] = Field(
        default="by-column", description='"by-column", "by-file", "dirichlet" (over findings) or "iid"'
    )
    sites: int | tuple[str, ...] = Field(description="an array of sites, or a number for dirichlet and iid")
    site_column: str | None = Field(default=None, description="the column that names a pair's site")
    alpha: base.BoundedAlpha = 1.0
    min_records: base.MinRecords = 10
    image_column: str = Field(default="image", description="the column with the image's file name")
    image_suffix: str = Field(default="", description='what to add to that name, for example ".jpg"')
    image_folder: str = Field(default="", description='what to put before that name, for example "scans/"')
    text_columns: tuple[str, ...] = Field(
        default=("text",), min_length=1, description="an array: the columns that make the report, in order"
    )
    without_text: Literal["error", "skip"] = Field(
        default="error", description='what to do with a pair without a report: "error" or "skip"'
    )
    finding_columns: tuple[str, ...] = Field(
        default=(), description="an array of columns: 1 where a finding is"
    )
    uncertain: Literal["absent", "present"] = Field(
        default="absent", description='what -1 in data.finding_columns means: "absent" or "present"'
    )
    present: Present = "positive"
    categories: dict[str, tuple[str, ...]] = Field(
        default={}, description="a table: column to the array of all its values; each becomes a finding"
    )
    patient_column: base.PatientColumn = None
    split_column: str | None = Field(default=None, description="the column that says what is held out")
    train_values: tuple[str, ...] = Field(
        default=("train",), min_length=1, description="an array: values of data.split_column for training"
    )
    test_values: tuple[str, ...] = Field(
        default=("test",), description="an array: values of data.split_column that are held out"
    )

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings: columns first, then the values of each category."""
        return (*self.finding_columns, *(value for values in self.categories.values() for value in values))

    @property
    def separate(self) -> bool:
        """Whether pairs already belong to sites, instead of being divided among simulated ones."""
        return self.partition in ("by-column", "by-file")

    @model_validator(mode="after")
    def _check(self) -> Self:
        base.refuse_unused_alpha(self, self.partition)
        refuse_unused_rules(self, self.present, self.finding_columns)
        for key in ("table", "test_table", "images"):
            check_inside(f"data.{key}", getattr(self, key))
        self._check_sites()
        self._check_split()
        if len(set(self.findings)) < len(self.findings) or len(self.findings) > 62:
            message = "data.finding_columns: names a finding twice, or more than 62"
            raise ConfigError(message, remedy="name each once")
        if self.partition == "dirichlet" and not self.findings:
            raise ConfigError(
                "data.finding_columns: there are no findings to divide by",
                remedy='name columns in data.finding_columns or data.categories, or set partition = "iid"',
            )
        return self

    def _check_sites(self) -> None:
        if self.separate:
            base.check_listed_sites(self.sites, self.partition)
            base.refuse_unused(self, ["min_records"], f'with partition = "{self.partition}"')
        elif not isinstance(self.sites, int) or not 1 <= self.sites <= 1000:
            message = f"data.sites: {self.partition} divides the pairs among a number of simulated sites"
            raise ConfigError(message, remedy="set data.sites to a number from 1 to 1000")
        if (self.partition == "by-column") != (self.site_column is not None):
            raise ConfigError(
                "data.site_column: belongs to by-column, and by-column needs it",
                remedy='name the column, or set data.partition = "by-file", "dirichlet" or "iid"',
            )
        if (self.partition == "by-file") != (SITE in self.table):
            message = "data.table: {site} in it belongs to by-file, and by-file needs it"
            raise ConfigError(message, remedy='for example table = "{site}.jsonl" with partition = "by-file"')
        if self.partition != "by-file" and SITE in f"{self.images}{self.test_table}":
            raise ConfigError("data.images: {site} belongs to by-file", remedy='set partition = "by-file"')
        if self.partition == "by-file":
            for site in self.site_ids():
                check_file_name("sites", site)

    def _check_split(self) -> None:
        if self.split_column is not None:
            unused = ["test_table", "test_fraction"]
            base.refuse_unused(self, unused, "beside data.split_column", "remove one of the two")
        if self.test_table is not None:
            base.refuse_unused(self, ["test_fraction"], "beside data.test_table", "remove one of the two")
        if self.split_column is None:
            remedy = "name the column, or remove the key"
            base.refuse_unused(self, ["train_values", "test_values"], "without data.split_column", remedy)
        if set(self.train_values) & set(self.test_values):
            raise ConfigError("data.test_values: a value is in train_values, too", remedy="give each once")
