"""A study as every hospital derives it, before anything of its own comes in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Roster
from secfed.errors import PolicyRefused
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.protection.interface import Protection
from secfed.protection.registry import make_protection
from secfed.study.build import build, build_data
from secfed.study.limits import limits_of, study_id
from secfed.study.study import Study
from secfed.study.warm_start import pinned_model


@dataclass(frozen=True)
class Terms:
    """What a site's share in a study follows from."""

    study: Study
    algorithm: Algorithm  # its plan, with noise
    sites: tuple[str, ...]  # the hospitals that it names, sorted

    @classmethod
    def of(cls, study: Study, roster: Roster, own: str) -> Terms:
        """Build a study and check that it is among members of the pinned roster.

        Raises:
            ConfigError: pieces that do not fit together, or a ``model.start`` without its digest.
            PolicyRefused: it names strangers, or not this site.
        """
        sites = tuple(sorted(build_data(study).sites))
        strangers = [site for site in sites if site not in roster.sites]
        if strangers:
            raise PolicyRefused(
                f"study {study.name!r} names sites that are not in the roster pinned here: "
                + ", ".join(strangers[:10]),
                remedy="the study centre admits them first, and every site pins the new roster",
                keys=("roster",),
            )
        if own not in sites:
            raise PolicyRefused(
                f"study {study.name!r} does not name this site",
                remedy="ask the study centre",
                keys=("roster",),
            )
        pinned_model(study)
        return cls(study, with_privacy(study, build(study), sites), sites)

    @cached_property
    def protection(self) -> Protection:
        """The study's."""
        return make_protection(self.study.protection, self.algorithm, self.study.rounds, self.sites)

    @cached_property
    def study_id(self) -> str:
        """Name and digest."""
        return study_id(self.study)

    def limits(self, policy: SiteLimits) -> SiteLimits:
        """What the site enforces in every attempt: the stricter of its policy and the study."""
        study = limits_of(self.study, len(self.sites))
        both = [limit for limit in (study.colluders, policy.colluders) if limit is not None]
        return replace(
            policy,
            min_cohort=max(policy.min_cohort, study.min_cohort),
            min_threshold=max(policy.min_threshold, study.min_threshold),
            max_dropouts=study.max_dropouts,
            colluders=max(both, default=None),
            require_privacy=policy.require_privacy or study.require_privacy,
        )
