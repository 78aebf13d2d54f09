"""FedSGD: one step of an optimiser at the server per round, along the gradient over all hospitals' records.

    site      g = sum or mean over all its records of the loss's gradient at the received model
    server    one step of sgd, with momentum if wanted, or Adam

With ``noise = "sum"`` every record's gradient (of a group: its mean) is clipped to C before it is added, and
the secure sum carries the noise: DP-SGD with full batches, as a trusted curator with all records would run
it, without a curator. The server divides by ``records``, a number that everybody may know; what it does with
a noisy sum spends nothing. Without ``[privacy]`` it is the mean gradient that McMahan et al. compare with.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017 (FedSGD); Abadi et al. 2016, algorithm
1; Kairouz, Liu, Steinke 2021 (distributed noise); Kingma and Ba 2015 (Adam).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.federated_averaging.options import MeanOptions, check_momentum
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.algorithms.federated_averaging.weighted_plan import UPDATE, Means
from secfed.algorithms.framework.base import UnitBound
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.registry import register
from secfed.algorithms.metrics.classification import NOISY_L2
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.layout import Field as Block

_ROWS = 1024  # of a forward pass without privacy
_BITS = 32  # of a clipped sum: rounding to a coarser grid would need more noise


class FedSGDOptions(MeanOptions):
    """Options of ``fedsgd``."""

    learning_rate: float = Field(default=1.0, gt=0, description="the server's step size, above 0")
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description='the server\'s: "sgd" or "adam"')
    momentum: float = Field(default=0.0, ge=0, lt=1, description="the momentum of sgd, from 0 to below 1")
    weight_decay: float = Field(default=0.0, ge=0, description="the server's weight decay, at least 0")
    records: int | None = Field(
        default=None,
        ge=1,
        description='only with noise = "sum": about how many training records all sites have, which '
        "everybody may know; clipped gradients are divided by it",
    )
    evaluate_every: int = Field(
        default=1, ge=1, description="rounds from one evaluation to the next, where it is a sum of its own"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_momentum(self.optimizer, self.momentum)
        return self


@register("fedsgd", options=FedSGDOptions)
class FedSGD(WeightedMean):
    """FedSGD, bound to one study."""

    options: FedSGDOptions
    tells_steps = False  # the server decays, once a round
    private_units: ClassVar[tuple[str, ...]] = ("site",)
    summed_units: ClassVar[tuple[str, ...]] = ("record", "group")

    def check_privacy(self) -> None:
        """What gradients are divided by must be public, and there is nothing to divide without clipping."""
        super().check_privacy()
        if self._clips and self.options.records is None:
            raise ConfigError(
                "algorithm.records: is missing",
                remedy="set about how many training records all sites have together; the true number would "
                "be a sum without noise",
            )
        if not self._clips and self.options.records is not None:
            raise ConfigError(
                'algorithm.records: has an effect with privacy.noise = "sum" only', remedy="remove it"
            )

    @property
    def _clips(self) -> bool:
        privacy = self.setting.study.privacy
        return privacy is not None and privacy.noise == "sum"

    def fields(self) -> tuple[Block, ...]:
        """``gradient/parameter``: a sum of clipped ones is at most C for each record that there is."""
        blocks = self.fields_like_model("gradient")
        privacy = self.setting.study.privacy
        if privacy is None or self.options.records is None:
            return blocks
        bound = privacy.clip_norm * self.options.records
        return tuple(Block(block.name, block.shape, bound, max(block.bits, _BITS)) for block in blocks)

    def unit_bound(self, exchange: Exchange) -> UnitBound | None:
        """One clipped gradient; of the evaluation, one answer of a held-out record."""
        from secfed.dp.training.unit_sums import GRADIENT_NORM  # the accountants are slow to import

        privacy = self.setting.study.privacy
        if privacy is None:
            return None
        evaluation = privacy.metrics_share if privacy.metrics == "private" else 0.0
        if exchange.name == UPDATE:
            return UnitBound(privacy.clip_norm * GRADIENT_NORM, share=1.0 - evaluation)
        return UnitBound(NOISY_L2, share=evaluation)

    def evaluates(self, round_number: int) -> bool:
        """Every so many rounds."""
        return (round_number - 1) % self.options.evaluate_every == 0

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        """The gradient at the received model, clipped record by record where the sum carries the noise."""
        inputs, labels = data.train_x.to(context.device), data.train_y.to(context.device)
        if context.sums is not None:
            from secfed.dp.training.losses import supervised
            from secfed.dp.training.patient_records import TensorRecords

            loss = supervised(self.task.criterion)
            found = context.sums.gradients(model, loss, TensorRecords((inputs, labels)))
            return {f"gradient/{name}": found[name].cpu() for name in self.trained}
        model.train()
        model.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=context.device)
        with seeded(context.seed, "train", context.site, context.round):  # for random layers
            for start in range(0, len(labels), _ROWS):
                rows = slice(start, start + _ROWS)
                part = self.task.summed_loss(model(inputs[rows]), labels[rows])
                (part / len(labels)).backward()  # type: ignore[no-untyped-call]
                total += part.detach()
        values = dict(model.named_parameters())
        gradients = {f"gradient/{name}": _gradient(values[name]) for name in self.trained}
        return {**gradients, "train_loss": float(total) / len(labels)}

    def server_state(self) -> State:
        """The optimiser's moments of every summed parameter, and how many steps it took."""
        kinds = {"adam": ("m", "v"), "sgd": ("m",) if self.options.momentum else ()}[self.options.optimizer]
        like = {name: self.initial[name].to(torch.float64) for name in self.trained}
        moments = {f"{kind}/{name}": torch.zeros_like(like[name]) for kind in kinds for name in like}
        return {**moments, "steps": torch.zeros((), dtype=torch.float64)}

    def server_step(self, model: State, mean: Means, state: dict[str, torch.Tensor]) -> State:
        """One step of the optimiser."""
        options, moved = self.options, {}
        state["steps"] = state["steps"] + 1
        scale = 1.0 if options.records is None else len(mean.survivors) / options.records
        for name in self.trained:
            value = model[name].to(torch.float64)
            gradient = mean[f"gradient/{name}"] * scale + options.weight_decay * value
            if options.optimizer == "adam":
                gradient = _adam(gradient, name, state)
            elif options.momentum:
                gradient = state[f"m/{name}"] = options.momentum * state[f"m/{name}"] + gradient
            moved[name] = value - options.learning_rate * gradient
        return moved


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone().cpu()


def _adam(gradient: torch.Tensor, name: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """The direction of Adam's step, with the usual beta1 = 0.9, beta2 = 0.999 and epsilon = 1e-8."""
    beta1, beta2, steps = 0.9, 0.999, int(state["steps"])
    m = state[f"m/{name}"] = beta1 * state[f"m/{name}"] + (1 - beta1) * gradient
    v = state[f"v/{name}"] = beta2 * state[f"v/{name}"] + (1 - beta2) * gradient**2
    unbiased_m, unbiased_v = m / (1 - beta1**steps), v / (1 - beta2**steps)
    return unbiased_m / (unbiased_v.sqrt() + 1e-8)
