from __future__ import annotations

import fmcsc_kinds as made
import numpy as np


def test_each_kind_is_clustered_by_itself_and_by_the_centres_of_all_views():
    near, far = [[0.0], [0.1]], [[10.0], [10.1]]
    records = np.array(
        near + far + [[0.0], [0.2], [0.1], [0.3]]
    )  # one view: both classes beside the first centre
    labels = np.array([0, 0, 1, 1, 0, 1, 0, 1])
    kinds = np.array([made.ALL_VIEWS] * 4 + ["view 1 only"] * 4)
    assert made.rows(records, labels, kinds, starts=5) == [
        [made.ALL_VIEWS, "4", "100.0", "100.0"],
        ["view 1 only", "4", "100.0", "50.0"],
        ["all", "8", "75.0", "75.0"],
    ]
