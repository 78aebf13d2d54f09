"""What an aggregator and a site both derive from a study: its id, and how many answers a cohort needs."""

from __future__ import annotations

from secfed.crypto import thresholds
from secfed.study import Study


def study_id(study: Study) -> str:
    """Name and settings: parties with different settings cannot sum together."""
    return f"{study.name}-{study.digest().hex()}"


def threshold(study: Study, roster_sites: int, cohort: int) -> int:
    """Answers that a cohort of this size needs.

    Args:
        study: the study.
        roster_sites: sites in the pinned roster.
        cohort: sites in the cohort.
    """
    rules = study.protection
    if rules.threshold is not None:
        return rules.threshold
    if rules.name == "encrypted":
        return rules.min_cohort  # no shares are needed, so dropouts are free
    if cohort < thresholds.FLOOR:
        return cohort  # plain only; masked refuses such a cohort
    # Plain asks for as many answers as masked would, so that both give up the same rounds.
    return thresholds.default_threshold(cohort, rules.colluders_for(roster_sites))


def least_survivors(study: Study, sites: int) -> int:
    """The smallest survivor set that any permitted cohort can end with.

    Args:
        study: the study.
        sites: enrolled sites.
    """
    cohorts = range(min(study.protection.min_cohort, sites), sites + 1)
    return min(threshold(study, sites, cohort) for cohort in cohorts)
