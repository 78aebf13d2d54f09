"""What data sets share: the options of ``[data]``, checks of them, and how a site is looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field

from secfed.algorithms.framework.datasets import SiteId
from secfed.config.schema import LATER, Options, suggestion
from secfed.errors import ConfigError, DataError

Alpha = Annotated[float, Field(gt=0, description="the Dirichlet concentration; smaller is more skewed")]
BoundedAlpha = Annotated[
    float, Field(ge=0.01, description="Dirichlet's concentration, 0.01 or more; smaller: more skewed")
]
MinRecords = Annotated[int, Field(ge=1, description="the least training records of a simulated hospital")]
SiteCount = Annotated[int, Field(ge=1, le=1000, description="the number of simulated hospitals, 1 to 1000")]
OfficialDivision = Annotated[
    float,
    Field(
        ge=0, le=0, description="0: the data set has its own division, or holds nothing out (leave it away)"
    ),
]
PatientColumn = Annotated[
    str | None, Field(description="the column of patients; none of them is in both parts")
]


class DataOptions(Options):
    """Options of every built-in data set."""

    test_fraction: float = Field(default=0.2, ge=0, le=0.9, description="the held-out share, 0 to 0.9")

    def site_ids(self) -> tuple[SiteId, ...]:
        """The sites of the study, known without looking at a record.

        Those that ``data.sites`` lists, or ``hospital-1`` and so on for a number of simulated ones.
        """
        sites: int | tuple[SiteId, ...] = getattr(self, "sites", ())
        if isinstance(sites, tuple):
            return sites
        return tuple(f"hospital-{number}" for number in range(1, sites + 1))

    @property
    def names_patients(self) -> bool:
        """Whether the data set says which records are of one patient."""
        return getattr(self, "patient_column", None) is not None


class SplitOptions(DataOptions):
    """Options of data sets whose held-out records are drawn by class, or each by itself."""

    split: Literal["class", "content", "position"] = Field(
        default="class",
        json_schema_extra=LATER,
        description='held-out records: "class" (a share of each), or each record by itself, as [privacy] for '
        'records does it: by its "content", or its "position" where neighbours replace a record',
    )


class RecordByRecord:
    """A data set that prepares every record by itself already."""

    def for_record_privacy(self, *, slots: bool = False) -> Self:
        """The same records, whichever way (``slots``) neighbouring data sets differ."""
        del slots
        return self


def site_index(sites: tuple[SiteId, ...], site_id: SiteId) -> int:
    """Position of a site in the study."""
    if site_id not in sites:
        raise DataError(f"site {site_id!r} is not in this study", remedy="its sites are " + ", ".join(sites))
    return sites.index(site_id)


def refuse_unused(options: Options, keys: Iterable[str], why: str, remedy: str = "") -> None:
    """Refuse keys of the study that would change nothing."""
    for key in keys:
        if key in options.model_fields_set:
            raise ConfigError(f"data.{key}: has no effect {why}", remedy=remedy or f"remove data.{key}")


def refuse_unused_alpha(options: Options, partition: str, key: str = "partition") -> None:
    """Refuse ``alpha`` where the records are not divided by Dirichlet proportions."""
    if partition != "dirichlet":
        remedy = f'remove it, or set data.{key} = "dirichlet"'
        refuse_unused(options, ["alpha"], f'with {key} = "{partition}"', remedy)


def refuse_unknown(key: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not among the known ones; ``what`` says what a name is."""
    known = tuple(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"data.{key}: there is no {what} {name!r}", remedy=suggestion(name, known))


def refuse_repeated(key: str, what: str, names: tuple[str, ...]) -> None:
    """Refuse a list in which a name stands twice."""
    if len(set(names)) < len(names):
        raise ConfigError(f"data.{key}: names a {what} twice", remedy=f"name every {what} once")


def check_listed_sites(sites: int | tuple[SiteId, ...], why: str) -> None:
    """Require the names of real sites, each once; ``why`` says what needs them."""
    if isinstance(sites, int) or not sites or len(set(sites)) < len(sites):
        message = f"data.sites: {why} needs the list of sites, each once"
        raise ConfigError(message, remedy='write sites = ["north", "south"]')
