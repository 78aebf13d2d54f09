"""Options of the data sets with several views, in files and in scikit-learn.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024 (arXiv 2410.09484): ratios of multi-view to single-view clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.data import base
from secfed.algorithms.data.tabular.options import canonical
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.config.schema import LATER
from secfed.errors import ConfigError

# Share of single-view sites by ratio of multi-view to single-view sites. The published counts come from
# exactly these decimals: a third of 24 sites is 7, because 24 * 0.3333 is rounded down.
_SINGLE_SHARE: Final = MappingProxyType({"2:1": 0.3333, "1:1": 0.5, "1:2": 0.6667})
_RATIO = '"2:1", "1:1" or "1:2": multi-view to single-view sites'
_SINGLE = "a number of sites that hold one view only, or a table of site to the name of its view"


class ViewsOptions(base.DataOptions):
    """Options of one pool of records with several views, divided among simulated hospitals.

    Either ``ratio`` or ``single_view_sites`` says how many hospitals hold one view only; which view each
    of them holds is drawn from the study's seed unless ``single_view_sites`` is a table that says so.
    """

    view_names: ClassVar[tuple[str, ...]] = ()

    test_fraction: base.OfficialDivision = 0.0
    sites: int | tuple[str, ...] = Field(default=8, description="the number of simulated hospitals")
    ratio: Literal["2:1", "1:1", "1:2"] = Field(default="1:1", description=_RATIO)
    single_view_sites: int | dict[str, str] | None = Field(default=None, description=_SINGLE)
    alpha: base.Alpha = 9999.0
    min_records: base.MinRecords = 10
    per_class: int | None = Field(
        default=None, ge=1, description="at most so many of each class; left away, all"
    )

    @model_validator(mode="after")
    def _check_sites(self) -> Self:
        if isinstance(self.sites, int) and not 2 <= self.sites <= 1000:
            message = f"data.sites: there cannot be {self.sites} simulated hospitals"
            raise ConfigError(message, remedy="write 2 to 1000")
        if isinstance(self.sites, tuple) and not self.separate:
            message = "data.sites: the hospitals of this data set are simulated"
            raise ConfigError(message, remedy="set data.sites to a number")
        base.refuse_repeated("views", "view", self.names)
        single = self.single_view_sites
        if single is not None:
            base.refuse_unused(self, ["ratio"], "beside data.single_view_sites", "remove one of the two")
        if isinstance(single, int) and not 0 <= single <= len(self.site_ids()):
            raise ConfigError(
                f"data.single_view_sites: {single} of {len(self.site_ids())} sites cannot hold one view only",
                remedy="set it to a number from 0 to data.sites",
            )
        if isinstance(single, dict):
            base.refuse_unknown("single_view_sites", "site", single, self.site_ids())
            base.refuse_unknown("single_view_sites", "view", single.values(), self.names)
        return self

    @property
    def separate(self) -> bool:
        """Whether the records already belong to sites, instead of being divided among simulated ones."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views, in order: those that ``data.views`` chooses, or all."""
        chosen: tuple[str, ...] = getattr(self, "views", self.view_names)
        return chosen

    def view_of(self, seed: int) -> dict[SiteId, int | None]:
        """Every site in order, and the one view that it holds (None: all)."""
        sites, single = self.site_ids(), self.single_view_sites
        if isinstance(single, dict):
            return {site: self.names.index(single[site]) if site in single else None for site in sites}
        if single is None:
            single = single_view_count(len(sites), self.ratio)
        return drawn_views(sites, single, len(self.names), seed)


class KnownFileOptions(ViewsOptions):
    """Options of a published data set that is not part of secfed."""

    path: str | None = Field(default=None, description="the file, relative to the study, or in SECFED_DATA")


class MnistUspsOptions(KnownFileOptions):
    """Options of ``mnist-usps``."""

    view_names: ClassVar[tuple[str, ...]] = ("mnist", "usps")

    sites: int | tuple[str, ...] = Field(default=24, description="the number of simulated hospitals")


class ScaledFileOptions(KnownFileOptions):
    """A set whose features are scaled by their own range, or by public constants of every view."""

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        scale = getattr(self, "scale", None)
        if isinstance(scale, dict):
            for view in self.view_names:
                if view not in scale:
                    raise ConfigError(f"data.scale: no range of {view!r}", remedy=f"add {view} = [low, high]")
                check_range(view, scale[view])
        return self


class BdgpOptions(ScaledFileOptions):
    """Options of ``bdgp``."""

    view_names: ClassVar[tuple[str, ...]] = ("visual", "text")

    sites: int | tuple[str, ...] = Field(default=12, description="the number of simulated hospitals")
    scale: Literal["min-max"] | dict[Literal["visual", "text"], tuple[float, float]] = Field(
        default="min-max",
        description='"min-max", or a table with the range [low, high] of "visual" and "text" that becomes '
        "0 and 1: needed for privacy of records",
    )


class MultiFashionOptions(ViewsOptions):
    """Options of ``multi-fashion``."""

    view_names: ClassVar[tuple[str, ...]] = ("first", "second", "third")

    path: str | None = Field(
        default=None,
        description="the folder of Fashion-MNIST, relative to the study, or fashion-mnist in SECFED_DATA",
    )
    sites: int | tuple[str, ...] = Field(default=48, description="the number of simulated hospitals")


