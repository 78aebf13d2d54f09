"""What an algorithm is given to work with: the study, the data set and a way to make the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from torch import nn

from secfed.algorithms.framework.datasets import FederatedData, LabelledData, SiteId
from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from secfed.config.schema import ModelOptions, Options
    from secfed.config.sections import ProtectionSection
    from secfed.dp.settings import PrivacySection

FIXED_COHORT: Final = 0  # in place of a round's number: the cohort that the whole study keeps


class StudySettings(Protocol):
    """What an algorithm reads of a study: its sections; :class:`secfed.study.study.Study` has them."""

    folder: Path  # where relative paths start
    algorithm: Options
    model: ModelOptions
    data: Options
    protection: ProtectionSection
    privacy: PrivacySection | None

    @property
    def rounds(self) -> int:
        """Number of training rounds."""

    @property
    def seed(self) -> int:
        """Seed of what all parties draw alike; protects nothing."""

    def digest(self) -> bytes:
        """Names the study and all of its settings; 32 bytes."""


@dataclass(frozen=True)
class Setting:
    """One study's ingredients; the same on every machine, except whose records ``data`` can read."""

    study: StudySettings
    data: FederatedData
    model: Callable[[], nn.Module]  # with the same initial parameters every time
    # Follows from a secret of this site and study; None in simulation and at the aggregator. See local_seed.
    site_seed: int | None = field(default=None, repr=False)

    @property
    def local_seed(self) -> int:
        """Seed of what only a site's own work uses: batch order, dropout, augmentation.

        In a hospital it follows from a secret of that hospital and study; in simulation it is the study's, so
        that a study gives the same bytes every time. What all parties agree on (initial model, partitions,
        who takes part) takes ``study.seed``.

        Security: with a public seed two studies of one seed would order every hospital's batches alike, and
        the difference of their sums could be the update of one hospital that only one of them has.
        """
        return self.study.seed if self.site_seed is None else self.site_seed

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites of the study."""
        return self.data.sites

    def cohort(self, round_number: int, sites: Sequence[SiteId]) -> tuple[SiteId, ...]:
        """Those of ``sites`` that a round asks: all, or those drawn for it by ``protection.sites_per_round``.

        ``FIXED_COHORT`` instead of a round's number gives the sites whose constant numbers may be summed.

        Security: drawn from all sites of the study, by its digest and the number of the round. Sites refuse
        anybody else in a sum (38), so an aggregator that runs a study has no choice; its author had
        (docs/adr/031).
        """
        drawn = self.study.protection.sites_per_round
        if drawn is None:
            return tuple(sites)
        chosen = _drawn(self._study_digest, round_number, self.sites, drawn)
        return tuple(site for site in sites if site in chosen)

    @property
    def sites_in_a_sum(self) -> int:
        """The most sites that are ever in one sum."""
        return self.study.protection.asked_of(len(self.sites))

    @cached_property
    def _study_digest(self) -> bytes:
        return self.study.digest()

    def labelled(self) -> LabelledData:
        """The data set, for algorithms that train classifiers."""
        if not isinstance(self.data, LabelledData):
            raise ConfigError(
                f"data.name: {self.study.algorithm.name} needs labelled records, "
                f"which {self.study.data.name} does not give",
                remedy="name another data set; one of your own needs sites, input_shape, classes and site(), "
                "see LabelledData",
            )
        return self.data


@lru_cache(maxsize=64)  # all parties of a simulation ask for the same few rounds
def _drawn(study: bytes, round_number: int, sites: tuple[SiteId, ...], count: int) -> frozenset[SiteId]:
    """The sites with the smallest hashes: every set of ``count`` is equally likely, on any machine alike."""

    def ticket(site: SiteId) -> bytes:
        return digest(labels.SAMPLED_COHORT, study, round_number.to_bytes(4, "big"), site.encode())

    return frozenset(sorted(sites, key=ticket)[:count])
