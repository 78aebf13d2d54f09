"""Sites of different public kinds in one sum: by what they hold, and so by which of its inputs they read.

Security: who adds what follows from what a site was sent. Where one kind reads what another does not, an
aggregator can make that part up so that all of the kind add zeros (work that fails does, and is no refusal)
or something it knows, and put one site of another kind beside them. So each kind is a part of the sum by
itself: none of it is there, or enough to hide one another. A kind that has too few in the whole study has no
place in such a sum, nor in another that has the same numbers of its records: the difference would be its own.
All of it follows from the study alone. Where all members read the same, they fail alike, and need no parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from secfed.algorithms.framework.base import SiteId
from secfed.config.schema import LATER, Strict

Parts = tuple[tuple[frozenset[SiteId], int], ...]  # see Algorithm.contributors


class KindOptions(Strict):
    """What becomes of kinds that are too small."""

    small_kinds: Literal["left-out", "summed"] = Field(
        default="left-out",
        json_schema_extra=LATER,
        description='hospitals of whose kind there are too few: "left-out" of sums with other '
        'kinds, or "summed" all the same, as in papers (plain protection only)',
    )


def by_kind(kind_of: Mapping[SiteId, Hashable], sites: Iterable[SiteId]) -> tuple[tuple[SiteId, ...], ...]:
    """These sites by their kind, in the order in which they come."""
    kinds: dict[Hashable, list[SiteId]] = {}
    for site in sites:
        kinds.setdefault(kind_of[site], []).append(site)
    return tuple(map(tuple, kinds.values()))


def of_large_kinds(
    kind_of: Mapping[SiteId, Hashable], sites: Sequence[SiteId], fewest: int
) -> tuple[SiteId, ...]:
    """Those of these sites of whose kind there are at least ``fewest``: who may add to a sum of several."""
    large = {site for kind in by_kind(kind_of, sites) if len(kind) >= fewest for site in kind}
    return tuple(site for site in sites if site in large)


def parts_by_kind(kind_of: Mapping[SiteId, Hashable], sites: Iterable[SiteId], fewest: int) -> Parts:
    """Every kind among the sites that add to a sum, as a part of it; one kind alone needs none."""
    kinds = by_kind(kind_of, sites)
    return tuple((frozenset(kind), fewest) for kind in kinds) if len(kinds) > 1 and fewest > 1 else ()


def drawn(
    kind_of: Mapping[SiteId, Hashable], order: Sequence[SiteId], count: int, fewest: int
) -> tuple[SiteId, ...]:
    """The first ``count`` sites of a random order; where too few of a kind would be among them, by kinds.

    Then as many as are wanted are of the first site's kind, and of others only if that has no more; at least
    ``fewest`` of each. A site comes as often in the long run as it would otherwise, or more often.
    """
    first = tuple(order[:count])
    if of_large_kinds(kind_of, first, fewest) == first:
        return first
    picked: tuple[SiteId, ...] = ()
    for kind in by_kind(kind_of, order):
        if len(picked) < count:
            picked += kind[: max(count - len(picked), fewest)]
    return picked
