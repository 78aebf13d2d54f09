"""A study of ``feddmvc`` that takes well under a second."""

from __future__ import annotations

from secfed.study.study import Study
from tests.algorithms.loop import changed

TINY = """
[study]
name = "feddmvc-tiny"
rounds = 4
seed = 5
[algorithm]
name = "feddmvc"
pretrain_rounds = 2
pretrain_epochs = 4
local_epochs = 4
restarts = 3
kmeans_iterations = 4
[model]
name = "multiview"
hidden = [16, 12]
features = 4
head_hidden = 8
[data]
name = "tests.algorithms.fmcsc_case:blobs"
views = [-1, -1, -1, 0, 0, 0, 1, 1, 1]
[protection]
name = "plain"
colluders = 1
"""


def study(**changes: object) -> Study:
    return changed(TINY, changes)
