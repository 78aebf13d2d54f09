"""What a site of vision-language pre-training plans under ``[privacy]``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from secfed.algorithms.vision_language.options import RobustOptions

if TYPE_CHECKING:
    from secfed.algorithms.vision_language.setup import VlpSetup
    from secfed.dp.training.local_privacy import LocalPrivacy


def plan(
    algorithm: VlpSetup, privacy: LocalPrivacy, pairs: int, patients: tuple[int, ...] | None = None
) -> None:
    """Plan everything that a site is going to do in the study; it follows from public facts.

    Args:
        algorithm: the study's.
        privacy: the site's.
        pairs: how many training pairs the site has; treated as public.
        patients: whose each pair is, as numbers; how many pairs each patient has is treated as public.

    Raises:
        ConfigError: no noise reaches the study's epsilon, or a relation that hides patients without any.
    """
    from secfed.dp.training.local_privacy import LossRelease, Phase  # the accountants are slow to import

    options, rule = algorithm.options, algorithm.rule
    steps: Counter[str] = Counter()
    releases = 0
    for round_number in range(1, algorithm.setting.study.rounds + 1):
        for stage in algorithm.stages(round_number):
            steps[stage.name] += stage.steps
            releases += stage.measures is not None
    phases = [
        Phase(name, pairs, options.batch_size, steps=count, patients=patients)
        for name, count in steps.items()
        if count
    ]
    if rule is None or not isinstance(options, RobustOptions):
        privacy.plan(*phases)
        return
    chosen = options.loss_batches if "loss_batches" in options.model_fields_set else None
    losses = LossRelease(
        records=pairs,
        size=options.loss_batch_size,
        releases=releases,
        cap=rule.cap,
        groups=chosen,  # without a wish, all: the more, the less noise
        share=options.loss_share,
        patients=patients,
    )
    privacy.plan(*phases, losses=losses)
