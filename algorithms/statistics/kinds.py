"""The analyses that a study can name, and what stands for them under noise in the sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from secfed.algorithms.statistics.analysis import Analysis
from secfed.algorithms.statistics.correlation import Correlation
from secfed.algorithms.statistics.counts import Counts
from secfed.algorithms.statistics.cox import Cox
from secfed.algorithms.statistics.describe import Describe
from secfed.algorithms.statistics.glm import Glm
from secfed.algorithms.statistics.histogram import Histogram
from secfed.algorithms.statistics.kaplan_meier import KaplanMeier
from secfed.algorithms.statistics.noisy_correlation import NoisyCorrelation
from secfed.algorithms.statistics.noisy_describe import NoisyDescribe
from secfed.algorithms.statistics.noisy_glm import NoisyGlm
from secfed.algorithms.statistics.noisy_kaplan_meier import NoisyKaplanMeier
from secfed.algorithms.statistics.noisy_linear import NoisyLinear
from secfed.algorithms.statistics.noisy_roc import NoisyRoc
from secfed.algorithms.statistics.noisy_t_test import NoisyTTest
from secfed.algorithms.statistics.options import AnalysisOptions, GlmOptions
from secfed.algorithms.statistics.roc import Roc
from secfed.algorithms.statistics.t_test import TTest

ANALYSES: Final[Mapping[str, type[Analysis]]] = {
    one.kind: one for one in (Counts, Describe, Histogram, Glm, Roc, TTest, Correlation, KaplanMeier, Cox)
}
NOISY: Final[Mapping[str, type[Analysis]]] = {
    one.kind: one
    for one in (NoisyDescribe, NoisyGlm, NoisyRoc, NoisyTTest, NoisyCorrelation, NoisyKaplanMeier)
}


def kind_of(options: AnalysisOptions, *, noisy: bool) -> type[Analysis]:
    """The class of an analysis; without a mechanism for noise, that of sums without."""
    if noisy and isinstance(options, GlmOptions) and options.family == "gaussian":
        return NoisyLinear
    return (NOISY if noisy else {}).get(options.kind) or ANALYSES[options.kind]
