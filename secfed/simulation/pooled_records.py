"""All records of a kind at one site, as nobody has them outside a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from secfed.algorithms.data.transfer.base import Samples
from secfed.algorithms.framework.datasets import FederatedData, SiteId


def with_pooled_records(data: FederatedData) -> tuple[FederatedData, Mapping[SiteId, SiteId]]:
    """The data set in which the first site of every kind has all records of its kind; each site's such site.

    Sites are of one kind unless the data set says which view, or what, each of them holds.
    """
    kinds = getattr(data, "view_of", None) or getattr(data, "kind_of", None) or {}
    groups: dict[Any, list[SiteId]] = {}
    for site in data.sites:
        groups.setdefault(kinds.get(site), []).append(site)
    members = {group[0]: group for group in groups.values()}

    class Pooled:
        sites = data.sites

        def site(self, site_id: SiteId) -> Any:
            return _joined([data.site(one) for one in members[site_id]])  # type: ignore[attr-defined]

    for name in dir(data):  # in the class, where checks of what a data set has look for them
        if not name.startswith("_") and not hasattr(Pooled, name):
            setattr(Pooled, name, property(partial(_forwarded, data, name)))
    return Pooled(), {site: place for place, group in members.items() for site in group}


def _forwarded(data: FederatedData, name: str, _pooled: object) -> Any:
    return getattr(data, name)


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if any(part is None for part in parts):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, tuple):  # of views
        return tuple(_joined(views) for views in zip(*parts, strict=True))
    if not is_dataclass(first) or isinstance(first, type):
        return first  # what a site holds
    # One who stands for no record has none to give; patients are told apart under [privacy] only.
    parts = [part for part in parts if not getattr(part, "blank", False)] or list(parts)
    if isinstance(first, Samples):
        parts = _with_shifted_sources(parts)
    of = {one.name: [getattr(part, one.name) for part in parts] for one in fields(first)}
    values = {name: None if name.endswith("patients") else _joined(given) for name, given in of.items()}
    return replace(parts[0], **values)


def _with_shifted_sources(parts: Sequence[Samples]) -> Sequence[Samples]:
    """Captions point to images by position."""
    if any(part.sources is None or part.images is None for part in parts):
        return parts
    before = accumulate((len(part.images) for part in parts if part.images is not None), initial=0)
    return [
        replace(part, sources=None if part.sources is None else part.sources + shift)
        for part, shift in zip(parts, before, strict=False)
    ]
