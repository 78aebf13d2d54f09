"""A network, a loss and transforms of MONAI (extra ``imaging``) in federated averaging."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, RandFlipd, RandGaussianNoised
from torch import nn

from secfed.algorithms.federated_averaging.fedavg import FedAvg

FLIPS = [RandFlipd(keys=("image", "label"), prob=0.5, spatial_axis=axis) for axis in range(3)]


def unet(input_shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Module:
    """MONAI's U-Net with two steps down; it normalises every record by itself."""
    channels = (width, 2 * width, 4 * width)
    return UNet(3, input_shape[0], classes, channels=channels, strides=(2, 2), norm="INSTANCE")


class MonaiFedAvg(FedAvg):
    """FedAvg with MONAI's loss, over records that are flipped and blurred anew in every round."""

    def training(self, model: nn.Module, data: Any, generator: torch.Generator) -> Any:
        change = Compose([*FLIPS, RandGaussianNoised(keys=("image",), prob=0.3, std=0.1)])
        change.set_random_state(generator.initial_seed() % 2**32)  # the same after a restart
        pairs = [
            change({"image": image, "label": mask[None]})
            for image, mask in zip(data.train_x, data.train_y, strict=True)
        ]
        changed = replace(
            data,
            train_x=torch.stack([pair["image"].as_tensor() for pair in pairs]),
            train_y=torch.stack([pair["label"].as_tensor()[0] for pair in pairs]),
        )
        loss = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True)
        made = super().training(model, changed, generator)
        return replace(made, loss=lambda scores, masks: loss(scores, masks[:, None]))
