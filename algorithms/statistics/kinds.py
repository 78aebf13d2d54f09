"""The analyses that a study can name."""

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
from secfed.algorithms.statistics.roc import Roc
from secfed.algorithms.statistics.t_test import TTest

ANALYSES: Final[Mapping[str, type[Analysis]]] = {
    one.kind: one for one in (Counts, Describe, Histogram, Glm, Roc, TTest, Correlation, KaplanMeier, Cox)
}
