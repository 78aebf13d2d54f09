"""What ``[privacy]`` cannot offer where losses compare records with each other.

No gradient belongs to one record then: clipping "per record" would bound nothing. The unit is a fixed *group*
of records, whose gradient is clipped as a whole, or the whole site, with noise in the sums.
"""

from __future__ import annotations

from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError


def check_coupled(privacy: PrivacySection, algorithm: str, coupling: str) -> None:
    """Refuse a study whose epsilon would be wrong; ``coupling`` says which records are compared where."""
    if privacy.unit == "record":
        raise ConfigError(
            f'privacy.unit: "record" is impossible: {coupling}, so clipping the gradient of one record would '
            "not bound what that record can do",
            remedy='set privacy.unit = "group" and privacy.group_size (a record is still protected, in a '
            'fixed group that is clipped as one), or privacy.unit = "site"',
        )
    if privacy.metrics == "private":
        raise ConfigError(
            f'privacy.metrics: "private" is not offered by {algorithm}, where one record moves the scores of '
            "others",
            remedy='set privacy.metrics = "withheld", or "unprotected" where held-out records are public',
        )
    if privacy.weights == "unprotected":
        message = f"privacy.weights: has no effect, the sites of {algorithm} all count the same"
        raise ConfigError(message, remedy="remove it")
