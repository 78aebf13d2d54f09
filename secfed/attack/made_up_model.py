"""Updates that a made-up model gives: one broadcast for all, on which only rare records train.

The bias of a layer of ReLUs switches every unit off, except for records with one feature that the attacker
asks about. All others have a gradient of exactly zero, so that a sum is the update of those with such
records. Source: Boenisch et al., EuroS&P 2023 (trap weights); Fowl et al., "Robbing the Fed", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from secfed.attack.scene import RingVector
from secfed.crypto.lanes import Run

_SIDE: Final = 64  # features, and units of the layer
_RECORDS: Final = 20
_SWITCH: Final = 1e3  # the bias; no ordinary record comes near it
_SCALE: Final = 2.0**10


def updates(sites: Sequence[str], victim: str, runs: Sequence[Run], seed: int) -> dict[str, RingVector]:
    """What every site adds after a step from the made-up model; ``runs`` is one of 4096 lanes.

    Records are drawn alike, but only the victim's have the feature.
    """
    (run,) = runs
    generator = np.random.default_rng(np.random.PCG64([seed, _SIDE]))
    weights = generator.normal(size=(_SIDE, _SIDE))
    weights[:, 0] = 2 * _SWITCH
    head = generator.normal(size=_SIDE)
    made: dict[str, RingVector] = {}
    for site in sites:
        records = generator.normal(size=(_RECORDS, _SIDE))
        records[:, 0] = float(site == victim)
        targets = generator.normal(size=_RECORDS)
        # Gradient of the mean squared error of head . relu(W x - bias), by W: [units, features].
        before = records @ weights.T - _SWITCH
        error = np.maximum(before, 0.0) @ head - targets
        gradient = ((error[:, None] * (before > 0)) * head).T @ records / len(records)
        gradient /= max(1.0, float(np.abs(gradient).max())) / _SCALE
        lanes = np.rint(gradient).astype(np.int64).reshape(-1).astype(run.dtype)
        made[site] = (lanes & run.dtype.type((1 << run.bits) - 1),)
    return made
