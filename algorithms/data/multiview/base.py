"""Records seen from several sides: some hospitals hold every view, others only one.

A view is one kind of measurement of the same record (an image and a report, two scanners). Everything but
the records is public and follows from the study file. No training step reads labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.algorithms.data.base import site_index
from secfed.algorithms.framework.datasets import FederatedData, SiteId, no_records, numbered
from secfed.algorithms.framework.unfit import first_class_if_unknown, unfit, zero_if_not_finite
from secfed.errors import ConfigError, DataError


@dataclass(frozen=True, repr=False)
class MultiviewSite:
    """One site's records; row i of every view is the same record.

    Security: single-site values; nothing of it may leave except inside a protected sum.
    """

    views: tuple[torch.Tensor | None, ...]  # [n, D_v] float32; None for a view that the site does not hold
    labels: torch.Tensor  # [n] int64, 0 <= label < classes; only for scoring
    patients: tuple[int, ...] | None = None  # whose each record is, as numbers; None if unknown

    @property
    def held(self) -> tuple[int, ...]:
        """Positions of the views that the site holds."""
        return tuple(view for view, records in enumerate(self.views) if records is not None)

    def first(self, most: int, site_id: SiteId) -> MultiviewSite:
        """The first ``algorithm.max_records`` records; more are left out at a hospital, else an error."""
        if len(self.labels) <= most:
            return self
        message = f"site {site_id!r} has more records than algorithm.max_records"
        unfit(DataError(message, remedy="raise algorithm.max_records in the study file"))
        views = tuple(None if view is None else view[:most] for view in self.views)
        patients = None if self.patients is None else self.patients[:most]
        return MultiviewSite(views, self.labels[:most], patients)


@runtime_checkable
class MultiviewData(FederatedData, Protocol):
    """A data set whose records have several views."""

    @property
    def view_sizes(self) -> tuple[int, ...]:
        """Features of each view, D_1 .. D_V."""

    @property
    def classes(self) -> int:
        """Number of classes that scoring knows, at least 2."""

    @property
    def view_of(self) -> Mapping[SiteId, int | None]:
        """Public: the one view (from 0) that a site holds, or None for a site that holds all."""

    def site(self, site_id: SiteId) -> MultiviewSite:
        """One site's records."""


def several_views(algorithm: str, source: str, data: FederatedData) -> MultiviewData:
    """The data set of a study, which must have several views; ``source`` is its name."""
    if not isinstance(data, MultiviewData) or len(data.view_sizes) < 2:
        raise ConfigError(
            f"data.name: {algorithm} needs several views of a record, which {source} does not give",
            remedy="use a multi-view data set, for example digits-views or multiview",
        )
    return data


