"""Generated volumes with a bright round lesion in noise, and a small 3-D U-Net."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.framework.targets import Targets

SIDE = 16


def scans(volumes: int = 24) -> SiteTables:
    """Three hospitals whose scanners differ in brightness and noise."""
    rng = np.random.default_rng(7)
    grid = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"))
    tables = {}
    for site, (level, noise) in {"north": (0.2, 0.2), "south": (0.4, 0.3), "west": (0.3, 0.25)}.items():
        x, y = [], []
        for _ in range(volumes):
            centre = rng.uniform(4, SIDE - 4, size=(3, 1, 1, 1))
            lesion = ((grid - centre) ** 2).sum(axis=0) < rng.uniform(2, 4.5) ** 2
            x.append(level + 0.5 * lesion + noise * rng.standard_normal(lesion.shape))
            y.append(lesion)
        tables[site] = (np.stack(x)[:, None], np.stack(y).astype(int))
    targets = Targets.of_voxels(2, (SIDE, SIDE, SIDE))
    return SiteTables(tables, targets=targets, standardize=False)


def block(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv3d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU())


class UNet(nn.Module):
    """Two levels; what the upper one saw goes past the lower one."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: int = 8) -> None:
        super().__init__()
        self.down = block(input_shape[0], width)
        self.deep = nn.Sequential(block(width, 2 * width), block(2 * width, width))
        self.up = block(2 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x)
        coarse = self.deep(nn.functional.max_pool3d(fine, 2))
        coarse = nn.functional.interpolate(coarse, scale_factor=2.0)
        return self.head(self.up(torch.cat([fine, coarse], dim=1)))
