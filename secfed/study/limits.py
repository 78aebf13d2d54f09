"""What an aggregator and a site both derive from a study: its id, and what every site enforces."""

from __future__ import annotations

from secfed.config.cohort_rules import min_survivors
from secfed.crypto.attempt import SiteLimits
from secfed.study.study import Study


def study_id(study: Study) -> str:
    """Name and settings: parties with different settings cannot sum together."""
    return f"{study.name}-{study.digest().hex()}"


def limits_of(study: Study, sites: int) -> SiteLimits:
    """What every site enforces in every attempt because the study says so, whatever its own policy."""
    rules, privacy = study.protection, study.privacy
    # A threshold that the study names is one that algorithms rely on: fewer answers could be solved.
    least = max(rules.min_cohort, rules.threshold or 0)
    if privacy is not None and not privacy.in_local_steps:
        # Fewer would carry less noise than was paid for.
        least = max(least, min_survivors(study.protection, sites))
    return SiteLimits(
        min_cohort=rules.min_cohort,
        min_threshold=least,
        max_dropouts=rules.max_dropouts,
        # None leaves it to the roster, which says nothing about a cohort drawn from it.
        colluders=rules.colluders if rules.sites_per_round is None else rules.colluders_for(sites),
        require_privacy=privacy is not None,
    )