class ViewHolders:
    """Part of a plan: its sites by the views that they hold."""

    view_of: Mapping[SiteId, int | None]  # the one view of every site, or None for all views

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites."""
        return tuple(self.view_of)

    @cached_property
    def full(self) -> tuple[SiteId, ...]:
        """Sites that hold all views of their records."""
        return tuple(site for site, view in self.view_of.items() if view is None)


@dataclass(frozen=True, repr=False)
class ViewRecords:
    """Records as a data set keeps them: see :class:`MultiviewSite`; None for a view that was not read."""

    views: tuple[NDArray[np.float32] | None, ...]
    labels: NDArray[np.int64]
    patients: NDArray[np.str_] | None = None  # [n] names; None where nobody says

    def take(self, rows: NDArray[np.int64]) -> ViewRecords:
        """The records at these positions, in this order."""
        views = tuple(None if view is None else view[rows] for view in self.views)
        return ViewRecords(views, self.labels[rows], None if self.patients is None else self.patients[rows])


class ViewSites:
    """Records that ``read`` gives: those of a site, in the views that it holds (others are left out).

    ``tied`` are keys of the study that scale records by other records, of this site or another.
    """

    def __init__(
        self,
        read: Callable[[SiteId, tuple[int, ...]], ViewRecords],
        *,
        view_of: Mapping[SiteId, int | None],
        view_sizes: tuple[int, ...],
        classes: int,
        tied: tuple[str, ...] = (),
    ) -> None:
        self.sites: tuple[SiteId, ...] = tuple(view_of)
        self.view_of: Mapping[SiteId, int | None] = dict(view_of)
        self.view_sizes = view_sizes
        self.classes = classes
        self._read, self._tied = read, tied

    def for_record_privacy(self, *, slots: bool = False) -> Self:
        """The same records; ConfigError if one is scaled by others. Nothing is held out: no slots."""
        del slots
        if self._tied:
            raise ConfigError(
                f'{", ".join(self._tied)}: "min-max" lets one record change all others, so no epsilon per '
                "record would be true",
                remedy="give the usual range of every view as public constants, data.scale = "
                "{ view = [low, high] }",
            )
        return self

    def site(self, site_id: SiteId) -> MultiviewSite:
        """One site's records of the views that it holds."""
        site_index(self.sites, site_id)
        held = views_held(self, site_id)
        records = self._read(site_id, held)
        views = tuple(
            torch.from_numpy(np.ascontiguousarray(view, dtype=np.float32))
            if view is not None and position in held
            else None
            for position, view in enumerate(records.views)
        )
        labels = torch.from_numpy(np.ascontiguousarray(records.labels, dtype=np.int64))
        patients = None if records.patients is None else numbered(records.patients.tolist())
        return check_multiview(site_id, MultiviewSite(views, labels, patients), self)


def views_held(data: MultiviewData, site_id: SiteId) -> tuple[int, ...]:
    """Positions of the views that a site holds, from public facts only."""
    view = data.view_of[site_id]
    return tuple(range(len(data.view_sizes))) if view is None else (view,)


def check_multiview(site_id: SiteId, site: MultiviewSite, data: MultiviewData) -> MultiviewSite:
    """Check one site's records against the public facts.

    At a hospital NaN, Inf and labels outside the classes become 0
    (:mod:`secfed.algorithms.framework.unfit`). DataError, which names no value, for no records, other views
    than ``view_of`` says, and wrong shapes or types; in a simulation also for values that do not fit.
    """
    who = f"site {site_id!r}"
    labels = site.labels
    if not len(labels):
        raise no_records(site_id)
    if len(site.views) != len(data.view_sizes) or site.held != views_held(data, site_id):
        raise DataError(
            f"{who} does not hold the views that the study says",
            remedy="give one entry per view, None for a view that view_of says the site does not hold",
        )
    if site.patients is not None and len(site.patients) != len(labels):
        message = f"{who} has not one patient per record"
        raise DataError(message, remedy="give the patient of every record, or of none")
    views: list[torch.Tensor | None] = []
    for view, (records, size) in enumerate(zip(site.views, data.view_sizes, strict=True), start=1):
        if records is None:
            views.append(None)
            continue
        one_each = tuple(records.shape[:1]) == (len(labels),)
        if tuple(records.shape) != (len(labels), size) or records.dtype != torch.float32:
            raise DataError(
                # How many records a hospital has is a value of its own: not in any message.
                f"{who}: view {view} is {records.dtype} with rows of shape {tuple(records.shape[1:])}"
                f"{'' if one_each else ', and not one row per record'}, but the study's view has {size} "
                "float32 features per record",
                remedy="every site must prepare a view in the same way, one row per record",
            )
        if not bool(torch.isfinite(records).all()):
            message = f"{who}: view {view} contains NaN or infinite features"
            unfit(
                DataError(message, remedy="repair the records, or set data.missing where the data set has it")
            )
            records = zero_if_not_finite(records)
        views.append(records)
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(f"{who}: labels are not one int64 per record", remedy="give [n] int64 labels")
    if not 0 <= int(labels.min()) <= int(labels.max()) < data.classes:
        message = f"{who} has a label outside the study's {data.classes} classes"
        unfit(
            DataError(
                message,
                remedy="check data.classes and data.first_label (1 where the labels count from 1)",
            )
        )
        labels = first_class_if_unknown(labels, data.classes)
    return MultiviewSite(tuple(views), labels, site.patients)