class NuswideOptions(ScaledFileOptions):
    """Options of ``nuswide``."""

    view_names: ClassVar[tuple[str, ...]] = ("colours", "moments", "correlogram", "edges", "texture")

    sites: int | tuple[str, ...] = Field(default=24, description="the number of simulated hospitals")
    scale: (
        Literal["min-max"]
        | dict[Literal["colours", "moments", "correlogram", "edges", "texture"], tuple[float, float]]
    ) = Field(
        default="min-max",
        description='"min-max", or a table with the range [low, high] of every view that becomes 0 and 1: '
        "needed for privacy of records",
    )


class DigitsViewsOptions(ViewsOptions):
    """Options of ``digits-views``."""

    views: tuple[Literal["pixels", "fourier", "edges"], ...] = Field(
        default=("pixels", "fourier"),
        min_length=2,
        description='an array of at least two of "pixels", "fourier" and "edges"',
    )


class MultiviewOptions(ViewsOptions):
    """Options of ``multiview``: a .npz or .mat file with one array per view.

    Records are divided among simulated sites; or, with ``site_key``, an array says where each belongs: then
    every hospital keeps a file with its own records and views only.
    """

    path: str = Field(description="the .npz or .mat file, relative to the study file")
    views: tuple[str, ...] = Field(
        default=("X1", "X2"), min_length=1, description="an array of views in the file"
    )
    view_sizes: tuple[int, ...] | None = Field(
        default=None, description="an array: the features of each view; left away, the file tells"
    )
    label_key: str = Field(default="Y", description="the name of the labels in the file")
    classes: int = Field(ge=2, description="the number of classes that the clustering is scored against")
    first_label: int = Field(default=0, description="the label of the first class, usually 0 or 1")
    class_names: tuple[str | int | float, ...] | None = Field(
        default=None,
        json_schema_extra=LATER,
        description="an array of all labels in class order, where they are texts or other numbers",
    )
    missing: Literal["error", "record", "zero"] = Field(
        default="error",
        json_schema_extra=LATER,
        description='NaN in a view: "error"; "record" (the mean of what it knows of the record) or "zero" '
        "(after scaling); a record without a view has only NaN there, and zeros in the end",
    )
    site_key: str | None = Field(default=None, description="the array that says where a record belongs")
    patient_key: str | None = Field(
        default=None,
        description="beside site_key: the array that says whose a record is, for privacy of patients",
    )
    scale: dict[str, Literal["min-max"] | tuple[float, float]] = Field(
        default={}, description='a table: view to "min-max" or to [low, high], which become 0 and 1'
    )

    @property
    def separate(self) -> bool:
        """Whether an array of the file says where a record belongs."""
        return self.site_key is not None

    @property
    def names_patients(self) -> bool:
        """Whether an array of the file says whose a record is."""
        return self.patient_key is not None

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        if self.view_sizes is not None and (
            len(self.view_sizes) != len(self.views) or min(self.view_sizes) < 1
        ):
            raise ConfigError(
                "data.view_sizes: needs one number above 0 per view",
                remedy="give as many numbers as data.views has names, or leave it away",
            )
        base.refuse_unknown("scale", "view", self.scale, self.views)
        if (
            self.class_names is not None
            and len({canonical(label) for label in self.class_names}) != self.classes
        ):
            raise ConfigError(
                f"data.class_names: lists other than {self.classes} different labels",
                remedy="list every class once, or correct data.classes",
            )
        if self.class_names is not None:
            base.refuse_unused(self, ["first_label"], "beside data.class_names")
        for view, rule in self.scale.items():
            if isinstance(rule, tuple):
                check_range(view, rule)
        if self.separate:
            self._check_separate()
        elif self.patient_key is not None:
            raise ConfigError(
                "data.patient_key: the records of one patient would be divided among simulated hospitals",
                remedy="set data.site_key, or remove data.patient_key",
            )
        return self

    def _check_separate(self) -> None:
        base.check_listed_sites(self.sites, "data.site_key")
        unused = ("ratio", "alpha", "min_records", "per_class")
        base.refuse_unused(self, unused, "where data.site_key says who holds what")
        if isinstance(self.single_view_sites, int):
            raise ConfigError(
                "data.single_view_sites: with data.site_key it is not drawn which view a site holds",
                remedy='write a table of sites, for example single_view_sites = { west = "X2" }',
            )
        if "min-max" in self.scale.values():
            message = 'data.scale: "min-max" reads the records of all sites, which data.site_key keeps apart'
            raise ConfigError(message, remedy="write the usual range of the view as [low, high]")

    def view_of(self, seed: int) -> dict[SiteId, int | None]:
        """See :meth:`ViewsOptions.view_of`; real sites hold every view unless the table says otherwise."""
        if self.separate and self.single_view_sites is None:
            return dict.fromkeys(self.site_ids())
        return super().view_of(seed)


def check_range(view: str, ends: tuple[float, float]) -> None:
    """Refuse a range that is empty."""
    if not ends[0] < ends[1]:
        raise ConfigError(f"data.scale.{view}: the low end is not below the high", remedy="write [low, high]")


def single_view_count(sites: int, ratio: str) -> int:
    """How many of the sites hold one view only, by the ratio of multi-view to single-view sites."""
    return int(sites * _SINGLE_SHARE[ratio])


def drawn_views(
    sites: Sequence[SiteId], single_view_sites: int, views: int, seed: int
) -> dict[SiteId, int | None]:
    """Site to its view (from 0), or None for all; the last ``single_view_sites`` hold one each, at random."""
    drawn = numpy_generator(seed, "views").integers(0, views, size=single_view_sites)
    every: list[int | None] = [None] * (len(sites) - single_view_sites)
    return dict(zip(sites, [*every, *map(int, drawn)], strict=True))
