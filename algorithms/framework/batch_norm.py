"""Batch normalisation in a federation: whose statistics a model normalises with.

    pooled    mean and variance of all hospitals' training records, exactly: sums of x and of x^2 over records
              and places, and the number of records, layer by layer, in the order in which the model runs
              them; each layer is measured behind those that have their statistics. The model in evaluation
              mode then gives what one batch of all hospitals' records would give in training mode. Steps
              normalise with their batches, as everywhere.
    frozen    the statistics that training begins with; scale and shift are trained. A record's output depends
              on no other record.

Averages of hospitals' variances would leave out how far their means lie apart.

Source: Ioffe, Szegedy, "Batch Normalization", ICML 2015.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from secfed.algorithms.framework.parameters import TRAVELLING
from secfed.algorithms.framework.setting import Setting
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field, Layout, Totals

BatchNorm = Literal["pooled", "local", "frozen"]

STATISTICS: Final = "norm-"  # how the names of these exchanges begin
_BUFFERS: Final = ("running_mean", "running_var")
_MOST_RECORDS: Final = 2.0**20  # of one site; more count as so many
_ROWS: Final = 256  # of one forward pass
_PLAIN: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class FrozenBatchNorm(nn.Module):
    """Scale and shift of a batch normalisation whose statistics stay as they are, in training, too.

    They are no buffers: private steps refuse layers that own parameters and could keep something of records.
    So they stay where they are, and go to the records' device with every batch.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in _BUFFERS:
            setattr(self, name, getattr(norm, name).clone())
        setattr(self, TRAVELLING, _BUFFERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels, ...] to the same shape."""
        mean = self.running_mean.to(x.device)
        scale = torch.rsqrt(self.running_var.to(x.device) + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *(1 for _ in range(x.dim() - 2)))
        return x * scale.view(shape) + shift.view(shape)


def with_batch_norm(setting: Setting, kind: BatchNorm | None) -> Setting:
    """The setting whose models have their layers of batch normalisation as the study says."""
    if kind is None or kind == "local":
        return setting
    return replace(setting, model=lambda: _prepared(setting.model(), frozen=kind == "frozen"))


def _prepared(model: nn.Module, *, frozen: bool) -> nn.Module:
    for name, norm in list(model.named_modules()):
        if not isinstance(norm, _BatchNorm):
            continue
        if norm.running_mean is None:
            raise ConfigError(
                f"algorithm.batch_norm: layer {name!r} keeps no statistics (track_running_stats=False)",
                remedy="let it keep them, or use torch.nn.GroupNorm",
            )
        setattr(norm, TRAVELLING, _BUFFERS)
        if frozen and type(norm) in _PLAIN:
            parent, _, own = name.rpartition(".")
            if not own:
                return FrozenBatchNorm(norm)
            setattr(model.get_submodule(parent), own, FrozenBatchNorm(norm))
        elif frozen:  # with an activation, for example: it never leaves evaluation mode
            norm.__class__ = type(f"Frozen{type(norm).__name__}", (type(norm),), {"train": _never})
            norm.train()
    return model


def _never(self: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return nn.Module.train(self, False)


class PooledStatistics:
    """The exchanges that give every layer its pooled statistics: the plan, and both halves."""

    def __init__(self, setting: Setting, sites: int, bound: float) -> None:
        model, shape = setting.model(), setting.labelled().input_shape
        self._layers = _order(model, shape)
        self.exchanges: tuple[Exchange, ...] = tuple(
            Exchange(
                f"{STATISTICS}{number:03}",
                "all",
                Layout(
                    (
                        Field("records", (), 1.0, 64),
                        Field("sum", (_channels(model, name),), bound, 64),
                        Field("squares", (_channels(model, name),), bound**2, 64),
                    ),
                    sites=sites,
                ),
            )
            for number, name in enumerate(self._layers, start=1)
        )

    @staticmethod
    def records(count: int) -> float:
        """A number of records, as it is summed."""
        return min(count / _MOST_RECORDS, 1.0)

    def measure(
        self, exchange: Exchange, model: nn.Module, records: torch.Tensor, device: torch.device
    ) -> dict[str, torch.Tensor]:
        """What one site adds: means over places of x and x^2, summed over records ([n, ...] float32)."""
        layer = model.get_submodule(self._layers[self._position(exchange)])
        sums: list[torch.Tensor] = []

        def look(_layer: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            x = given[0].detach().to(torch.float64)
            x = x.reshape(*x.shape[:2], -1)
            sums.append(torch.stack([x.mean(dim=2).sum(dim=0), x.square().mean(dim=2).sum(dim=0)]).cpu())
            raise _Seen

        model.eval()
        hook = layer.register_forward_pre_hook(look)
        try:
            with torch.no_grad():
                for start in range(0, len(records), _ROWS):
                    try:
                        model(records[start : start + _ROWS].to(device))
                    except _Seen:
                        continue
        finally:
            hook.remove()
        total = torch.stack(sums).sum(dim=0) / len(records) * self.records(len(records))
        return {"sum": total[0], "squares": total[1]}

    def found(self, exchange: Exchange, totals: Totals) -> Mapping[str, torch.Tensor]:
        """Mean and variance of one layer, by their names in the model; nothing where nobody added records."""
        layer, records = self._layers[self._position(exchange)], totals.scalar("records")
        if records * _MOST_RECORDS < 0.5:
            return {}
        mean = totals["sum"] / records
        variance = (totals["squares"] / records - mean.square()).clamp(min=0)
        named = zip(_BUFFERS, (mean, variance), strict=True)
        return {f"{layer}.{name}" if layer else name: value.to(torch.float32) for name, value in named}

    def _position(self, exchange: Exchange) -> int:
        return int(exchange.name.removeprefix(STATISTICS)) - 1


class _Seen(Exception):
    """What comes behind the layer is of no interest."""


def _channels(model: nn.Module, layer: str) -> int:
    channels: Any = model.get_submodule(layer).num_features
    return int(channels)


def _order(model: nn.Module, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the layers of batch normalisation in the order in which two records of zeros meet them."""
    called: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda _module, _given, name=name: called.append(name))
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
    ]
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(2, *shape))
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ConfigError(
            'algorithm.batch_norm: "pooled" has no effect on a model without batch normalisation',
            remedy="remove it",
        )
    if len(set(called)) < len(called):
        twice = next(name for name in called if called.count(name) > 1)
        raise ConfigError(
            f"algorithm.batch_norm: the model runs layer {twice!r} more than once, so it has no one mean",
            remedy='give every place a layer of its own, or set algorithm.batch_norm = "frozen"',
        )
    return tuple(called)
