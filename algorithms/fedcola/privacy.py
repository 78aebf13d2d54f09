"""FedCola under ``[privacy]``: which studies have a guarantee, and what private training consists of.

Sites with pairs train on a contrast of all pairs of a batch, so no gradient belongs to one record. The unit
is therefore a fixed *group* of records, at every site, whose gradient is clipped as a whole, or the whole
site, with noise in the sums. An image with several captions is one record: private training takes its first
caption only, for its captions would lie in several groups.

Updates are all that leaves, besides scores where the study says so. Sites count the same.

Source: :mod:`secfed.dp.accounting.unit` (units), :mod:`secfed.dp.training.local_privacy` (composition).
"""

from __future__ import annotations

from secfed.algorithms.fedcola.options import FedColaOptions
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError


def check_privacy(options: FedColaOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it.

    Raises:
        ConfigError: names the key and what to set instead.
    """
    if privacy is None:
        return
    if privacy.unit == "record":
        raise ConfigError(
            'privacy.unit: "record" is impossible: sites with pairs compare the pairs of a batch with each '
            "other, so clipping the gradient of one pair would not bound what that pair can do",
            remedy='set privacy.unit = "group" and privacy.group_size (a record is still protected, in a '
            'fixed group that is clipped as one), or privacy.unit = "site"',
        )
    if options.weighting == "records":
        raise ConfigError(
            'algorithm.weighting: "records" lets numbers of records leave without noise',
            remedy='set algorithm.weighting = "equal"',
        )
    if privacy.weights == "unprotected":
        raise ConfigError(
            "privacy.weights: has no effect, the sites of fedcola all count the same under [privacy]",
            remedy="remove it",
        )
    if privacy.metrics == "private":
        raise ConfigError(
            'privacy.metrics: "private" is not offered for retrieval, where one pair moves the ranks of all',
            remedy='set privacy.metrics = "withheld", or "unprotected" where held-out records are public',
        )
