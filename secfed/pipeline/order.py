"""Which stages a contribution passes, and in which order.

Weights are the algorithm's business: what a site program contributes is multiplied by them already. What a
sum with noise spends (:meth:`SiteNoise.event`) follows from the same plan as its clipping and its noise, and
is paid before any record is touched.
"""

from __future__ import annotations

from typing import Final

from secfed.dp.mechanisms.noise import SiteNoise
from secfed.pipeline.clip import JointClip
from secfed.pipeline.encode import FixedPoint
from secfed.pipeline.noise import NoiseShare
from secfed.pipeline.stage import Pipeline

WITHOUT_NOISE: Final = Pipeline(before=(), encode=FixedPoint(), after=())


def with_noise(noise: SiteNoise) -> Pipeline:
    """The stages of an exchange whose sum carries noise."""
    return Pipeline(before=(JointClip(noise),), encode=FixedPoint(), after=(NoiseShare(noise),))
