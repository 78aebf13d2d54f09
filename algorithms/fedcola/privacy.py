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
from secfed.algorithms.framework.coupled_privacy import check_coupled
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError


def check_privacy(options: FedColaOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it.

    Raises:
        ConfigError: names the key and what to set instead.
    """
    if privacy is None:
        return
    check_coupled(privacy, "fedcola", "sites with pairs compare the pairs of a batch with each other")
    if options.weighting == "records":
        raise ConfigError(
            'algorithm.weighting: "records" lets numbers of records leave without noise',
            remedy='set algorithm.weighting = "equal"',
        )
