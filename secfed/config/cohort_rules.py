"""How many sites and answers a cohort needs, as an aggregator and a site both derive it.

Everywhere ``rules`` is ``[protection]`` of the study, and ``roster_sites`` counts the pinned roster's sites.
``members`` counts the sites that the study asks in one exchange, whether they answer or not; without them
``protection.max_dropouts`` is left aside.
"""

from __future__ import annotations

from secfed.config.sections import ProtectionSection
from secfed.crypto import thresholds


def threshold(rules: ProtectionSection, roster_sites: int, cohort: int, members: int = 0) -> int:
    """Answers that a cohort of this size needs; more than it has sites if it must not be summed at all."""
    missing = members if rules.max_dropouts is None else rules.max_dropouts
    return max(_of_cohort(rules, roster_sites, cohort), members - missing)


def _of_cohort(rules: ProtectionSection, roster_sites: int, cohort: int) -> int:
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
    """Fewest sites worth asking: in a smaller cohort every site would refuse."""
    if rules.traits.free_dropouts:
        return rules.min_cohort
    # Two honest sites at least, whoever colludes; plain gives up where masked does.
    return max(rules.min_cohort, min(rules.colluders_for(roster_sites) + 2, roster_sites))


def min_survivors(rules: ProtectionSection, roster_sites: int, members: int = 0) -> int:
    """The smallest survivor set that any permitted cohort can end with."""
    cohorts = range(min(rules.min_cohort, roster_sites), roster_sites + 1)
    return min(threshold(rules, roster_sites, cohort, members) for cohort in cohorts)
