"""What an aggregator and a site both derive from a study: its id, and how many answers a cohort needs."""

from __future__ import annotations

from secfed.crypto import thresholds
from secfed.crypto.attempt import SiteLimits
from secfed.study import Study


def study_id(study: Study) -> str:
    """Name and settings: parties with different settings cannot sum together."""
    return f"{study.name}-{study.digest().hex()}"


def threshold(study: Study, roster_sites: int, cohort: int) -> int:
    """Answers that a cohort of this size needs; more than it has sites if it must not be summed at all.

    Args:
        study: the study.
        roster_sites: sites in the pinned roster.
        cohort: sites in the cohort.
    """
    rules = study.protection
    if rules.threshold is not None:
        return max(rules.threshold, rules.min_cohort)
    if rules.name == "encrypted":
        return rules.min_cohort  # no shares are needed, so dropouts are free
    if cohort < thresholds.FLOOR:
        return cohort  # plain only; masked refuses such a cohort
    # Plain asks for as many answers as masked would, so that both give up the same rounds.
    answers = thresholds.default_threshold(cohort, rules.colluders_for(roster_sites))
    return max(answers, rules.min_cohort)  # no site lets fewer survive


def least_cohort(study: Study, roster_sites: int) -> int:
    """Fewest sites worth asking: in a smaller cohort every site would refuse.

    Args:
        study: the study.
        roster_sites: sites in the pinned roster.
    """
    rules = study.protection
    if rules.name == "encrypted":
        return rules.min_cohort
    # Two honest sites at least, whoever colludes; plain gives up where masked does.
    return max(rules.min_cohort, min(rules.colluders_for(roster_sites) + 2, roster_sites))


def least_survivors(study: Study, sites: int) -> int:
    """The smallest survivor set that any permitted cohort can end with.

    Args:
        study: the study.
        sites: enrolled sites.
    """
    cohorts = range(min(study.protection.min_cohort, sites), sites + 1)
    return min(threshold(study, sites, cohort) for cohort in cohorts)


def limits_of(study: Study, sites: int) -> SiteLimits:
    """What every site enforces in every attempt because the study says so, whatever its own policy.

    Args:
        study: the study.
        sites: enrolled sites.
    """
    rules, privacy = study.protection, study.privacy
    # A threshold that the study names is one that algorithms rely on: fewer answers could be solved.
    least = max(rules.min_cohort, rules.threshold or 0)
    if privacy is not None and not privacy.in_local_steps:
        least = max(least, least_survivors(study, sites))  # fewer would carry less noise than was paid for
    return SiteLimits(
        min_cohort=rules.min_cohort,
        min_threshold=least,
        colluders=rules.colluders,
        require_privacy=privacy is not None,
    )
