"""What a model gives for held-out records, whatever it does: nothing here fails."""

from __future__ import annotations

import torch
from torch import nn

from secfed.errors import RangeError
from secfed.wire.parts import otherwise


def outputs_of(model: nn.Module, batch: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """[n, *shape] float64 on the CPU; NaN for records that the model fails on, tried one by one then."""

    def of(rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = model(rows).to(device="cpu", dtype=torch.float64)
        if tuple(outputs.shape) != (len(rows), *shape):
            message = f"the model gives outputs of shape {tuple(outputs.shape[1:])}, not {shape}"
            raise RangeError(
                message, remedy="let the model end with one score per class, or what algorithm.task needs"
            )
        return outputs

    whole = otherwise(None, of, batch)
    if whole is not None:
        return whole
    none = torch.full((1, *shape), torch.nan, dtype=torch.float64)
    return torch.cat([otherwise(none, of, row) for row in torch.split(batch, 1)])
