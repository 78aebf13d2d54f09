import numpy as np
from torch import nn

from secfed.algorithms.data.memory import SiteTables


def wards(patients: int = 200) -> SiteTables:
    rng = np.random.default_rng(1)
    x = {ward: rng.normal(size=(patients, 4)) for ward in ("north", "south", "west")}
    return SiteTables({ward: (x[ward], x[ward][:, 0] * x[ward][:, 1] > 0) for ward in x}, classes=2)


def net(input_shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, classes))
