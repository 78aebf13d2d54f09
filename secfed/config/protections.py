"""What the parties of a study must know of each protection before they build it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from secfed.crypto import thresholds

ProtectionName = Literal["plain", "masked", "encrypted"]
Reveal = Literal["aggregator", "sites"]


@dataclass(frozen=True)
class ProtectionTraits:
    """Properties of one protection; what follows from them is decided where it matters."""

    hides_sites: bool  # the aggregator never sees a single site's values
    aggregator_reads_sums: bool  # if not, every site opens sums and replays the server program
    opened_by_shares: bool  # sites give out shares that unmask, so the threshold is a matter of security
    free_dropouts: bool  # a sum needs no more answers than its smallest permitted cohort has
    least_cohort: int  # smallest permitted `protection.min_cohort`
    summary: str  # what the aggregator handled, for reports
    relies_on: str  # under which conditions a single site's values stay hidden, for reports
    own_options: tuple[str, ...] = ()  # keys of `[protection]` that only this protection reads


CLOSED: Final = "closed"
"""Masked protection with ``reveal = "sites"``, among :data:`TRAITS` and in records."""

TRAITS: Final[Mapping[str, ProtectionTraits]] = {
    "plain": ProtectionTraits(
        hides_sites=False,
        aggregator_reads_sums=True,
        opened_by_shares=False,
        free_dropouts=False,  # as many answers as masked would ask for, so that both give up the same rounds
        least_cohort=1,
        summary="none: the aggregator received each site's own values",
        relies_on="Nothing protects a single site's values from the aggregator.",
    ),
    "masked": ProtectionTraits(
        hides_sites=True,
        aggregator_reads_sums=True,
        opened_by_shares=True,
        free_dropouts=False,
        least_cohort=thresholds.FLOOR,
        summary="masked secure sum: the aggregator received masked values and learned sums over the cohort",
        relies_on="A single site's values stay hidden as long as no more sites help the aggregator than the "
        "study tolerates, and the pinned roster holds the right keys. All other sites together can always "
        "subtract their own values from a total.",
        own_options=("reveal", "graph", "dropout_rate", "keystream"),
    ),
    CLOSED: ProtectionTraits(
        hides_sites=True,
        aggregator_reads_sums=False,
        opened_by_shares=True,
        free_dropouts=False,
        least_cohort=thresholds.FLOOR,
        summary="masked secure sum, closed: the aggregator received masked values and relayed sums that only "
        "the sites can open",
        relies_on="A single site's values stay hidden as long as no more sites help the aggregator than the "
        "study tolerates, and the pinned roster holds the right keys. Sums stay hidden from the aggregator "
        "as long as no site that holds the study's key helps it. Every site reads all sums: the difference "
        "of two over different survivors can tell about a single site, as it does to an aggregator that "
        "reads sums. All other sites together can always subtract their own values from a total.",
        own_options=("reveal", "graph", "dropout_rate", "keystream", "key_holder"),
    ),
    "encrypted": ProtectionTraits(
        hides_sites=True,
        aggregator_reads_sums=False,
        opened_by_shares=False,
        free_dropouts=True,
        least_cohort=2,
        summary="homomorphic encryption: the aggregator handled ciphertexts only; the sites decrypt sums",
        relies_on="A single site's values stay hidden as long as no site that holds the study's key helps "
        "the aggregator: one such site is enough to read every site's values.",
        own_options=("key_mode", "key_holder", "scheme", "processes"),
    ),
}
