"""Vision-language pre-training under ``[privacy]``: which studies have a guarantee, and what a site trains.

A contrastive loss compares every pair with the other pairs of its batch, so no gradient belongs to one
pair: clipping "per record" would bound nothing. The unit is a fixed *group* of pairs, whose gradient is
clipped as a whole, or the whole site, with noise in the sums.

Updates are all that leaves, besides evaluation where the study says so: training losses never do. A robust
weight is made from a loss that got noise first, and paid for; everything after that is post-processing.

Source: :mod:`secfed.dp.accounting.unit` (units), :mod:`secfed.dp.training.local_privacy` (composition).
"""

from __future__ import annotations

from secfed.algorithms.framework.coupled_privacy import check_coupled
from secfed.algorithms.vision_language.options import RobustOptions, VlpOptions
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError


def check_privacy(options: VlpOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it.

    Raises:
        ConfigError: names the key and what to set instead.
    """
    weighted = isinstance(options, RobustOptions) and options.rho > 0
    if "loss_share" in options.model_fields_set and (privacy is None or not weighted):
        raise ConfigError(
            "algorithm.loss_share: has no effect without [privacy] and algorithm.rho above 0",
            remedy="remove it",
        )
    if privacy is None:
        return
    name = options.name
    check_coupled(privacy, name, "a contrastive loss compares the pairs of a batch with each other")
    if privacy.in_local_steps and options.precision == "float16":
        raise ConfigError(
            'algorithm.precision: "float16" needs losses to be scaled up, and clipped gradients are not',
            remedy='set algorithm.precision = "bfloat16" or "float32"',
        )
    if weighted and not privacy.in_local_steps:
        raise ConfigError(
            "algorithm.rho: robust weights follow from each site's loss, and noise in the sum of updates "
            "does not cover them",
            remedy='set algorithm.rho = 0, or privacy.unit = "group", where losses get noise of their own',
        )
