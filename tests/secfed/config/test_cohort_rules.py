"""What a study makes every site insist on, whatever the site's own policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secfed.crypto.attempt import SiteLimits
from secfed.site.terms import Terms
from secfed.study.limits import limits_of
from secfed.study.study import Study
from tests.algorithms.loop import BREAST_CANCER


def study(**protection: object) -> Study:
    made = Study.parse(BREAST_CANCER).replace("data.sites", 6)
    for key, value in {"name": "masked", **protection}.items():
        made = made.replace(f"protection.{key}", value)
    return made


def limits(made: Study, policy: SiteLimits) -> SiteLimits:
    terms = Terms(made, None, ("a", "b", "c", "d", "e", "f"))  # type: ignore[arg-type]  # no algorithm is asked
    return terms.limits(policy)


def test_a_threshold_that_the_study_names_is_enforced_by_every_site():
    """Algorithms count on it: a sum of DRO numbers over fewer sites could be solved for single losses."""
    made = study(threshold=5)
    assert limits_of(made, 6).min_threshold == 5
    assert limits(made, SiteLimits()).min_threshold == 5
    assert limits(made, SiteLimits(min_threshold=6)).min_threshold == 6
    assert limits_of(study(), 6).min_threshold == 3


@pytest.mark.parametrize(
    ("of_the_study", "of_the_policy", "both"),
    [(None, None, None), (2, None, 2), (None, 1, 1), (2, 1, 2), (1, 2, 2)],
)
def test_the_larger_number_of_colluders_counts(of_the_study, of_the_policy, both):
    made = study() if of_the_study is None else study(colluders=of_the_study)
    assert limits(made, SiteLimits(colluders=of_the_policy)).colluders == both


def test_everything_else_is_the_stricter_of_the_two():
    policy = SiteLimits(min_cohort=4, max_elements=1000, require_privacy=True)
    assert limits(study(min_cohort=3), policy) == replace(policy, min_threshold=3)
    assert limits(study(min_cohort=5), policy) == replace(policy, min_cohort=5, min_threshold=5)
