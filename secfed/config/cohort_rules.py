"""How many sites and answers a cohort needs, as an aggregator and a site both derive it."""

from __future__ import annotations

from secfed.config.sections import ProtectionSection
from secfed.crypto import thresholds


def threshold(rules: ProtectionSection, roster_sites: int, cohort: int) -> int:
    """Answers that a cohort of this size needs; more than it has sites if it must not be summed at all.

    Args:
        rules: ``[protection]`` of the study.
        roster_sites: sites in the pinned roster.
        cohort: sites in the cohort.
    """
    if rules.threshold is not None:
        return max(rules.threshold, rules.min_cohort)
    if rules.traits.free_dropouts:
        return rules.min_cohort
    if cohort < thresholds.FLOOR:
        return cohort  # plain only; masked refuses such a cohort
    # Plain asks for as many answers as masked would, so that both give up the same rounds.
    answers = thresholds.default_threshold(cohort, rules.colluders_for(roster_sites))
    return max(answers, rules.min_cohort)  # no site lets fewer survive


def min_cohort(rules: ProtectionSection, roster_sites: int) -> int:
    """Fewest sites worth asking: in a smaller cohort every site would refuse.

    Args:
        rules: ``[protection]`` of the study.
        roster_sites: sites in the pinned roster.
    """
    if rules.traits.free_dropouts:
        return rules.min_cohort
    # Two honest sites at least, whoever colludes; plain gives up where masked does.
    return max(rules.min_cohort, min(rules.colluders_for(roster_sites) + 2, roster_sites))


def min_survivors(rules: ProtectionSection, sites: int) -> int:
    """The smallest survivor set that any permitted cohort can end with.

    Args:
        rules: ``[protection]`` of the study.
        sites: enrolled sites.
    """
    cohorts = range(min(rules.min_cohort, sites), sites + 1)
    return min(threshold(rules, sites, cohort) for cohort in cohorts)
